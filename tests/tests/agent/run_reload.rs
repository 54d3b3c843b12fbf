//! The configuration changes while the agent runs.

use std::{fs, process::Command, time::Duration};

use evictd_store::record::Record;
use evictd_tests::{
    agent::{Agent, binary},
    cgroup::TestCgroup,
    embedded::Files,
    hog::Hog,
    node::MIB,
    scrape::{free_address, metrics},
    skip::not_root,
    skip_if,
    wait::until,
};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(30);

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
    let records = files.wait_for(2);
    let [Record::MetInForce(_), Record::Evicted(eviction), ..] = &records[..] else {
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
    let is_evicted = |records: &[Record]| records.iter().any(|r| matches!(r, Record::Evicted(_)));
    assert!(until(SOON, || is_evicted(&files.records())));
    let mut records = files.records();
    records.retain(|record| !matches!(record, Record::ShadowNode(_)));
    assert!(
        matches!(&records[..], [Record::MetInForce(_), Record::Evicted(e)] if e.shadow),
        "{records:?}"
    );
    assert!(hog.is_alive());
    files.config["shadow"] = json!(false);
    files.write().unwrap();
    assert_eq!(hog.wait().unwrap(), Some(libc::SIGKILL));
    assert_eq!(agent.terminate().unwrap(), Some(0));
}

/// A node without a guard because of a path would be worse than one with the kubelet's defaults.
#[test]
fn a_kubelet_configuration_that_is_missing_is_taken_when_it_comes() {
    skip_if!(not_root());
    let scope = TestCgroup::new("nokubelet", 256 * MIB).unwrap();
    let mut files = Files::new(scope.path(), &json!([]));
    let address = free_address().unwrap();
    files.config["metricsAddress"] = json!(address);
    files.config.as_object_mut().unwrap().remove("evictionHard");
    let kubelet = files.dir().join("kubelet.yaml");
    let kubelet_config = ["--kubelet-config", kubelet.to_str().unwrap()];
    let mut agent = files.start(&kubelet_config);
    let shows = |line: &str| {
        let shown = || metrics(&address).is_ok_and(|text| text.lines().any(|l| l == line));
        until(Duration::from_secs(30), shown)
    };
    let memory = |mib: u64| {
        let bytes = mib * MIB;
        format!("evictd_threshold{{signal=\"memory.available\",hard=\"true\"}} {bytes}")
    };
    let source = |name: &str| format!("evictd_kubelet_configuration{{source=\"{name}\"}} 1");
    assert!(shows(&memory(100)) && shows(&source("defaults")));
    let log = agent.log();
    let said = log.lines().find(|l| l.contains("kubelet.yaml"));
    let said = said.unwrap_or_else(|| panic!("{log}"));
    for part in ["WARN", "No such file", "the kubelet's defaults hold"] {
        assert!(said.contains(part), "{said}");
    }

    let write = |text: &str| fs::write(&kubelet, text).unwrap();
    write("kind: KubeletConfiguration\nevictionHard: {memory.available: 64Mi}\n");
    assert!(shows(&memory(64)) && shows(&source("file")));
    // What cannot be used changes nothing.
    write("kind: KubeletConfiguration\nevictionHard: {memory.available: ten}\n");
    assert!(shows("evictd_configuration_refused_total 1"));
    assert!(shows(&memory(64)));
    // Gone again: what it said stays in force, and evictd's own file is followed.
    fs::remove_file(&kubelet).unwrap();
    assert!(shows(&source("lastRead")));
    files.config["evictionHard"] = json!({ "memory.available": "48Mi" });
    files.write().unwrap();
    assert!(shows(&memory(48)));
    files.config.as_object_mut().unwrap().remove("evictionHard");
    files.write().unwrap();
    assert!(shows(&memory(64)));
    assert_eq!(agent.terminate().unwrap(), Some(0));

    let check = Command::new(binary().unwrap())
        .args(["check", "-o", "json", "--config"])
        .arg(files.write().unwrap())
        .args(kubelet_config)
        .output()
        .unwrap();
    let check: Value = serde_json::from_slice(&check.stdout).unwrap();
    let findings = check["findings"].as_array().unwrap();
    let found = findings
        .iter()
        .find(|f| f["topic"] == "kubelet configuration");
    let found = found.unwrap_or_else(|| panic!("{check:#}"));
    assert_eq!(found["state"], "degraded");
    let detail = found["detail"].as_str().unwrap();
    assert!(detail.contains("kubelet.yaml: No such file"), "{detail}");
}

/// A file that is there and wrong is a mistake, and the field is named.
#[test]
fn a_kubelet_configuration_with_a_mistake_is_refused() {
    skip_if!(not_root());
    let scope = TestCgroup::new("wrongkubelet", 256 * MIB).unwrap();
    let files = Files::new(scope.path(), &json!([]));
    let kubelet = files.dir().join("kubelet.yaml");
    let text = "kind: KubeletConfiguration\nevictionHard: {memory.available: ten}\n";
    fs::write(&kubelet, text).unwrap();
    let mut config = files.config.clone();
    config.as_object_mut().unwrap().remove("evictionHard");
    let path = files.dir().join("own.json");
    fs::write(&path, config.to_string()).unwrap();
    let output = Command::new(binary().unwrap())
        .args(["run", "--config"])
        .arg(&path)
        .arg("--kubelet-config")
        .arg(&kubelet)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("evictd: evictionHard"), "{said}");
}
