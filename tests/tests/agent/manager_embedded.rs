//! The signals that the fast path is not there for, by `evictd run` as a process: tasks, inodes, bytes, a pod's own limits,
//! and soft thresholds. Real forks and files, real filesystems on loop devices.

use evictd_engine::pace::{Decision, PaceProfile};
use evictd_node::{fs::statfs::Filesystem, proc::pids::Pids};
use evictd_store::record::{PaceRecord, RequestRecord};
use evictd_tests::{
    cgroup::PidsBeside,
    forker::{all_are_reaped, process_ids_of_the_machine},
    held_in_exit::HeldInExit,
    mounts::Mounted,
    prelude::*,
    reaped::Reaped,
    stalled::{hold_up, thread_named},
};
use jiff::{SignedDuration, Timestamp};

/// A scope with two pods, and where their emptyDirs are.
struct Two {
    // Removed before the disk under it.
    files: Files,
    disk: Option<Disk>,
}

impl Two {
    fn new(name: &str) -> Self {
        Self::of(name, None, "")
    }

    /// The same with emptyDirs of this limit, on a disk of so many MiB and inodes.
    fn on_disk(name: &str, mib: u64, inodes: u64, size_limit: &str) -> Result<Self> {
        let disk = Disk::new("ext4", mib, inodes)?;
        Ok(Self::of(name, Some(disk), size_limit))
    }

    fn of(name: &str, disk: Option<Disk>, size_limit: &str) -> Self {
        let empty_dirs = |pod: &str| match &disk {
            Some(disk) => {
                let path = disk.path().join(pod);
                fs::create_dir(&path).unwrap();
                json!([{ "name": "scratch", "path": path, "sizeLimit": size_limit }])
            }
            None => json!([]),
        };
        let pod = |name: &str| json!({ "name": name, "cgroup": format!("besteffort/{name}"), "emptyDirs": empty_dirs(name) });
        let mut files = Files::of(name, 256, &json!([pod("calm"), pod("greedy")]));
        files.config["filesystems"] = match &disk {
            Some(disk) => json!({ "nodefs": disk.path() }),
            None => json!({}),
        };
        Self { files, disk }
    }

    fn threshold(&mut self, signal: &str, value: Value) {
        self.files.config["evictionHard"][signal] = value;
    }

    /// While a threshold is met pods are walked every few seconds. For this one no pod goes.
    fn is_walked_often(&mut self) {
        self.files.config["evictionSoft"] = json!({ "nodefs.available": "99.9%" });
        self.files.config["evictionSoftGracePeriod"] = json!({ "nodefs.available": "1h" });
    }

    /// Both pods at work.
    fn forkers(&self) -> [Forker; 2] {
        ["calm", "greedy"].map(|pod| self.files.forker(pod))
    }

    /// A process of the greedy pod that does not go when it is asked.
    fn holds_on(&self) -> Reaped {
        let holds_on = "trap '' TERM; echo $$ >\"$0\"; exec sleep 1000";
        let procs = self.files.cgroup("greedy").join("cgroup.procs");
        let holds_on = Command::new("sh").args(["-c", holds_on]).arg(procs).spawn();
        Reaped(holds_on.unwrap())
    }

    /// Writes so many MiB to a file of the pod's.
    fn write(&self, pod: &str, file: &str, mib: usize) {
        fs::write(self.dir(pod).join(file), vec![1; mib << 20]).unwrap();
    }

    fn dir(&self, pod: &str) -> PathBuf {
        self.disk.as_ref().unwrap().path().join(pod)
    }

    /// The first pod that was asked to go, which must be the only one.
    fn asked(&self) -> RequestRecord {
        let records = self.files.wait_for(1);
        match &records[..] {
            [Record::Requested(asked)] => (**asked).clone(),
            other => panic!("{other:?}"),
        }
    }

    /// The first eviction, which must be the only one.
    fn evicted(&self) -> EvictionRecord {
        let records = || {
            let mut records = self.files.records();
            // What the Node would say in shadow mode, which comes first.
            records.retain(|record| !matches!(record, Record::ShadowNode(_)));
            records
        };
        until(SOON, || !records().is_empty());
        // Whatever else there might be to come.
        std::thread::sleep(Duration::from_millis(500));
        match &records()[..] {
            [Record::Evicted(eviction)] => (**eviction).clone(),
            other => panic!("{other:?}"),
        }
    }

    /// The same, of the greedy pod for this signal.
    #[track_caller]
    fn greedy_goes(&self, signal: &str) -> EvictionRecord {
        let eviction = self.evicted();
        assert_eq!([&*eviction.name, &eviction.signal], ["greedy", signal]);
        eviction
    }

    /// The greedy pod fills the disk, is evicted for that, and its files go.
    fn greedy_goes_for_its_files(&self) {
        let _agent = self.greedy_fills_the_disk();
        assert!(is_emptied(&self.dir("greedy")));
    }

    /// The greedy pod fills the disk, and is evicted for that.
    fn greedy_fills_the_disk(&self) -> Agent {
        self.write("calm", "data", 4);
        self.write("greedy", "data", 40);
        let agent = self.files.start(&[]);
        // Long enough for the first walk; without one it is not known whose bytes they are.
        std::thread::sleep(Duration::from_secs(2));
        assert!(self.files.records().is_empty());
        self.write("greedy", "more", 40);
        self.greedy_goes("nodefs.available");
        agent
    }
}

fn is_alive(forker: &mut Forker) -> bool {
    forker.order("hold 0").is_ok()
}

/// One pod was evicted, by the fast path.
#[track_caller]
fn assert_evicted_for_memory(files: &Files, pod: &str) {
    let evictions = files.evictions();
    let evicted: Vec<_> = evictions.iter().map(|e| (&*e.name, &*e.signal)).collect();
    assert_eq!(evicted, [(pod, "memory.available")]);
}

/// Waits until a directory is empty.
fn is_emptied(dir: &Path) -> bool {
    until(SOON, || fs::read_dir(dir).unwrap().next().is_none())
}

// R1: the fork that crosses the limit wakes the agent, and the pod with the most tasks goes once they were short for ten seconds.
#[test]
fn a_pod_that_takes_the_process_ids_is_evicted() {
    let _alone = as_root!(process_ids_of_the_machine().unwrap());
    let free = Pids::open(Path::new("/proc")).unwrap().read().unwrap();
    let mut two = Two::new("pids");
    // What others start or end on this machine meanwhile must not cross it.
    let margin = 500;
    let threshold = free.available() - margin;
    two.threshold("pid.available", json!(threshold.to_string()));
    let [mut calm, mut greedy] = two.forkers();
    calm.order("hold 20").unwrap();
    let agent = two.files.start(&[]);
    greedy.order("hold 1200").unwrap();
    let eviction = two.greedy_goes("pid.available");
    let said = "The node was low on resource: pids. Threshold quantity: ";
    begins(&eviction.message, said);
    assert!(eviction.available < eviction.threshold && eviction.working_set > 1000);
    let pace = eviction.pace.as_ref().expect("why at that moment");
    assert_eq!(pace.expected, eviction.working_set);
    assert!(is_alive(&mut calm));
    drop(agent);
    // Its file has what that was decided from, by the rule of what comes and goes in bursts.
    let pace_inputs = two.files.pace_inputs();
    let [pace_inputs] = &pace_inputs[..] else {
        panic!("{pace_inputs:?}");
    };
    let Decision::Evict { urgency } = pace_inputs.decide() else {
        panic!("{pace_inputs:?}");
    };
    assert_eq!(pace_inputs.profile, PaceProfile::Pids);
    let again = PaceRecord::of_inputs(urgency, pace_inputs);
    let expected = pace.expected;
    assert_eq!(*pace, PaceRecord { expected, ..again });
}

// R1, R9: inodes, and the emptyDir goes with its pod.
#[test]
fn a_pod_that_takes_the_inodes_is_evicted() {
    let mut two = or_skip!(Two::on_disk("inodes", 64, 4096, "1Ti"));
    two.threshold("nodefs.inodesFree", json!("25%"));
    let [mut calm, mut greedy] = two.forkers();
    calm.files("make", &two.dir("calm"), 100);
    let _agent = two.files.start(&[]);
    let _ = greedy.order(&format!("make {} 4000", two.dir("greedy").display()));
    let eviction = two.greedy_goes("nodefs.inodesFree");
    assert!(eviction.available < 1024, "{eviction:?}");
    assert_eq!(eviction.threshold, 1024);
    assert!(is_emptied(&two.dir("greedy")));
    assert!(is_alive(&mut calm));
    assert_eq!(fs::read_dir(two.dir("calm")).unwrap().count(), 100);
}

/// Files that a pod has removed since its walk are not held against it, wherever they were.
// R10
#[test]
fn a_pod_that_has_removed_its_inodes_stays() {
    let disk = or_skip!(Disk::new("ext4", 64, 8192));
    let [others, a, b, c, many] = ["others", "a", "b", "c", "many"].map(|dir| {
        let path = disk.path().join(dir);
        fs::create_dir(&path).unwrap();
        path
    });
    let pod = |name: &str, dirs: &[&PathBuf]| {
        let of = |path: &&PathBuf| json!({ "name": path.file_name().unwrap().to_str(), "path": path, "sizeLimit": "1Ti" });
        let dirs: Vec<Value> = dirs.iter().map(of).collect();
        json!({ "name": name, "cgroup": format!("besteffort/{name}"), "emptyDirs": dirs })
    };
    let pods = json!([pod("calm", &[&a, &b, &c]), pod("greedy", &[&many])]);
    let mut two = Two {
        files: Files::of("removed", 256, &pods),
        disk: Some(disk),
    };
    two.files.config["filesystems"] = json!({ "nodefs": two.disk.as_ref().unwrap().path() });
    two.threshold("nodefs.inodesFree", json!("5000"));
    let [mut calm, mut greedy] = two.forkers();
    for dir in [&a, &b, &c] {
        calm.files("make", dir, 1000);
    }
    let _agent = two.files.start(&[]);
    // Long enough for the first walk.
    std::thread::sleep(Duration::from_secs(2));
    for dir in [&a, &b, &c] {
        calm.files("remove", dir, 1000);
    }
    // Of no pod: what the greedy one makes is less than what two emptyDirs had.
    for file in 0..2500 {
        fs::File::create(others.join(file.to_string())).unwrap();
    }
    let _ = greedy.order(&format!("make {} 1500", many.display()));
    two.greedy_goes("nodefs.inodesFree");
    assert!(is_alive(&mut calm));
}

/// A threshold on anything that is met as it comes into force is told beforehand, and then once everywhere.
// R42
#[test]
fn thresholds_that_are_met_as_they_come_into_force_are_told() {
    let mut two = or_skip!(Two::on_disk("inforce", 64, 4096, "1Ti"));
    let all = [
        "memory.available",
        "nodefs.available",
        "nodefs.inodesFree",
        "pid.available",
    ];
    for hard in &all[1..] {
        two.threshold(hard, json!("99.99%"));
    }
    set_soft(&mut two.files.config, "255Mi");
    two.files.config["evictionSoftGracePeriod"] = json!({ "memory.available": "1h" });
    let [mut calm, _] = two.forkers();
    calm.order("hold 20").unwrap();
    let address = listen(&mut two.files.config, "metricsAddress");
    two.files.config["shadow"] = json!(true);
    let config = two.files.write().unwrap();
    let now = agent::finding(&[("--config", &config)], "thresholds now");
    let detail = now["detail"].as_str().unwrap();
    has(detail, &all);
    let agent = two.files.start(&[]);
    let told = || {
        let records = two.files.records();
        let mut met = records_of!(records, Record::MetInForce(met) => (met.signal, met.available, met.threshold));
        met.sort();
        met.retain(|(signal, ..)| all.contains(&signal.as_str()));
        met
    };
    assert!(until(SOON, || told().len() == all.len()), "{:?}", told());
    // A few rounds more.
    let counted = "evictd_thresholds_met_in_force_total";
    assert!(until(SOON, || value(&address, counted).is_some()));
    std::thread::sleep(Duration::from_secs(2));
    let signals: Vec<String> = told().into_iter().map(|(signal, ..)| signal).collect();
    assert_eq!(signals, all);
    let is_met = |(_, available, threshold): &(_, u64, u64)| available < threshold;
    assert!(told().iter().all(is_met));
    let words = "this threshold was already met when it came into force";
    let said = agent.log().matches(words).count();
    assert!(said >= all.len());
    assert_eq!(value(&address, counted), Some(said as u64));
}

/// Above its own limit, and it cannot die: said once, and not evicted again.
#[test]
fn a_victim_of_the_manager_that_does_not_die_is_stuck() {
    let two = or_skip!(Two::on_disk("held", 128, 4096, "8Mi"));
    let [mut calm, greedy] = two.forkers();
    let in_exit = HeldInExit::hold(greedy.pid()).unwrap();
    two.write("greedy", "data", 12);
    let agent = two.files.start(&[]);
    let eviction = two.evicted();
    let stuck = || records_of!(two.files.records(), Record::Stuck(s) if s.id == eviction.id).len();
    assert!(until(SOON, || stuck() > 0));
    // The next agent knows.
    agent.kill();
    let _agent = two.files.start(&[]);
    sleep_from(eviction.stages.signalled, Duration::from_secs(35));
    assert_eq!((eviction.name.as_str(), stuck()), ("greedy", 1));
    assert_eq!(two.files.evicted().len(), 1);
    assert!(is_alive(&mut calm));
    // However late it dies, its files go.
    drop(in_exit);
    assert!(is_emptied(&two.dir("greedy")));
}

/// It dies once the next agent runs, which does not call it stuck then, and does not evict it for the files that it has left.
// R43
#[test]
fn a_victim_of_an_earlier_agent_that_has_died_is_not_stuck() {
    let two = or_skip!(Two::on_disk("dead", 128, 4096, "8Mi"));
    let [_calm, mut greedy] = two.forkers();
    let in_exit = HeldInExit::hold(greedy.pid()).unwrap();
    two.write("greedy", "data", 12);
    let agent = two.files.start(&[]);
    let eviction = two.evicted();
    agent.kill();
    let _agent = two.files.start(&[]);
    drop(in_exit);
    assert!(until(SOON, || !is_alive(&mut greedy)));
    // So long after its eviction it would be stuck, as it is where an agent had to start so late, and a little more.
    let is_due = SignedDuration::from_secs(10);
    sleep_from(eviction.stages.signalled, Duration::from_secs(12));
    let time = |time: &str| time.parse::<Timestamp>().unwrap();
    let of_it = |record: &Record| match record {
        Record::Evicted(e) => e.uid == eviction.uid,
        Record::Stuck(s) => time(&s.time).duration_since(time(&eviction.time)) < is_due,
        _ => false,
    };
    let records = two.files.records();
    let told = records.iter().filter(|record| of_it(record)).count();
    assert_eq!(told, 1);
}

// R43: a fork bomb is short of memory and of process ids. It goes for memory, its dead keep their numbers until they are reaped, and
// no other pod goes for these meanwhile.
#[test]
fn what_a_victim_of_the_fast_path_leaves_behind_takes_no_other_pod() {
    let _alone = as_root!(process_ids_of_the_machine().unwrap());
    let pods = ["calm", "bomb"].map(|name| json!({ "name": name, "cgroup": name }));
    let mut files = Files::of("bomb", 1024, &json!(pods));
    let bomb = files.cgroup("bomb");
    let pids = Pids::open(Path::new("/proc")).unwrap();
    // What others start on this machine meanwhile must make no difference, nor what the test before has left to be reaped.
    assert!(until(SOON, || all_are_reaped().unwrap()));
    let available = || pids.read().unwrap().available();
    let is_steady = || {
        let before = available();
        std::thread::sleep(Duration::from_millis(200));
        before.abs_diff(available()) < 100
    };
    assert!(until(SOON, is_steady));
    let threshold = available() - 3000;
    files.config["evictionHard"]["pid.available"] = json!(threshold.to_string());
    let mut calm = files.forker("calm");
    calm.order("hold 20").unwrap();
    let mut forks = Forker::start_unreaped(&bomb).unwrap();
    // Where the pids controller charges it: these processes are older than the agent, whose hook has not seen them start.
    let _charged = PidsBeside::of(files.scope(), &bomb).unwrap();
    forks.order("hold 2000").unwrap();
    let agent = files.start(&[]);
    files.until_killed("bomb", &["--mib", "2000", "--rate", "400"]);
    let held = calm.order("hold 2000");
    assert!(held.is_ok(), "{held:?} {}", agent.log());
    assert!(until(SOON, || !files.evicted().is_empty()));
    // They are waited for for ten seconds.
    let waited_for = files.evictions()[0].stages.signalled + 9_000_000_000;
    let mut looks = 0;
    while monotonic_ns() < waited_for {
        assert!(
            pids.read().unwrap().available() < threshold,
            "they are short: {}",
            agent.log()
        );
        looks += 1;
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(looks > 10, "the machine is too slow for this test: {looks}");
    assert_evicted_for_memory(&files, "bomb");
    assert!(is_alive(&mut calm));
    // Reaped at last.
    drop(forks);
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(files.evicted(), ["bomb"]);
}

/// The first pod goes by the order. The others have not enough process ids between them to last until the kubelet looks
/// again, and the bomb would have to go all the same.
// R43
#[test]
fn a_fork_bomb_of_a_high_priority_takes_one_pod_with_it() {
    let _alone = as_root!(process_ids_of_the_machine().unwrap());
    let names = ["one", "two", "three", "four", "bomb"];
    let pod = |name| json!({ "name": name, "cgroup": name, "priority": if name == "bomb" { 100 } else { 0 } });
    let mut files = Files::of("bombs", 4096, &json!(names.map(pod)));
    assert!(until(SOON, || all_are_reaped().unwrap()));
    let free = Pids::open(Path::new("/proc")).unwrap().read().unwrap();
    skip_if!(
        (free.available() > 40_000)
            .then_some("the bomb cannot take the process ids of this machine")
    );
    let threshold = free.available() - 1000;
    files.config["evictionHard"]["pid.available"] = json!(threshold.to_string());
    let mut small = ["one", "two", "three", "four"].map(|name| files.forker(name));
    let _agent = files.start(&[]);
    // It does not stop by itself before nothing is left: it would be evicted by the kubelet's order then, after the others.
    let mut bomb = [(); 3].map(|()| files.forker("bomb"));
    for part in &mut bomb {
        part.begin("threads 14000").unwrap();
    }
    let is_reported = || files.evicted().contains(&"bomb".to_owned());
    assert!(until(SOON, is_reported));
    // Time for one too many.
    std::thread::sleep(Duration::from_secs(1));
    let evicted = files.evicted();
    assert!(evicted.len() <= 2, "{evicted:?}");
    let alive = small
        .iter_mut()
        .filter_map(|pod| is_alive(pod).then_some(()));
    assert!(alive.count() >= 3);
}

/// It has gone for memory, does not die, and is above its own limit on local storage.
// R43
#[test]
fn a_victim_of_the_fast_path_that_does_not_die_goes_once() {
    let mut two = or_skip!(Two::on_disk("twice", 128, 4096, "8Mi"));
    two.is_walked_often();
    let _agent = two.files.start(&[]);
    let hog = two.files.hog("greedy", &["--mib", "210", "--rate", "100"]);
    let in_exit = HeldInExit::hold(hog.pid()).unwrap();
    assert!(until(SOON, || !two.files.evicted().is_empty()));
    two.write("greedy", "data", 12);
    // It has been walked when a pod goes that is above its limit later than that.
    std::thread::sleep(Duration::from_secs(3));
    two.write("calm", "data", 12);
    assert!(until(SOON, || two.files.evicted().len() > 1));
    let evictions = two.files.evictions();
    drop(in_exit);
    let evicted: Vec<_> = evictions.iter().map(|e| (&*e.name, &*e.signal)).collect();
    let expected = [("greedy", "memory.available"), ("calm", "emptydirfs.limit")];
    assert_eq!(evicted, expected);
}

// R1, R10: bytes, by the walk in the background.
#[test]
fn a_pod_that_fills_the_disk_is_evicted() {
    let mut two = or_skip!(Two::on_disk("bytes", 128, 4096, "1Ti"));
    two.threshold("nodefs.available", json!("40%"));
    let [mut calm, mut greedy] = two.forkers();
    two.greedy_goes_for_its_files();
    assert!(!is_alive(&mut greedy) && is_alive(&mut calm));
}

/// An image is unpacked: what the pods have on the disk does not make up for it. Once the disk is full nothing grows, and no second pod
/// goes in vain.
// R43
#[test]
fn a_disk_that_no_pod_fills_takes_one_pod() {
    let mut two = or_skip!(Two::on_disk("unpacks", 256, 4096, "1Ti"));
    two.threshold("nodefs.available", json!("60%"));
    two.write("calm", "data", 4);
    two.write("greedy", "data", 8);
    let _pods = two.forkers();
    let outside = TestCgroup::new("unpacks-outside", 1024 * MIB).unwrap();
    let disk = two.disk.as_ref().unwrap().path();
    let available = || Filesystem::open(&disk).unwrap().read().unwrap().available;
    // What the first pod's files give back is taken as well.
    let mib = (available() / MIB + 8 + 1).to_string();
    let _agent = two.files.start(&[]);
    // It is full some five seconds after the first pod has gone.
    let [dir, rate] = [disk.to_str().unwrap(), "30"];
    let way = ["--way", "write", "--size", &mib, "--dir", dir];
    let writes = [&way[..], &["--mib", &mib, "--rate", rate]].concat();
    let mut writer = Hog::start(&outside.child("unpacks").unwrap(), &writes).unwrap();
    assert!(until(SOON, || !two.files.evicted().is_empty()));
    let first = two.files.evictions().remove(0);
    assert!(first.pace.unwrap().urgent);
    assert!(until(Duration::from_secs(9), || available() < MIB));
    // The kubelet would take the next one by then.
    sleep_from(first.stages.signalled, Duration::from_secs(15));
    assert_eq!(two.files.evicted(), ["greedy"]);
    assert!(writer.is_alive());
}

/// The threshold is met from the start, and the end of neither pod is enough: in the kubelet's mode one goes at the first look, and
/// the other one ten seconds later, or once the first has ended.
fn one_pod_goes_as_in_the_kubelet(mut two: Two, signal: &str, ends: bool) {
    two.threshold(signal, json!("99.99%"));
    two.files.config["mode"] = json!("kubelet");
    let pods = two.forkers();
    let hold = |pod: &Forker| HeldInExit::hold(pod.pid()).unwrap();
    let held = (!ends).then(|| pods.each_ref().map(hold));
    let _agent = two.files.start(&[]);
    assert!(until(SOON, || !two.files.evicted().is_empty()));
    let first = two.files.evictions().remove(0);
    assert_eq!(first.signal, signal);
    // Each has one process: the order is that of their names.
    assert!(signal != "pid.available" || first.name == "calm");
    let is_met = |record: Record| match record {
        Record::MetInForce(met) if met.signal == signal => Some(met.time),
        _ => None,
    };
    // It may be written after the eviction.
    let met = wait_for(SOON, || two.files.records().into_iter().find_map(is_met));
    let time = |time: &str| time.parse::<Timestamp>().unwrap();
    let waited = time(&first.time).duration_since(time(&met.unwrap()));
    assert!(waited < SignedDuration::from_secs(5), "{waited:?}");
    let least = Duration::from_secs(if ends { 10 } else { 12 });
    if held.is_some() {
        sleep_from(first.stages.signalled, least);
        assert_eq!(two.files.evicted(), [&*first.name]);
    }
    drop(held);
    assert!(until(SOON, || two.files.evicted().len() > 1));
    let second = two.files.evictions().remove(1);
    assert_ne!(second.name, first.name);
    let apart = Duration::from_nanos(second.stages.signalled - first.stages.signalled);
    assert!(apart >= least, "{apart:?}");
}

scenes! {
    // R43
    fn the_kubelets_mode_takes_one_pod_in_ten_seconds_for_process_ids() unless not_root() => one_pod_goes_as_in_the_kubelet(
        Two::new("kubeletpids"), "pid.available", true);
    // R43
    fn the_kubelets_mode_waits_for_the_end_of_a_pod_that_went_for_process_ids() unless not_root() => one_pod_goes_as_in_the_kubelet(
        Two::new("kubeletheld"), "pid.available", false);
}

/// The same of a disk.
// R43
#[test]
fn the_kubelets_mode_takes_one_pod_in_ten_seconds_for_a_disk() {
    let two = or_skip!(Two::on_disk("kubeletdisk", 64, 4096, "1Ti"));
    two.write("calm", "data", 4);
    two.write("greedy", "data", 8);
    one_pod_goes_as_in_the_kubelet(two, "nodefs.available", true);
}

/// No pod was walked when the agent starts: the first that is walked is not the one that fills the disk.
// R10
#[test]
fn a_disk_that_is_short_at_the_start_takes_the_pod_that_fills_it() {
    let mut two = or_skip!(Two::on_disk("atstart", 256, 150_000, "1Ti"));
    let [mut calm, mut greedy] = two.forkers();
    fs::write(two.dir("calm").join("log"), vec![1; 8 << 10]).unwrap();
    // Their walk takes longer than from one look of the agent to the next.
    for n in 0..120_000 {
        fs::File::create(two.dir("greedy").join(format!("empty{n}"))).unwrap();
    }
    two.write("greedy", "data", 80);
    let left = Filesystem::open(&two.dir("calm")).unwrap().read().unwrap();
    // Less than half of the threshold is left: no reclaim is waited for.
    two.threshold("nodefs.available", json!((3 * left.available).to_string()));
    let _agent = two.files.start(&[]);
    assert!(until(SOON, || !two.files.evicted().is_empty()));
    // Whatever else there might be to come.
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(two.files.evicted(), ["greedy"]);
    assert!(!is_alive(&mut greedy) && is_alive(&mut calm));
}

/// Its container has ended and waits to be started again: the kubelet would evict it (`filterOutInactivePods` leaves out pods that are over
/// alone), and no other pod's end brings what it has.
// R1, R10
#[test]
fn a_pod_between_two_runs_of_its_container_is_evicted_for_its_files() {
    let mut two = or_skip!(Two::on_disk("between", 128, 4096, "1Ti"));
    two.threshold("nodefs.available", json!("40%"));
    let mut calm = two.files.forker("calm");
    two.greedy_goes_for_its_files();
    assert!(is_alive(&mut calm));
}

/// So many files that the first walk of the pod has not ended when the disk is short, and what the disk has left would be
/// gone within a second.
// R10
#[test]
fn a_pod_that_was_not_walked_yet_is_waited_for() {
    let mut two = or_skip!(Two::on_disk("unwalked", 256, 80_000, "1Ti"));
    two.threshold("nodefs.available", json!("40%"));
    let [mut calm, mut greedy] = two.forkers();
    greedy.files("make", &two.dir("greedy"), 60_000);
    two.write("calm", "data", 4);
    two.write("greedy", "data", 80);
    let _agent = two.files.start(&[]);
    two.write("greedy", "more", 80);
    let eviction = two.greedy_goes("nodefs.available");
    // A fast walk has ended before there was more.
    assert!(eviction.working_set > 70 * MIB, "{eviction:?}");
    assert!(is_alive(&mut calm));
}

/// The agent ends before it has emptied the volumes of a pod that has died: the next one goes on, also where it comes late, and
/// leaves what the pod has written in another run.
// R42, R43
#[test]
fn files_of_a_pod_that_died_before_the_agent_did_are_removed() {
    let mut two = or_skip!(Two::on_disk("goeson", 128, 4096, "1Ti"));
    two.threshold("nodefs.available", json!("40%"));
    let mut calm = two.files.forker("calm");
    let left = two.dir("greedy").join("left");
    fs::create_dir(&left).unwrap();
    fs::write(left.join("file"), "").unwrap();
    // A mount point cannot be removed.
    let mounted = Mounted::new("tmpfs", &left, None).unwrap();
    let agent = two.greedy_fills_the_disk();
    assert!(until(SOON, || !two.dir("greedy").join("more").exists()));
    drop((agent, mounted));
    std::thread::sleep(Duration::from_secs(35));
    two.write("greedy", "new", 4);
    let _agent = two.files.start(&[]);
    assert!(until(SOON, || !left.exists()));
    assert!(two.dir("greedy").join("new").exists());
    assert!(two.dir("calm").join("data").exists());
    assert!(is_alive(&mut calm));
}

/// The agent ends before a pod that it has asked to go, which then ends by itself.
// R42, R43
#[test]
fn files_of_a_pod_that_was_asked_and_ended_without_an_agent_are_removed() {
    let mut two = or_skip!(Two::on_disk("askedends", 64, 4096, "1Ti"));
    set_soft(&mut two.files.config, "160Mi");
    two.files.config["evictionMaxPodGracePeriod"] = json!(60);
    two.write("greedy", "data", 4);
    let agent = two.files.start(&[]);
    let greedy = two.files.hog("greedy", &["--mib", "110"]);
    let in_exit = HeldInExit::hold(greedy.pid()).unwrap();
    assert_eq!(two.asked().name, "greedy");
    agent.kill();
    drop((in_exit, greedy));
    assert!(two.dir("greedy").join("data").exists());
    let _agent = two.files.start(&[]);
    assert!(is_emptied(&two.dir("greedy")));
}

/// What was evicted without a process, or has run again since, is a pod like any other.
// R1, R10
#[test]
fn a_pod_that_was_evicted_and_runs_again_can_be_evicted_again() {
    let mut two = or_skip!(Two::on_disk("again", 128, 4096, "8Mi"));
    two.is_walked_often();
    let mut calm = two.files.forker("calm");
    two.write("calm", "data", 4);
    two.write("greedy", "data", 12);
    let _agent = two.files.start(&[]);
    let evictions = |count: usize| until(SOON, || two.files.evicted().len() == count);
    // Nothing runs in it.
    assert!(evictions(1));
    assert_eq!(two.files.evictions()[0].error, None);
    assert!(is_emptied(&two.dir("greedy")));
    std::thread::sleep(Duration::from_millis(500));
    let mut greedy = two.files.forker("greedy");
    two.write("greedy", "data", 12);
    assert!(evictions(2));
    assert!(until(SOON, || !is_alive(&mut greedy)));
    assert!(is_emptied(&two.dir("greedy")));
    std::thread::sleep(Duration::from_millis(500));
    // It runs again for a while, and ends by itself.
    let greedy = two.files.forker("greedy");
    std::thread::sleep(Duration::from_secs(4));
    drop(greedy);
    two.write("greedy", "data", 12);
    assert!(evictions(3));
    assert_eq!(two.files.evicted(), ["greedy"; 3]);
    assert!(is_alive(&mut calm));
}

/// A pod above its own limit goes without any pressure on the node (`localStorageEviction`), also where the kubelet has
/// no threshold.
// R4, R10
#[test]
fn a_pod_above_its_size_limit_is_evicted() {
    let mut two = or_skip!(Two::on_disk("limit", 128, 4096, "8Mi"));
    two.files.config["evictionHard"] = json!({});
    let [mut calm, _greedy] = two.forkers();
    two.write("calm", "data", 4);
    two.write("greedy", "data", 12);
    let agent = two.files.start(&[]);
    let eviction = two.greedy_goes("emptydirfs.limit");
    has(
        &agent.log(),
        &["pods are evicted only for their own local-storage limits"],
    );
    assert_eq!(
        eviction.message.trim_end(),
        "Usage of EmptyDir volume \"scratch\" exceeds the limit \"8Mi\"."
    );
    assert!(is_alive(&mut calm));
    // A supervisor starts it again, with a directory that is empty now: what was walked before says nothing of it.
    assert!(is_emptied(&two.dir("greedy")));
    let mut again = two.files.forker("greedy");
    std::thread::sleep(Duration::from_secs(5));
    assert!(is_alive(&mut again));
}

// R12: static pods are judged alike here and on the fast path, each mode in its own way.
#[test]
fn a_static_pod_above_its_own_limit_goes_by_its_priority() {
    skip_if!(not_root());
    for (mode, priority, expected) in [
        ("evictd", 0, "static"),
        ("evictd", 2_000_001_000, "other"),
        ("kubelet", 0, "other"),
    ] {
        let disk = or_skip!(Disk::new("ext4", 128, 4096));
        let pod = |name: &str, is_static: bool, priority: i32| {
            let dir = disk.path().join(name);
            fs::create_dir(&dir).unwrap();
            // Where the static pod may go both would: the other one stays below its limit.
            let mib = if name == expected || is_static { 12 } else { 4 };
            fs::write(dir.join("data"), vec![1; mib << 20]).unwrap();
            json!({
                "name": name,
                "cgroup": name,
                "static": is_static,
                "priority": priority,
                "emptyDirs": [{ "name": "scratch", "path": dir, "sizeLimit": "8Mi" }],
            })
        };
        let pods = json!([pod("static", true, priority), pod("other", false, 0)]);
        let mut files = Files::of("staticlimit", 256, &pods);
        files.config["filesystems"] = json!({ "nodefs": disk.path() });
        files.config["mode"] = mode.into();
        let mut of_static = files.forker("static");
        let _of_other = files.forker("other");
        let _agent = files.start(&[]);
        let records = files.wait_for(1);
        let [Record::Evicted(eviction)] = &records[..] else {
            panic!("{mode} {priority}: {records:?}");
        };
        assert_eq!(eviction.name, expected, "{mode} {priority}");
        assert_eq!(is_alive(&mut of_static), expected == "other");
    }
}

// R5: asked, with the grace period that the configuration allows; the hard threshold is never met.
#[test]
fn a_soft_threshold_asks_and_waits() {
    let mut two = as_root!(Two::new("soft"));
    set_soft(&mut two.files.config, "160Mi");
    two.files.config["evictionMaxPodGracePeriod"] = json!(5);
    let address = listen(&mut two.files.config, "metricsAddress");
    let mut calm = two.files.hog("calm", &["--mib", "20"]);
    let _agent = two.files.start(&[]);
    let mut greedy = two.files.hog("greedy", &["--mib", "110"]);
    let asked = two.asked();
    assert_eq!((&*asked.name, asked.grace_period_seconds), ("greedy", 5));
    let pace = asked.pace.as_ref().expect("why at that moment");
    assert!(!pace.urgent && pace.expected == asked.working_set);
    assert_eq!(greedy.wait().unwrap(), Some(libc::SIGTERM));
    assert!(calm.is_alive());
    // No other pod is asked once memory is back.
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(two.files.records().len(), 1);
    // It counts as evicted when it has ended.
    assert!(until(SOON, || counted(&address, false) == Some(1)));
}

/// One that holds on is not hurried by another threshold, for which no other pod is asked meanwhile.
#[test]
fn two_soft_thresholds_ask_one_pod_after_the_other() {
    let mut two = or_skip!(Two::on_disk("softtwo", 64, 4096, "1Ti"));
    two.files.config["evictionSoft"] =
        json!({ "memory.available": "200Mi", "nodefs.inodesFree": "90%" });
    two.files.config["evictionSoftGracePeriod"] =
        json!({ "memory.available": "2s", "nodefs.inodesFree": "2s" });
    two.files.config["evictionMaxPodGracePeriod"] = json!(4);
    let mut calm = two.files.forker("calm");
    calm.files("make", &two.dir("calm"), 1000);
    let mut greedy = two.files.hog("greedy", &["--mib", "80"]);
    let mut holds_on = two.holds_on();
    let _agent = two.files.start(&[]);
    assert_eq!(greedy.wait().unwrap(), Some(libc::SIGTERM));
    let asked = || requests(two.files.records());
    assert!(until(SOON, || asked().len() == 2), "{:?}", asked());
    let asked = asked();
    assert_eq!((&*asked[0].name, &*asked[1].name), ("greedy", "calm"));
    let apart = Duration::from_nanos(asked[1].decided - asked[0].decided);
    assert!(apart >= Duration::from_secs(4), "{apart:?}");
    assert!(
        matches!(holds_on.try_wait(), Ok(Some(_))),
        "it had its time"
    );
    assert!(until(SOON, || !is_alive(&mut calm)));
}

/// Bytes and inodes are short at one look, and both would take a pod of the owner whose rate has room for one.
#[test]
fn a_limit_that_one_pod_has_used_up_holds_up_no_other_owner() {
    let disk = or_skip!(Disk::new("ext4", 64, 4096));
    let pod = |name: &str, owner: &str| {
        let dir = disk.path().join(name);
        fs::create_dir(&dir).unwrap();
        json!({
            "name": name,
            "cgroup": name,
            "owner": { "kind": "StatefulSet", "name": owner },
            "emptyDirs": [{ "name": "scratch", "path": dir }],
        })
    };
    let pods = json!([
        pod("bytes", "one"),
        pod("files", "one"),
        pod("other", "two")
    ]);
    let mut files = Files::of("ownertwo", 256, &pods);
    files.config["filesystems"] = json!({ "nodefs": disk.path() });
    files.config["evictionHard"] = json!({ "nodefs.available": "60%", "nodefs.inodesFree": "50%" });
    files.config["evictionRates"] = json!({"owner": {"evictions": 1, "period": "1h"}});
    let mut forkers = ["bytes", "files", "other"].map(|pod| files.forker(pod));
    fs::write(disk.path().join("bytes/data"), vec![1; 30 << 20]).unwrap();
    forkers[1].files("make", &disk.path().join("files"), 1500);
    forkers[2].files("make", &disk.path().join("other"), 1000);
    let _agent = files.start(&[]);
    assert!(
        until(SOON, || files.evicted().len() == 2),
        "{:?}",
        files.evicted()
    );
    assert_eq!(files.evicted(), ["bytes", "other"]);
    let evictions = files.evictions();
    let apart = evictions[1].stages.signalled - evictions[0].stages.signalled;
    assert!(apart < 5_000_000_000, "{apart}");
}

/// Evictions for memory that a running agent shows.
fn counted(address: &str, shadow: bool) -> Option<u64> {
    let labels = format!("signal=\"memory.available\",shadow=\"{shadow}\"");
    value(address, &format!("evictd_evictions_total{{{labels}}}"))
}

// R47
#[test]
fn a_soft_threshold_of_shadow_mode_is_counted() {
    let mut two = as_root!(Two::new("softshadow"));
    set_soft(&mut two.files.config, "160Mi");
    let address = listen(&mut two.files.config, "metricsAddress");
    let _agent = two.files.start(&["--shadow"]);
    let mut greedy = two.files.hog("greedy", &["--mib", "110"]);
    assert!(until(SOON, || counted(&address, true) == Some(1)));
    assert_eq!(counted(&address, false), Some(0));
    let count = || records_of!(two.files.records(), Record::Requested(asked) if asked.shadow).len();
    assert!(until(SOON, || count() > 0));
    assert_eq!(count(), 1);
    assert!(greedy.is_alive());
}

/// Shadow mode begins while the pod has time left.
// R47
#[test]
fn shadow_mode_kills_no_pod_that_was_asked_before() {
    let mut two = as_root!(Two::new("asked"));
    set_soft(&mut two.files.config, "160Mi");
    two.files.config["evictionMaxPodGracePeriod"] = json!(8);
    let agent = two.files.start(&[]);
    let mut holds_on = two.holds_on();
    let mut greedy = two.files.hog("greedy", &["--mib", "110"]);
    two.asked();
    two.files.change("shadow", json!(true));
    assert!(agent.says("the configuration has changed and is in force"));
    assert_eq!(greedy.wait().unwrap(), Some(libc::SIGTERM));
    assert!(agent.says("is not killed at the end of its time"));
    assert!(matches!(holds_on.try_wait(), Ok(None)));
}

/// No second answer comes within a look: a decision may not wait for one.
// R43
#[test]
fn a_disk_that_answers_late_at_each_look_takes_the_pod_that_fills_it() {
    let mut two = or_skip!(Two::on_disk("latedisk", 64, 4096, "1Ti"));
    two.threshold("nodefs.inodesFree", json!("25%"));
    let [_calm, mut greedy] = two.forkers();
    let agent = two.files.start(&[]);
    let thread = "statfs";
    assert!(until(SOON, || thread_named(agent.pid(), thread)
        .unwrap()
        .is_some()));
    let eviction = hold_up(agent.pid(), thread, Duration::from_secs(2), || {
        // None of it is seen before the thread is held up.
        std::thread::sleep(Duration::from_secs(1));
        greedy.files("make", &two.dir("greedy"), 3500);
        two.evicted()
    });
    assert_eq!(eviction.name, "greedy");
}

// R47
#[test]
fn shadow_leaves_files_and_tasks_alone() {
    let mut two = or_skip!(Two::on_disk("shadowfiles", 64, 4096, "1Ti"));
    two.threshold("nodefs.inodesFree", json!("25%"));
    let [_calm, mut greedy] = two.forkers();
    let _agent = two.files.start(&["--shadow"]);
    greedy.files("make", &two.dir("greedy"), 3500);
    let eviction = two.evicted();
    assert!(eviction.shadow && eviction.name == "greedy" && eviction.phase.is_none());
    assert_eq!(fs::read_dir(two.dir("greedy")).unwrap().count(), 3500);
    assert!(is_alive(&mut greedy));
}

// R47
#[test]
fn shadow_mode_decides_for_the_hard_threshold_after_the_soft_one() {
    let mut two = or_skip!(Two::on_disk("shadowboth", 64, 4096, "1Ti"));
    two.threshold("nodefs.available", json!("20%"));
    two.files.config["evictionSoft"] = json!({ "nodefs.available": "60%" });
    two.files.config["evictionSoftGracePeriod"] = json!({ "nodefs.available": "1s" });
    let _agent = two.files.start(&["--shadow"]);
    let count = |is_soft: bool| {
        let records = two.files.records();
        match is_soft {
            true => records_of!(records, Record::Requested(asked) if asked.shadow).len(),
            false => records_of!(records, Record::Evicted(eviction) if eviction.shadow).len(),
        }
    };
    two.write("greedy", "data", 30);
    assert!(until(2 * SOON, || count(true) == 1));
    two.write("greedy", "more", 20);
    assert!(until(2 * SOON, || count(false) == 1));
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!([count(true), count(false)], [1, 1]);
}
