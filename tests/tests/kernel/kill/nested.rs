//! Pods that make cgroups of their own: what these cost is bounded, and every process in them dies.

use evictd_node::pods::{
    builder::{PodTableBuilder, PodUpdate},
    table::PodEntry,
};

use super::*;

/// Descriptors for one pod: at most 128 of its cgroups are followed, by six files at most.
const FEW: usize = 128 * 6 + 8;

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

fn opened(stage: &Stage) -> (PodEntry, usize) {
    let before = descriptors();
    let pod = PodEntry::open(Pod::default(), &stage.pod, Mode::Evictd).unwrap();
    (pod, descriptors() - before)
}

/// Until nothing is left of the pod, as the fast path begins it and the thread `ensure-dead` ends it.
fn kill_whole(pod: &PodEntry) {
    assert!(!pod.killer.is_empty());
    assert!(!pod.killer.kill().unwrap().empty);
    let signalled = monotonic_ns();
    assert!(until(SOON, || kill_left(pod.killer.path(), signalled).unwrap()));
}

/// Cgroups in each other whose path is longer than the kernel takes; removed when dropped.
struct Deep(Vec<File>);

impl Deep {
    /// 17 names of 255 bytes are more than PATH_MAX.
    fn below(cgroup: &Path) -> Self {
        let mut deep = Self(vec![File::open(cgroup).unwrap()]);
        for _ in 0..17 {
            let below = deep.innermost().join(Self::name());
            fs::create_dir(&below).unwrap();
            deep.0.push(File::open(&below).unwrap());
        }
        deep
    }

    fn name() -> String {
        "n".repeat(255)
    }

    /// A short path to the innermost, for other processes as well.
    fn innermost(&self) -> PathBuf {
        let fd = self.0.last().unwrap().as_raw_fd();
        format!("/proc/{}/fd/{fd}", std::process::id()).into()
    }
}

impl Drop for Deep {
    fn drop(&mut self) {
        while self.0.len() > 1 {
            self.0.pop();
            let below = self.innermost().join(Self::name());
            if !until(SOON, || fs::remove_dir(&below).is_ok()) {
                eprintln!("a cgroup below {:?} could not be removed", self.0.first());
            }
        }
    }
}

#[test]
fn a_pod_with_paths_beyond_the_kernels_longest_dies() {
    let stage = as_root!(Stage::new("deep"));
    let deep = Deep::below(&stage.container);
    let mut hidden = Hog::start(&deep.innermost(), &["--mib", "8", "--wait"]).unwrap();
    hidden.go().unwrap();
    let (pod, files) = opened(&stage);
    assert!(pod.is_cut && files <= FEW, "{files}");
    // v2 may not have handed the controller down: what is not counted in a cgroup counts in the one above.
    assert!(until(SOON, || pod.memory.usage().unwrap() >= 8 * MIB));
    kill_whole(&pod);
    hidden.killed();
    assert!(until(SOON, || kill_left(&stage.pod, monotonic_ns()).unwrap()));
}

#[test]
fn a_pod_of_a_thousand_cgroups_costs_no_more_than_others_and_dies() {
    let stage = as_root!(Stage::new("thousand"));
    let nested = |branch: usize| stage.container.join(format!("{branch}"));
    for branch in 0..50 {
        for leaf in 0..20 {
            fs::create_dir_all(nested(branch).join(leaf.to_string())).unwrap();
        }
    }
    let mut members: Vec<_> = (0..50)
        .step_by(10)
        .map(|branch| idle(&nested(branch).join("19")))
        .collect();
    let (pod, files) = opened(&stage);
    println!("a pod of 1,052 cgroups: {files} descriptors");
    assert!(pod.is_cut && files <= FEW, "{files}");
    let start = Instant::now();
    assert!(!pod.killer.is_empty());
    println!("whether it is empty: {:?}", start.elapsed());
    kill_whole(&pod);
    for member in &mut members {
        member.killed();
    }
    let start = Instant::now();
    assert!(kill_left(&stage.pod, monotonic_ns()).unwrap());
    println!("that it is dead: {:?}", start.elapsed());
}

/// One that was restarted below a container is spared, wherever it is; what is older dies.
#[test]
fn what_is_older_dies_out_of_sight_and_what_is_younger_lives() {
    let stage = as_root!(Stage::new("older"));
    let deep = Deep::below(&stage.container);
    let mut old = idle(&deep.innermost());
    std::thread::sleep(Duration::from_millis(20));
    let signalled = monotonic_ns();
    std::thread::sleep(Duration::from_millis(300));
    let mut new = idle(&stage.cgroup.child("pod/two").unwrap());
    assert!(until(SOON, || kill_left(&stage.pod, signalled).unwrap()));
    old.killed();
    assert!(new.is_alive());
    new.kill().unwrap();
    new.killed();
}

/// The kernel's memory that this thread takes counts in a cgroup, as long as it is there.
struct Charged {
    cgroup: PathBuf,
    back: PathBuf,
    list: &'static str,
}

impl Charged {
    /// On v1 the thread alone, on v2 the whole process.
    fn to(stage: &Stage) -> Self {
        let is_v1 = stage.beside.join("tasks").exists();
        let (root, _) = memory_root().unwrap();
        let list = if is_v1 { "tasks" } else { "cgroup.procs" };
        fs::write(stage.beside.join(list), "0").unwrap();
        Self {
            cgroup: stage.beside.clone(),
            back: root,
            list,
        }
    }

    /// In bytes; `None` before 5.18 on v2.
    fn kernel(&self) -> Option<u64> {
        let counter = self.cgroup.join("memory.kmem.usage_in_bytes");
        if let Ok(text) = fs::read_to_string(counter) {
            return text.trim().parse().ok();
        }
        let stat = fs::read_to_string(self.cgroup.join("memory.stat")).ok()?;
        let line = stat.lines().find_map(|line| line.strip_prefix("kernel "))?;
        line.parse().ok()
    }
}

impl Drop for Charged {
    fn drop(&mut self) {
        fs::write(self.back.join(self.list), "0").unwrap();
    }
}

/// The figures in docs/deploy.md.
#[test]
fn kernel_memory_of_a_pod() {
    const PODS: usize = 20;
    const CONTAINERS: usize = 4;
    let stage = as_root!(Stage::new("kernel-memory"));
    let uid = |pod: usize| format!("027b1a11-f972-4ec6-943f-{pod:012}");
    let mut made = Vec::new();
    for class in ["none", "four"] {
        for pod in 0..PODS {
            let pod = format!("{class}/kubepods/pod{}", uid(pod));
            made.push(stage.cgroup.child(&pod).unwrap());
            for container in 0..if class == "four" { CONTAINERS } else { 0 } {
                let container = format!("{pod}/{container}");
                made.push(stage.cgroup.child(&container).unwrap());
                stage.cgroup.limit_child(&container, 64 * MIB).unwrap();
            }
        }
    }
    let charged = Charged::to(&stage);
    let kernel = || charged.kernel();
    skip_if!(
        kernel()
            .is_none()
            .then_some("the kernel has no such counter")
    );
    let of = |class: &str| {
        let mut builder = PodTableBuilder::new(&stage.cgroup.path().join(class), Mode::Evictd);
        let mut look = move |ip: &str| {
            let described = |uid: &str| Pod {
                uid: uid.to_owned(),
                ip: ip.to_owned(),
                ..Pod::default()
            };
            let known = |uid: &str, held: Option<&Pod>| PodUpdate::new(Some(&described(uid)), held);
            builder.refresh(known).table.unwrap()
        };
        let before = kernel().unwrap();
        let first = look("10.0.0.1");
        assert_eq!(first.entries.len(), PODS);
        let (opened, files) = (kernel().unwrap(), descriptors());
        // All pods are described anew while the table before is still in use.
        let second = look("10.0.0.2");
        let more = descriptors() - files;
        assert!(more <= 4, "{more}: those of the cgroups above the pods");
        // The kernel counts some of what was opened late.
        let all = kernel().unwrap();
        assert!(all - opened < (all - before) / 2);
        drop((first, second));
        (all - before) / PODS as u64
    };
    let (none, four) = (of("none"), of("four"));
    let container = four.saturating_sub(none) / CONTAINERS as u64;
    println!("kernel memory: {none} bytes for a pod, {container} for a container with a limit");
    assert!(none < 32 << 10 && container < 32 << 10);
}
