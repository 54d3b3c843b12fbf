//! The configuration changes while the agent runs.

use std::{fs, time::Duration};

use evictd::evict::journal::Record;
use evictd_tests::{
    agent::Agent, cgroup::TestCgroup, embedded::Files, hog::Hog, node::MIB, skip::not_root, skip_if,
};
use serde_json::json;

/// A node of 256 MiB whose hog uses 120 MiB: the first threshold lets it live, the second does not.
fn running(name: &str) -> (TestCgroup, Files, Agent, Hog) {
    let scope = TestCgroup::new(name, 256 * MIB).unwrap();
    let dir = scope.child("besteffort/hog").unwrap();
    let pods = json!([{ "name": "hog", "cgroup": "besteffort/hog" }]);
    let files = Files::new(scope.path(), &pods);
    let agent = files.start(&[]);
    let hog = Hog::start(&dir, &["--mib", "120"]).unwrap();
    (scope, files, agent, hog)
}

#[test]
fn a_changed_threshold_is_in_force() {
    skip_if!(not_root());
    let (_scope, mut files, mut agent, mut hog) = running("reload");
    files.config["evictionHard"] = json!({ "memory.available": "180Mi" });
    files.write().unwrap();
    assert_eq!(hog.wait().unwrap(), Some(libc::SIGKILL));
    let records = files.wait_for(1);
    let Some(Record::Evicted(eviction)) = records.first() else {
        panic!("{records:?}");
    };
    assert_eq!(eviction.threshold, 180 * MIB);
    assert!(
        eviction.message.contains("Threshold quantity: 180Mi"),
        "{}",
        eviction.message
    );
    assert_eq!(agent.terminate().unwrap(), Some(0));
}

/// What cannot be used changes nothing, and what comes after it does.
#[test]
fn a_mistake_leaves_the_last_good_one_in_force() {
    skip_if!(not_root());
    let (_scope, mut files, mut agent, mut hog) = running("mistake");
    let path = files.write().unwrap();
    for mistake in [
        "evictionHard: [",
        "evictionHard: {memory.available: 1Gi}",
        "colour: 1",
    ] {
        fs::write(&path, mistake).unwrap();
        std::thread::sleep(Duration::from_millis(1500));
        assert!(hog.is_alive() && files.records().is_empty(), "{mistake}");
    }
    files.config["evictionHard"] = json!({ "memory.available": "180Mi" });
    files.write().unwrap();
    assert_eq!(hog.wait().unwrap(), Some(libc::SIGKILL));
    assert_eq!(agent.terminate().unwrap(), Some(0));
}

// R47
#[test]
fn shadow_mode_can_be_left_and_entered() {
    skip_if!(not_root());
    let (_scope, mut files, mut agent, mut hog) = running("reshadow");
    files.config["shadow"] = json!(true);
    files.config["evictionHard"] = json!({ "memory.available": "180Mi" });
    files.write().unwrap();
    let records = files.wait_for(1);
    assert!(
        matches!(&records[..], [Record::Evicted(e)] if e.shadow),
        "{records:?}"
    );
    assert!(hog.is_alive());
    files.config["shadow"] = json!(false);
    files.write().unwrap();
    assert_eq!(hog.wait().unwrap(), Some(libc::SIGKILL));
    assert_eq!(agent.terminate().unwrap(), Some(0));
}
