//! The last bytes of the agent's scope: what the memory guard keeps, and the kernel's floor below it.

use evictd_node::cgroup::memory::Version;
use evictd_tests::prelude::*;

/// Starts a pod that writes a file in a small scope of v1; whether it was evicted within a second of being done.
fn evicted_while_it_writes(guard: bool) -> bool {
    let mut files = Files::of_hog("writer", 320);
    files.config["memoryGuard"] = json!({ "enabled": guard });
    let _agent = files.start(&[]);
    // Half of it is a file: 150 MiB that can be freed in the end, and nothing of it before it was written.
    let arguments = ["--way", "cache", "--dir", "/var/tmp", "--mib", "305"];
    let mut writer = files.hog("hog", &arguments);
    let scope = files.scope();
    let is_done = || !writer.is_alive() || scope.usage().unwrap() > 300 * MIB;
    assert!(until(Duration::from_secs(30), is_done));
    std::thread::sleep(Duration::from_secs(1));
    let is_dead = !writer.is_alive();
    let records = files.records();
    let evicted = !records_of!(&records, Record::Evicted(_)).is_empty();
    assert_eq!(evicted, is_dead, "{records:?}");
    assert_eq!(scope.oom_kills().unwrap(), 0);
    evicted
}

// Where nothing but page cache is left that has to be written first, v1's OOM killer comes. A busy flusher may be faster than
// the writer, but not always.
#[test]
fn what_has_to_be_written_first_is_not_available() {
    let any = as_root!(TestCgroup::new("version", 64 * MIB).unwrap());
    skip_if!((any.version() == Version::V2).then_some("writers wait on cgroup v2"));
    assert!((0..20).any(|_| evicted_while_it_writes(true)));
    assert!(!evicted_while_it_writes(false), "the kubelet's count");
}

/// Stops the agent in the middle of a ramp. Its program stays in the kernel and kills what allocates past the floor.
fn stop_in_a_ramp(floor: bool) {
    let mut files = Files::of_hog_and_calm("floor", 256);
    files.config["kernelFloor"] = json!({ "enabled": floor, "memory.available": "32Mi" });
    let mut calm = files.hog("calm", &["--mib", "40"]);
    let agent = files.start(&[]);
    let mut hog = files.hog("hog", &["--mib", "1000", "--rate", "60"]);
    let scope = files.scope();
    while scope.usage().unwrap() < 120 * MIB {
        std::thread::sleep(Duration::from_millis(1));
    }
    agent.stop().unwrap();
    hog.killed();
    let kills = scope.oom_kills().unwrap();
    assert_eq!(kills, u64::from(!floor));
    assert!(calm.is_alive());
    agent.go_on().unwrap();
    drop(agent);
    // What the OOM killer did while the agent could not act is in the journal afterwards.
    let told = records_of!(files.records(), Record::OomKill(k) if k.was_first);
    assert_eq!(told.len() as u64, kills);
    // And what the kernel's floor did: the pod is an evicted pod like others.
    let evicted = files.evicted();
    let told = evicted.iter().filter(|name| *name == "hog");
    assert_eq!(told.count(), usize::from(floor));
}

scenes! {
    // R41, R48
    fn the_floor_holds_while_the_agent_is_stopped() unless no_bpf() => stop_in_a_ramp(true);
    // R41, R48: and this is what happens without it.
    fn without_the_floor_the_oom_killer_is_first() unless no_bpf() => stop_in_a_ramp(false);
}
