//! A disk that does not answer: the state directory lies on a filesystem whose writes wait.

use std::os::unix::fs::symlink;

use evictd_tests::{prelude::*, scrape::get};

// R42
#[test]
fn a_disk_that_hangs_delays_reports_and_no_eviction() {
    let disk = or_skip!(Disk::new("ext4", 64, 4096));
    let mut member = ClusterNode::new("hangs", 256).unwrap();
    let state = disk.path().join("state");
    fs::create_dir(&state).unwrap();
    symlink(&state, member.dir().join("state")).unwrap();
    let health = listen(&mut member.config, "healthAddress");
    let shown = listen(&mut member.config, "metricsAddress");
    let first = member.best_effort("first", 1);
    let agent = member.start().unwrap();

    let frozen = disk.freeze().unwrap();
    Hog::until_killed(&first, &["--mib", "1024"]);
    // The kubelet looks at its containers each second: what has ended the pod is said before it is on disk.
    let announced = |m: &ClusterNode| m.server.count("PATCH", "/pods/first/status") == 1;
    assert!(member.wait(SOON, announced));
    assert!(member.records().is_empty());
    assert!(agent.says("the disk does not answer"));
    // A pod that comes now is known, and evicted like any other.
    let second = member.best_effort("second", 2);
    Hog::until_killed(&second, &["--mib", "1024"]);
    assert!(agent.log().contains("default/second"));
    for path in ["/healthz", "/readyz"] {
        let answer = get(&health, path).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
    }
    let waiting = || value(&shown, "evictd_disk_queue{kind=\"record\"}");
    assert!(waiting() >= Some(2), "{:?}", waiting());
    // Nothing else is reported that is not on disk.
    assert_eq!(member.server.count("DELETE", ""), 0);
    assert!(member.records().is_empty());

    drop(frozen);
    assert_eq!(member.outcomes(2).len(), 2);
    assert!(until(SOON, || waiting() == Some(0)));
    // Each once, in their order.
    assert_eq!(member.evicted(2), ["first", "second"]);
    for path in ["/pods/first", "/pods/second"] {
        assert_eq!(member.server.count("DELETE", path), 1, "{path}");
        assert_eq!(member.server.count("PATCH", path), 1, "{path}");
    }
    assert!(agent.says("the disk answers again"));
    assert_eq!(
        value(&shown, "evictd_journal_records_dropped_total"),
        Some(0)
    );
    let finished = || records_of!(member.records(), Record::Finished(_)).len();
    assert!(until(SOON, || finished() == 2));

    // What the disk has not taken when the agent ends is reported all the same: the kubelet would start the pod again.
    let third = member.best_effort("third", 3);
    let frozen = disk.freeze().unwrap();
    Hog::until_killed(&third, &["--mib", "1024"]);
    assert!(until(SOON, || waiting() >= Some(1)));
    agent.ask_to_end().unwrap();
    assert!(agent.says("the agent has stopped"));
    assert_eq!(member.server.count("DELETE", "/pods/third"), 1);
    drop(frozen);
}
