//! Two scopes in one fast path: the node, and the cgroup of all its pods (`allocatableMemory.available`).

use evictd_fastpath::FastPathEvent;
use evictd_tests::{node::Options, prelude::*};

/// A node of 512 MiB whose pods may use 320 MiB together, and two of its pods.
fn node(name: &str) -> (Node, PathBuf, PathBuf) {
    let mut node = Node::new(name, 512).unwrap();
    let hog = node.pod_in("kubepods", "hog", QosClass::BestEffort, 0, 0);
    let calm = node.pod_in("kubepods", "calm", QosClass::Burstable, 0, 64 * MIB);
    node.cgroup.limit_child("kubepods", 320 * MIB).unwrap();
    (node, hog, calm)
}

/// The pods' cgroup runs short while the node has plenty: the signal, its capacity and its threshold are those of the
/// pods' cgroup.
fn pods_alone_on(hook: MemoryHook) {
    let (node, hog_dir, calm_dir) = node("podsalone");
    let options = Options {
        hook: Some(hook),
        pods_threshold: Some(96 * MIB),
        ..Options::at(48)
    };
    let mut calm = Hog::start(&calm_dir, &["--mib", "40"]).unwrap();
    let watched = or_skip!(node.watch(options).unwrap());
    let mut hog = Hog::start(&hog_dir, &["--mib", "1000", "--rate", "400"]).unwrap();
    let evicted = watched.evicts("hog");
    assert_eq!(evicted.signal, Signal::AllocatableMemoryAvailable);
    assert_eq!((evicted.capacity, evicted.threshold), (320 * MIB, 96 * MIB));
    assert!(evicted.available < evicted.threshold);
    let finished = watched.finished(SOON).expect("its end is seen");
    assert!(finished.threshold_cleared >= finished.exited && finished.exited > 0);
    hog.killed();
    assert!(calm.is_alive());
    assert!(watched.report(Duration::from_millis(200)).is_none());
    assert_eq!(node.cgroup.oom_kills().unwrap(), 0);
    let past = (evicted.threshold - evicted.available) >> 10;
    matrix(
        "allocatableMemory.available",
        &hook.to_string(),
        &format!("woken by {}, {past} KiB past the threshold", evicted.hook),
    );
}

scenes! {
    // R1, R14, R39
    fn pods_alone_fexit() unless no_bpf() => pods_alone_on(MemoryHook::Fexit);
    fn pods_alone_kprobe() unless no_bpf() => pods_alone_on(MemoryHook::Kprobe);
    fn pods_alone_tracepoint() unless no_bpf() => pods_alone_on(MemoryHook::Tracepoint);
    fn pods_alone_eventfd() unless not_root() => pods_alone_on(MemoryHook::Eventfd);
    fn pods_alone_sampler() unless not_root() => pods_alone_on(MemoryHook::Sampler);
}

/// What is charged outside the pods' cgroup is the node's pressure alone.
#[test]
fn the_node_alone() {
    let (node, hog_dir, _) = as_root!(node("nodealone"));
    let system = node.cgroup.child("system").unwrap();
    let options = Options {
        pods_threshold: Some(48 * MIB),
        ..Options::default()
    };
    let mut hog = Hog::start(&hog_dir, &["--mib", "100"]).unwrap();
    let watched = node.watched(options);
    let _system = Hog::start(&system, &["--mib", "340"]).unwrap();
    let evicted = watched.evicts("hog");
    assert_eq!(evicted.signal, Signal::MemoryAvailable);
    assert_eq!(evicted.capacity, 512 * MIB);
    hog.killed();
    assert_eq!(node.cgroup.oom_kills().unwrap(), 0);
}

/// Both run short at the same moment; what the one victim gives back is enough for both.
fn both_at_once_on(hook: Option<MemoryHook>, shadow: bool) {
    let (node, hog_dir, calm_dir) = node("both");
    // 240 MiB used: 272 of 512 are available on the node, and 80 of 320 to the pods.
    let options = Options {
        hook,
        pods_threshold: Some(80 * MIB),
        shadow,
        ..Options::at(272)
    };
    let mut calm = Hog::start(&calm_dir, &["--mib", "60"]).unwrap();
    let mut hog = Hog::start(&hog_dir, &["--mib", "200", "--wait"]).unwrap();
    let watched = or_skip!(node.watch(options).unwrap());
    hog.go().unwrap();
    assert_eq!(watched.evicts("hog").outcome.is_shadow(), shadow);
    if !shadow {
        watched.finished(SOON).expect("its end is seen");
        hog.killed();
    }
    let more = watched.report(Duration::from_millis(500));
    assert!(more.is_none(), "one pressure, one victim: {more:?}");
    assert_eq!(hog.is_alive(), shadow);
    assert!(calm.is_alive());
    assert_eq!(node.cgroup.oom_kills().unwrap(), 0);
}

scenes! {
    // R43
    fn one_victim_for_both() unless not_root() => both_at_once_on(None, false);
    fn one_victim_for_both_eventfd() unless not_root() => both_at_once_on(Some(MemoryHook::Eventfd), false);
    fn one_victim_for_both_sampler() unless not_root() => both_at_once_on(Some(MemoryHook::Sampler), false);
    // R47
    fn one_decision_for_both_in_shadow_mode() unless not_root() => both_at_once_on(None, true);
}

/// The fast path has a threshold that is never met, so that only the kernel's program can be what kills: each scope's floor
/// is a trigger of its own.
fn floor_of(threshold_of_pods: bool) {
    let (node, hog_dir, calm_dir) = node("floors");
    let (floor, pods_floor) = match threshold_of_pods {
        false => (Some(220 * MIB), None),
        true => (None, Some(120 * MIB)),
    };
    let options = Options {
        pods_threshold: Some(MIB),
        floor,
        pods_floor,
        ..Options::at(1)
    };
    let mut calm = Hog::start(&calm_dir, &["--mib", "40"]).unwrap();
    let watched = node.watched(options);
    if !watched.hook.has_program() {
        return skip_if!(Some(format!("the {} hook has no floor", watched.hook)));
    }
    Hog::until_killed(&hog_dir, &["--mib", "300", "--rate", "200"]);
    assert!(calm.is_alive());
    assert!(node.cgroup.usage().unwrap() < 310 * MIB);
    assert_eq!(node.cgroup.oom_kills().unwrap(), 0);
    // The pod is an evicted pod like others.
    let evicted = watched.evicts("hog");
    assert!(evicted.by_kernel && evicted.available < evicted.threshold);
    let is_of_pods = evicted.signal == Signal::AllocatableMemoryAvailable;
    assert_eq!(is_of_pods, threshold_of_pods);
    assert!(watched.finished(SOON).is_some());
    assert!(watched.report(Duration::from_millis(50)).is_none());
}

scenes! {
    // R41
    fn the_nodes_floor() unless no_bpf() => floor_of(false);
    fn the_pods_floor() unless no_bpf() => floor_of(true);
}

/// The pods' cgroup is removed while it is watched: it is said once, and the node's watch goes on.
#[test]
fn a_pods_cgroup_that_goes_away() {
    let (node, ..) = as_root!(node("goes"));
    let options = Options {
        pods_threshold: Some(48 * MIB),
        ..Options::default()
    };
    let watched = node.watched(options);
    let pods = node.cgroup.path().join("kubepods");
    let mut dirs = evictd_tests::cgroup::descendants(&pods).unwrap();
    dirs.reverse();
    for dir in dirs {
        fs::remove_dir(dir).unwrap();
    }
    let report = watched.report(SOON).expect("it is said");
    let FastPathEvent::ScopeGone { signal, .. } = report else {
        panic!("{report:?}");
    };
    assert_eq!(signal, Signal::AllocatableMemoryAvailable);
    let system = node.cgroup.child("system").unwrap();
    let _hog = Hog::start(&system, &["--mib", "450"]).unwrap();
    let (signal, _) = watched.has_no_candidates();
    assert_eq!(signal, Signal::MemoryAvailable);
}
