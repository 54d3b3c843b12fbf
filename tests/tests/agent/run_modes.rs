//! `mode` and `rankingStrategy` by `evictd run` as a process, where memory is short and nothing grows: which pods go, and how
//! far apart.

use evictd_tests::{cgroup::holds, prelude::*};

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
    // Whatever else there might be to come.
    std::thread::sleep(Duration::from_secs(2));
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

/// The pods may use 320 of 512 MiB together, and daemons of the node may use the rest. The Guaranteed pod uses most. In the last row
/// the daemons use more than that: it goes too, and last all the same.
// R20, R43
#[test]
fn each_strategy_takes_the_pods_in_its_own_order() {
    skip_if!(not_root());
    for [strategy, daemons, expected] in rows(
        "
        kubelet | 0 | burstable besteffort
        usage | 0 | guaranteed
        qos | 0 | besteffort burstable
        qos | 230 | besteffort burstable guaranteed
        ",
    ) {
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
        let _daemons = Hog::start(&system, &["--mib", daemons]).unwrap();
        assert!(holds(&system, daemons.parse().unwrap()));
        files.config["rankingStrategy"] = json!(strategy);
        files.config["evictionHard"] = json!({ "memory.available": "180Mi" });
        let expected: Vec<&str> = expected.split(' ').collect();
        expect_in_turn(&files, &pods, &expected);
    }
}
