//! The machine as the scope: what the kubelet calls `memory.available` of the node.
//!
//! Other programs use the machine's memory too while these tests run; the threshold is laid so far above them that
//! only the tests' own hog can come near it, and only the tests' own pods can be killed.

use evictd_tests::{
    cgroup::{holds, oom_kills_of_machine},
    node::{self, Options},
    prelude::*,
};

use crate::scene::{EACH, MOMENT, NEIGHBOURS, alive, one_goes, pace_inputs};

/// Bytes of the machine that are left by the kubelet's count.
pub fn left_of_machine() -> u64 {
    let (root, total) = node::machine().unwrap();
    total - root.read().unwrap().working_set()
}

/// The pods below a cgroup are those of the machine, of which so many bytes must be available.
pub fn follow_the_machine(files: &mut Files, below: &Path, threshold: u64) {
    files.config["scope"] = json!({});
    // The pods' cgroup that is found below the machine's may be another test's.
    files.config["enforceNodeAllocatable"] = json!([]);
    files.config["evictionHard"] = json!({ "memory.available": threshold.to_string() });
    let manifest = files.dir().join("pods.json");
    let text = fs::read_to_string(&manifest).unwrap();
    let mut pods: Value = serde_json::from_str(&text).unwrap();
    for pod in pods["pods"].as_array_mut().unwrap() {
        pod["cgroup"] = json!(below.join(pod["cgroup"].as_str().unwrap()));
    }
    fs::write(&manifest, pods.to_string()).unwrap();
}

fn evicts_on(hook: Option<MemoryHook>) {
    let available = left_of_machine();
    // Half of what is left on a small machine; on a large one as much as a hog fills in a second.
    let room = (available / 2).min(768 * MIB);
    let mut node = Node::new("machine", node::machine().unwrap().1 / MIB).unwrap();
    let hog_dir = node.best_effort("hog");
    let calm_dir = node.pod("calm", QosClass::Burstable, 0, 64 * MIB);
    let mut calm = Hog::start(&calm_dir, &["--mib", "16"]).unwrap();
    let options = Options {
        hook,
        threshold: available - room,
        machine: true,
        ..Options::default()
    };
    let watched = or_skip!(node.watch(options).unwrap());
    let refused = &watched.refused;
    assert_eq!(hook.is_none(), watched.hook.has_program(), "{refused:?}");
    let kills = oom_kills_of_machine(Path::new("/proc")).unwrap();
    // Far past the threshold: on a large machine it is not urgent, and has to be met for ten seconds.
    let mib = (3 * room / MIB).to_string();
    let mut hog = Hog::start(&hog_dir, &["--mib", &mib, "--rate", "800"]).unwrap();
    let evicted = watched.evicts("hog");
    assert!(evicted.available < evicted.threshold);
    hog.killed();
    assert!(calm.is_alive());
    assert_eq!(oom_kills_of_machine(Path::new("/proc")).unwrap(), kills);
    let past = (evicted.threshold - evicted.available) >> 10;
    let detail = format!(
        "the machine: woken by {}, {past} KiB past the threshold",
        evicted.hook
    );
    matrix("memory.available", &watched.hook.to_string(), &detail);
}

scenes! {
    // R2, R14, R39
    fn the_machine_is_watched_by_the_best_hook() unless no_bpf() => evicts_on(None);
    fn the_machine_is_watched_by_the_sampler() unless not_root() => evicts_on(Some(MemoryHook::Sampler));
}

/// Little is left on a machine, and 100Mi of it are asked for, which is what the memory guard keeps too: the agent is in time all the same.
fn a_hog_goes_where_little_is_left(hog: [&str; 2]) {
    // Other programs use the machine's memory.
    skip_if!(not_in_guest());
    let scope = TestCgroup::new("machine-small", node::machine().unwrap().1).unwrap();
    let pod = |name| json!({ "name": name, "cgroup": name });
    let pods = Vec::from_iter(NEIGHBOURS.into_iter().chain(["hog"]).map(pod));
    let mut files = Files::new(scope.path(), &json!(pods));
    let start = |name: &str, arguments: &[&str]| {
        Hog::start(&scope.child(name).unwrap(), arguments).unwrap()
    };
    let holds = |name: &str, mib: u64| {
        let hog = start(name, &["--mib", &mib.to_string()]);
        assert!(holds(&scope.path().join(name), mib));
        hog
    };
    let mut neighbours = NEIGHBOURS.map(|name| holds(name, EACH));
    let _daemon = holds("system", node::mem_available() / MIB - 350);
    scope.child("hog").unwrap();
    follow_the_machine(&mut files, scope.path(), 100 * MIB);
    let kills = oom_kills_of_machine(Path::new("/proc")).unwrap();
    let _agent = files.start(&[]);
    let _hog = start("hog", &[&["--mib", "4000"], &hog[..]].concat());
    one_goes(&files);
    std::thread::sleep(MOMENT);
    assert_eq!(files.evicted(), ["hog"], "{}", pace_inputs(&files));
    assert_eq!(alive(&mut neighbours), NEIGHBOURS.len());
    assert_eq!(oom_kills_of_machine(Path::new("/proc")).unwrap(), kills);
}

scenes! {
    fn a_hog_at_full_speed_goes_alone_where_little_is_left() => a_hog_goes_where_little_is_left(["--rate", "0"]);
    fn a_hog_of_many_processes_goes_alone_where_little_is_left() => a_hog_goes_where_little_is_left(["--way", "processes"]);
}
