//! The machine as the scope: what the kubelet calls `memory.available` of the node.
//!
//! Other programs use the machine's memory too while these tests run; the threshold is laid so far above them that
//! only the tests' own hog can come near it, and only the tests' own pods can be killed.

use evictd_tests::{
    cgroup::oom_kills_of_machine,
    node::{self, Options},
    prelude::*,
};

fn evicts_on(hook: Option<MemoryHook>) {
    let (root, total) = node::machine().unwrap();
    let available = total - root.read().unwrap().working_set();
    // Half of what is left on a small machine; on a large one as much as a hog fills in a second.
    let room = (available / 2).min(768 * MIB);
    let mut node = Node::new("machine", total / MIB).unwrap();
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
