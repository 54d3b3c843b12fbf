//! The end of a pod: every process of its cgroups dies, and no other one, whatever becomes of a PID in between; with no
//! PID and no file descriptor left as well.

use std::{cell::Cell, os::fd::AsRawFd as _, process::Child};

use evictd_node::{
    cgroup::{
        end::{ask_to_end, kill_left, kill_until_empty},
        kill::CgroupKiller,
        members::{KillResult, MAX_AT_ONCE, signal_members},
        memory::Version,
    },
    proc::pidfd::Signal,
};
use evictd_tests::{held_in_exit::HeldInExit, prelude::*};
use nix::{
    sys::{
        resource::{Resource, getrlimit, setrlimit},
        signal::{Signal::SIGKILL, kill},
    },
    unistd::Pid,
};

mod nested;

const GRACE: Duration = Duration::from_secs(30);

/// A pod of two cgroups, and one beside it.
struct Stage {
    pod: PathBuf,
    container: PathBuf,
    beside: PathBuf,
    // Goes last: it is removed.
    cgroup: TestCgroup,
    _alone: MutexGuard<'static, ()>,
}

impl Stage {
    fn new(name: &str) -> Self {
        // Descriptors and PIDs are the whole process's.
        let alone = alone();
        let cgroup = TestCgroup::new(name, 512 * MIB).unwrap();
        // No process may be in a cgroup of v2 that hands controllers down: two containers.
        Self {
            container: cgroup.child("pod/one").unwrap(),
            pod: cgroup.path().join("pod"),
            beside: cgroup.child("beside").unwrap(),
            cgroup,
            _alone: alone,
        }
    }
}

fn enter(cgroup: &Path, pid: u32) {
    fs::write(cgroup.join("cgroup.procs"), pid.to_string()).unwrap();
}

fn list(cgroup: &Path) -> Vec<i32> {
    let procs = fs::read_to_string(cgroup.join("cgroup.procs")).unwrap();
    procs.lines().map(|pid| pid.parse().unwrap()).collect()
}

fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").map(|(_, rest)| rest);
    state.is_some_and(|state| !state.starts_with(['Z', 'X']))
}

/// A process that does nothing.
fn idle(cgroup: &Path) -> Hog {
    Hog::start(cgroup, &["--mib", "1", "--wait"]).unwrap()
}

/// Signals what `listed` says at the first time, if it is in the cgroup when it is listed again.
fn kill_listed(cgroup: &Path, listed: impl Fn() -> Vec<i32>) -> KillResult {
    let first = Cell::new(true);
    signal_members(Signal::KILL, u32::MAX, &|each| {
        let pids = match first.replace(false) {
            true => listed(),
            false => list(cgroup),
        };
        pids.into_iter().for_each(each);
        Ok(())
    })
}

#[test]
fn a_process_that_has_left_the_cgroup_is_not_killed() {
    let stage = as_root!(Stage::new("left"));
    let (mut stays, mut leaves) = (idle(&stage.container), idle(&stage.container));
    let round = kill_listed(&stage.container, || {
        let pids = list(&stage.container);
        assert_eq!(pids.len(), 2);
        enter(&stage.beside, leaves.pid());
        pids
    });
    let killed = KillResult {
        processes: 1,
        empty: false,
        refused: None,
    };
    assert_eq!(round, killed);
    stays.killed();
    assert!(leaves.is_alive());
}

#[test]
fn a_pid_that_is_another_process_now_is_not_signalled() {
    let stage = as_root!(Stage::new("other"));
    let (mut member, mut other) = (idle(&stage.container), idle(&stage.beside));
    let both = || vec![member.pid().cast_signed(), other.pid().cast_signed()];
    let round = kill_listed(&stage.container, both);
    assert_eq!(round.processes, 1);
    member.killed();
    assert!(other.is_alive());
    // Nothing was in the group: this is not a kill.
    let other_alone = || vec![other.pid().cast_signed()];
    let none = KillResult {
        processes: 0,
        empty: true,
        refused: None,
    };
    assert!(until(SOON, || list(&stage.container).is_empty()));
    assert_eq!(kill_listed(&stage.container, other_alone), none);
    assert!(other.is_alive());
}

/// Starts a process with this PID, if the kernel gives it away.
fn start_as(pid: u32) -> Result<Option<Child>> {
    for _ in 0..100 {
        fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string())?;
        let mut child = Command::new("sleep")
            .arg("600")
            .stdout(Stdio::null())
            .spawn()?;
        if child.id() == pid {
            return Ok(Some(child));
        }
        child.kill()?;
        child.wait()?;
    }
    Ok(None)
}

#[test]
fn a_pid_that_was_given_away_is_not_killed() {
    skip_if!(not_root());
    let no_last_pid = !Path::new("/proc/sys/kernel/ns_last_pid").exists();
    skip_if!(no_last_pid.then_some("the kernel has no ns_last_pid"));
    let stage = Stage::new("reused");
    let mut stays = idle(&stage.container);
    let mut ends = idle(&stage.container);
    let pid = ends.pid();
    // Reaps the process and has its PID given away between the list and the signal.
    let successor = Cell::new(None);
    let ends = Cell::new(Some(&mut ends));
    let round = kill_listed(&stage.container, || {
        let pids = list(&stage.container);
        assert!(pids.contains(&pid.cast_signed()));
        if let Some(ends) = ends.take() {
            ends.kill().unwrap();
            ends.wait().unwrap();
        }
        successor.set(start_as(pid).unwrap());
        pids
    });
    let mut successor = or_say_why(successor.take());
    assert_eq!(round.processes, 1);
    stays.killed();
    if let Some(successor) = &mut successor {
        assert!(is_alive(pid), "the process that has the PID now");
        successor.kill().unwrap();
        successor.wait().unwrap();
    }
}

fn or_say_why(successor: Option<Child>) -> Option<Child> {
    if successor.is_none() {
        evictd_tests::skip::skipped("kernel::kill", "others have taken the PID each time");
    }
    successor
}

/// What is in the pod is no child of a process in it, so that each has to be signalled.
fn crowd(stage: &Stage, processes: u32) -> Forker {
    let mut forker = Forker::start(Some(&stage.container)).unwrap();
    forker.order(&format!("hold {processes}")).unwrap();
    enter(&stage.beside, forker.pid());
    assert_eq!(list(&stage.container).len(), processes as usize);
    forker
}

/// Until the pod is empty, as the fast path does it.
fn kill_all(killer: &CgroupKiller) -> u32 {
    let end = Instant::now() + SOON;
    let mut processes = 0;
    while Instant::now() < end {
        processes += killer.kill().unwrap().processes;
        if killer.is_empty() {
            return processes;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("{} is not empty", killer.path().display());
}

/// A pod of so many processes, and of one that forks all the time, is killed while what `take` returns is kept.
fn dies_completely<T>(stage: &Stage, processes: u32, take: impl FnOnce() -> T) {
    let mut beside = crowd(stage, processes);
    let second = stage.cgroup.child("pod/two").unwrap();
    let mut storm = Forker::start(Some(&second)).unwrap();
    storm.begin("storm 1000000").unwrap();
    let killer = CgroupKiller::open(&stage.pod).unwrap();
    let taken = take();
    let killed = kill_all(&killer);
    drop(taken);
    assert!(killed > processes, "{killed}");
    assert!(storm.done().is_err(), "it was killed");
    // Not in the pod, and its children are there to be reaped.
    beside.order("drop").unwrap();
}

#[test]
fn a_pod_of_many_processes_that_fork_dies_completely() {
    let stage = as_root!(Stage::new("many"));
    dies_completely(&stage, 300, || ());
    kill_until_empty(&stage.pod, SOON).unwrap();
}

#[test]
fn asked_to_end_are_the_processes_of_the_pod_alone() {
    let stage = as_root!(Stage::new("term"));
    let mut pod: Vec<_> = (0..20).map(|_| idle(&stage.container)).collect();
    let mut other = idle(&stage.beside);
    // The pod is empty only when this thread has reaped its processes.
    let path = stage.pod.clone();
    let ending = std::thread::spawn(move || ask_to_end(&path, GRACE));
    for member in &mut pod {
        assert_eq!(member.wait().unwrap(), Some(libc::SIGTERM));
    }
    assert!(ending.join().unwrap().unwrap());
    assert!(other.is_alive());
}

/// No PID is left for this thread: a cgroup of the pids controller holds it alone, until this is dropped.
struct NoPid {
    root: PathBuf,
    path: PathBuf,
    threads: &'static str,
}

impl NoPid {
    fn new() -> Result<Self> {
        let (root, version) = memory_root().context("no memory cgroups here")?;
        let (root, threads) = match version {
            Version::V1 => (root.with_file_name("pids"), "tasks"),
            Version::V2 => (root, "cgroup.threads"),
        };
        let path = root.join(format!("evictd-kill-{}", std::process::id()));
        fs::create_dir(&path)?;
        let made = Self {
            root,
            path,
            threads,
        };
        if version == Version::V2 {
            fs::write(made.root.join("cgroup.subtree_control"), "+pids")?;
            fs::write(made.path.join("cgroup.type"), "threaded")?;
        }
        fs::write(made.path.join(threads), "0")?;
        fs::write(made.path.join("pids.max"), "1")?;
        Ok(made)
    }
}

impl Drop for NoPid {
    fn drop(&mut self) {
        let left = fs::write(self.root.join(self.threads), "0");
        if let Err(error) = left.and_then(|()| fs::remove_dir(&self.path)) {
            eprintln!("{} could not be removed: {error}", self.path.display());
        }
    }
}

/// How long it takes to signal all, and that they are dead.
fn timed(stage: &Stage, processes: u32, kill: impl FnOnce()) -> Duration {
    let mut forker = crowd(stage, processes);
    let start = Instant::now();
    kill();
    let took = start.elapsed();
    assert!(until(SOON, || list(&stage.container).is_empty()));
    forker.order("drop").unwrap();
    took
}

#[test]
fn two_hundred_processes_die_with_no_pid_left() {
    const PROCESSES: u32 = 200;
    let stage = as_root!(Stage::new("pids"));
    let plain = timed(&stage, PROCESSES, || {
        for pid in list(&stage.container) {
            kill(Pid::from_raw(pid), SIGKILL).unwrap();
        }
    });
    let killer = CgroupKiller::open(&stage.pod).unwrap();
    let (mut no_pid, mut ours) = (None, Duration::ZERO);
    timed(&stage, PROCESSES, || {
        let made = no_pid.insert(NoPid::new());
        assert!(made.is_err() || Command::new("true").spawn().is_err());
        // To use up the PIDs takes longer than the kill.
        let start = Instant::now();
        let round = killer.kill().unwrap();
        ours = start.elapsed();
        assert_eq!(round.processes, PROCESSES);
    });
    or_skip!(no_pid.unwrap());
    println!(
        "{PROCESSES} processes: plain {plain:?}, pidfd {ours:?}, ratio {:.1}",
        ours.as_secs_f64() / plain.as_secs_f64()
    );
}

/// A deciding thread does not list a pod of very many processes once for each few of them.
#[test]
fn a_deciding_thread_signals_so_many_of_a_large_pod() {
    skip_if!(in_guest().then_some("an emulated machine takes a minute to make the processes"));
    let most = MAX_AT_ONCE;
    let stage = as_root!(Stage::new("many"));
    let killer = CgroupKiller::open(&stage.pod).unwrap();
    timed(&stage, most + 400, || {
        let signalled = killer.kill().unwrap().processes;
        assert_eq!(signalled, most);
        kill_until_empty(&stage.pod, SOON).unwrap();
    });
}

/// Takes all descriptors but so many until it goes.
struct Exhausted {
    before: (u64, u64),
    held: Vec<File>,
}

impl Exhausted {
    fn but(left: usize) -> Self {
        let mut held = vec![File::open("/dev/null").unwrap()];
        let mut exhausted = Self {
            before: getrlimit(Resource::RLIMIT_NOFILE).unwrap(),
            held: Vec::new(),
        };
        exhausted.limit(held[0].as_raw_fd().unsigned_abs() as u64 + 200);
        while let Ok(file) = File::open("/dev/null") {
            held.push(file);
        }
        held.truncate(held.len() - left);
        exhausted.held = held;
        exhausted
    }

    fn limit(&self, soft: u64) {
        setrlimit(Resource::RLIMIT_NOFILE, soft, self.before.1).unwrap();
    }
}

impl Drop for Exhausted {
    fn drop(&mut self) {
        self.limit(self.before.0);
    }
}

#[test]
fn a_pod_dies_completely_with_few_descriptors_left_or_none() {
    let stage = as_root!(Stage::new("files"));
    for left in [0, 1, 2, 5, 40] {
        dies_completely(&stage, 200, || {
            let exhausted = Exhausted::but(left);
            if left == 0 {
                let error = File::open("/dev/null").unwrap_err();
                assert_eq!(error.raw_os_error(), Some(libc::EMFILE));
            }
            exhausted
        });
    }
}

#[test]
fn a_pod_is_opened_once_there_are_descriptors() {
    let stage = as_root!(Stage::new("wait"));
    let mut member = idle(&stage.container);
    let exhausted = Exhausted::but(0);
    let path = stage.pod.clone();
    let killing = std::thread::spawn(move || kill_until_empty(&path, SOON));
    std::thread::sleep(Duration::from_millis(20));
    let was_alive = member.is_alive();
    drop(exhausted);
    assert!(was_alive, "nothing can have been opened");
    member.killed();
    killing.join().unwrap().unwrap();
}

/// A container that was started again has another cgroup than the one that was opened.
#[test]
fn a_container_that_was_started_again_is_killed() {
    let stage = as_root!(Stage::new("kill-again"));
    let killer = CgroupKiller::open(&stage.pod).unwrap();
    assert!(killer.kill().unwrap().empty && killer.is_empty());
    // As systemd in a container makes them.
    for again in ["pod/two", "pod/three/init.scope"] {
        let container = stage.cgroup.child(again).unwrap();
        let mut beside = idle(&stage.beside);
        let before = monotonic_ns();
        // The kernel tells the start of a process in ticks of 10 ms.
        std::thread::sleep(Duration::from_millis(50));
        let mut new = idle(&container);
        assert!(!killer.is_empty(), "{again}");
        assert!(!killer.holds_older_than(before), "{again}");
        assert!(killer.holds_older_than(monotonic_ns()), "{again}");
        assert!(!killer.kill().unwrap().empty, "{again}");
        new.killed();
        assert!(beside.is_alive());
        assert!(until(SOON, || killer.kill().unwrap().empty));
        assert!(until(SOON, || killer.is_empty()), "{again}");
    }
}

/// Its process is held in its exit, and the kubelet starts a container again.
#[test]
fn beside_a_process_that_stays_a_new_container_is_killed() {
    let stage = as_root!(Stage::new("kill-stuck"));
    let mut stays = idle(&stage.container);
    let held = HeldInExit::hold(stays.pid()).unwrap();
    let killer = CgroupKiller::open(&stage.pod).unwrap();
    killer.kill().unwrap();
    let mut new = idle(&stage.cgroup.child("pod/two").unwrap());
    killer.kill_stuck();
    new.killed();
    assert!(stays.is_alive());
    drop(held);
    stays.killed();
}

/// A static pod keeps its UID and its cgroup, and the kubelet starts its containers again.
#[test]
fn a_late_check_spares_a_restarted_container() {
    let stage = as_root!(Stage::new("kill-late"));
    let mut old = idle(&stage.container);
    // A process is as old as the kernel's tick in which it was started.
    std::thread::sleep(Duration::from_millis(20));
    let signalled = monotonic_ns();
    std::thread::sleep(Duration::from_millis(300));
    let container = stage.cgroup.child("pod/two").unwrap();
    let mut new = idle(&container);
    // What is left of the victim is killed, and the other container is not.
    assert!(until(SOON, || kill_left(&stage.pod, signalled).unwrap()));
    old.killed();
    assert!(kill_left(&stage.pod, signalled).unwrap());
    assert!(new.is_alive());
    // What came with the signal goes with it.
    let mut late = idle(&stage.container);
    assert!(until(SOON, || {
        kill_left(&stage.pod, monotonic_ns()).unwrap()
    }));
    late.killed();
    new.killed();
}

/// The pod's cgroups in v1's freezer, frozen; removed when dropped.
struct Frozen(Vec<PathBuf>);

impl Frozen {
    fn with(stage: &Stage, pid: u32) -> Self {
        let root = stage
            .pod
            .ancestors()
            .find(|dir| dir.ends_with("memory"))
            .unwrap();
        let freezer = root.with_file_name("freezer");
        let at = freezer.join(stage.container.strip_prefix(root).unwrap());
        fs::create_dir_all(&at).unwrap();
        enter(&at, pid);
        fs::write(at.join("freezer.state"), "FROZEN").unwrap();
        let is_frozen = || fs::read(at.join("freezer.state")).is_ok_and(|text| text == b"FROZEN\n");
        assert!(until(SOON, is_frozen));
        let made = at.ancestors().take_while(|dir| *dir != freezer);
        Self(made.map(Path::to_owned).collect())
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        for dir in &self.0 {
            // Other tests may have groups there.
            let _ = fs::remove_dir(dir);
        }
    }
}

/// A container that was paused, or that the kubelet's checkpoint has frozen.
#[test]
fn a_frozen_pod_is_thawed_to_die() {
    let stage = as_root!(Stage::new("frozen"));
    let is_v1 = stage.cgroup.path().starts_with("/sys/fs/cgroup/memory");
    skip_if!((!is_v1).then_some("cgroup v2 kills frozen tasks"));
    let mut member = idle(&stage.container);
    let frozen = Frozen::with(&stage, member.pid());
    CgroupKiller::open(&stage.pod).unwrap().kill().unwrap();
    std::thread::sleep(Duration::from_millis(50));
    assert!(
        is_alive(member.pid()),
        "a frozen task does not act on a signal"
    );
    kill_until_empty(&stage.pod, SOON).unwrap();
    member.killed();
    drop(frozen);
}

/// Its processes are listed in its domain, and reading its own list is refused.
#[test]
fn a_threaded_group_is_no_refusal() {
    let stage = as_root!(Stage::new("threaded"));
    let threaded = stage.container.join("threaded");
    fs::create_dir(&threaded).unwrap();
    let made = fs::write(threaded.join("cgroup.type"), "threaded");
    skip_if!(made.is_err().then_some("cgroup v1 has no threaded groups"));
    let mut member = idle(&stage.container);
    let killer = CgroupKiller::open(&stage.pod).unwrap();
    let result = killer.kill();
    member.killed();
    assert!(!result.unwrap().empty);
    kill_until_empty(&stage.pod, SOON).unwrap();
    fs::remove_dir(&threaded).unwrap();
}
