//! `mode` and `rankingStrategy` by `evictd run` as a process, where memory is short and nothing grows: which pods go, and how
//! far apart.

use evictd_tests::{cgroup::holds, prelude::*, scenes};

/// The kubelet's interval, in nanoseconds.
const INTERVAL: u64 = 10_000_000_000;

/// Starts pods of so many MiB, and then the agent: those that are expected go, and no others. The first one goes ten seconds after the
/// agent's start at the earliest, each other one ten seconds after the one before.
#[track_caller]
fn expect_in_turn(files: &Files, pods: &[(&str, u64)], expected: &[&str]) {
    let start = |(name, mib): &(&str, u64)| files.hog(name, &["--mib", &mib.to_string()]);
    let mut hogs: Vec<Hog> = pods.iter().map(start).collect();
    for (name, mib) in pods {
        assert!(holds(&files.cgroup(name), *mib));
    }
    let started = monotonic_ns();
    let _agent = files.start(&[]);
    assert!(
        until(SOON, || files.evicted().len() >= expected.len()),
        "{:?}",
        files.evicted()
    );
    // Then no other pod is due.
    let is_enough = |id: &str| {
        let records = files.records();
        !records_of!(&records, Record::Finished(f) if f.id == id && f.freed > 0).is_empty()
    };
    let last = files.evictions().pop().expect("the last one");
    assert!(until(SOON, || is_enough(&last.id)), "{:?}", files.records());
    assert_eq!(files.evicted(), expected);
    let mut before = started;
    for eviction in files.evictions() {
        let at = eviction.stages.signalled;
        assert!(at - before >= INTERVAL, "{started}: {eviction:?}");
        assert!(!eviction.pace.as_ref().expect("why then").urgent);
        before = at;
    }
    for ((name, _), hog) in pods.iter().zip(&mut hogs) {
        match expected.contains(name) {
            true => hog.killed(),
            false => assert!(hog.is_alive(), "{name}"),
        }
    }
    assert_eq!(files.scope().oom_kills().unwrap(), 0);
}

/// The static pod uses most. With it the shortage ends, of the others it takes two.
// R12, R43
#[test]
fn in_the_kubelets_mode_static_pods_stay_and_others_go_one_in_ten_seconds() {
    skip_if!(not_root());
    for (mode, expected) in [("evictd", &["static"][..]), ("kubelet", &["one", "two"])] {
        let pods = [("static", 150), ("one", 100), ("two", 95)];
        let pod = |(name, _)| json!({ "name": name, "cgroup": name, "static": name == "static" });
        let mut files = Files::of("modes", 512, &json!(pods.map(pod)));
        files.config["mode"] = json!(mode);
        files.config["evictionHard"] = json!({ "memory.available": "300Mi" });
        expect_in_turn(&files, &pods, expected);
    }
}

/// The pods may use 320 of 512 MiB together, and daemons of the node use so many MiB beside them. The Guaranteed pod uses most.
fn go_by(strategy: &str, daemons: u64, expected: &[&str]) {
    let pods = [("guaranteed", 120), ("burstable", 70), ("besteffort", 50)];
    let cgroup = |name: &str| format!("kubepods.slice/{name}");
    let pods_of_manifest = json!([
        { "name": "guaranteed", "cgroup": cgroup("guaranteed"), "limits": { "memory": "150Mi" } },
        { "name": "burstable", "cgroup": cgroup("burstable"), "requests": { "memory": "10Mi" } },
        { "name": "besteffort", "cgroup": cgroup("besteffort") },
    ]);
    let mut files = Files::of("strategies", 512, &pods_of_manifest);
    let scope = files.scope();
    scope.limit_child("kubepods.slice", 320 * MIB).unwrap();
    let system = scope.child("system.slice").unwrap();
    let _daemons = Hog::start(&system, &["--mib", &daemons.to_string()]).unwrap();
    assert!(holds(&system, daemons));
    files.config["rankingStrategy"] = json!(strategy);
    files.config["evictionHard"] = json!({ "memory.available": "180Mi" });
    expect_in_turn(&files, &pods, expected);
}

scenes! {
    // R20, R43
    fn pods_go_in_the_kubelets_order() unless not_root() => go_by("kubelet", 0, &["burstable", "besteffort"]);
    // R20, R43
    fn pods_go_by_what_they_use() unless not_root() => go_by("usage", 0, &["guaranteed"]);
    // R20, R43
    fn pods_go_by_their_class() unless not_root() => go_by("qos", 0, &["besteffort", "burstable"]);
    // R20, R43: the daemons use more than is reserved for them, and the Guaranteed pod goes too, last all the same.
    fn a_guaranteed_pod_goes_for_daemons_above_their_reservation() unless not_root() => go_by("qos", 230, &["besteffort", "burstable", "guaranteed"]);
}
