//! The configuration changes while the agent runs.

use evictd_tests::{
    cgroup::holds, policies::document, policy_fixture::always, prelude::*, scrape::get,
};
use nix::{sys::stat, unistd::mkfifo};

/// A node of 256 MiB whose hog uses 120 MiB: the first threshold lets it live, the second does not.
fn running(name: &str) -> (Files, Agent, Hog) {
    let mut files = Files::of_hog(name, 256);
    listen(&mut files.config, "metricsAddress");
    let agent = files.start(&[]);
    let hog = files.hog("hog", &["--mib", "120"]);
    (files, agent, hog)
}

/// The threshold of the pods' cgroup goes with the node's that it follows from, and comes with it. A change of other fields is none.
#[test]
fn the_threshold_of_the_pods_cgroup_comes_and_goes() {
    let pods = json!([{ "name": "hog", "cgroup": "kubepods.slice/hog" }]);
    let mut files = as_root!(Files::of("podsreload", 512, &pods));
    let limited = files.scope().limit_child("kubepods.slice", 256 * MIB);
    limited.unwrap();
    files.config["evictionHard"] = json!({ "memory.available": "25%" });
    let agent = files.start(&[]);
    let changes = |agent: &Agent| agent.log().matches("has changed and is in force").count();
    let watched = |agent: &Agent| agent.log().matches("the pods' cgroup is watched").count();

    files.change("shadow", json!(true));
    assert!(until(SOON, || changes(&agent) == 1));
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(watched(&agent), 0);

    files.config["shadow"] = json!(false);
    files.change("evictionHard", json!({ "nodefs.available": "1" }));
    assert!(until(SOON, || watched(&agent) == 1));
    // Below the threshold that is no longer there: 240 of 256 MiB.
    let mut hog = files.hog("hog", &["--mib", "240"]);
    assert!(holds(&files.cgroup("hog"), 240));
    std::thread::sleep(Duration::from_secs(1));
    assert!(hog.is_alive() && files.records().is_empty());

    files.change("evictionHard", json!({ "memory.available": "10%" }));
    hog.killed();
    let records = files.wait_for(2);
    let [Record::MetInForce(_), Record::Evicted(eviction), ..] = &records[..] else {
        panic!("{records:?}");
    };
    assert_eq!(eviction.signal, "allocatableMemory.available");
}

/// SIGHUP does not wait for a change.
#[test]
fn a_configuration_is_read_again_where_that_is_asked_for() {
    let files = as_root!(Files::of("hangup", 256, &json!([])));
    let agent = files.start(&[]);
    let path = files.dir().join("config.json");
    // The same time, so that no look sees a change.
    let before = fs::metadata(&path).unwrap().modified().unwrap();
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("64Mi", "48Mi")).unwrap();
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.set_modified(before).unwrap();
    std::thread::sleep(Duration::from_secs(3));
    assert!(!agent.log().contains("is in force"));
    agent.reload().unwrap();
    assert!(agent.says("the configuration has changed and is in force"));
}

/// A named pipe without a writer, as a disk that does not answer.
#[test]
fn files_that_do_not_answer_hold_up_no_eviction() {
    let mut files = as_root!(Files::of_hog_and_calm("hungfiles", 256));
    let health = listen(&mut files.config, "healthAddress");
    let policies = files.dir().join("policies.yaml");
    let policy = document("all", always(&json!([])));
    fs::write(&policies, policy.to_string()).unwrap();
    files.config["policies"] = json!([policies]);
    let agent = files.start(&[]);
    let config = files.write().unwrap();
    for path in [&config, &policies] {
        fs::remove_file(path).unwrap();
        mkfifo(path, stat::Mode::S_IRWXU).unwrap();
    }
    // They are seen to have changed, twice.
    std::thread::sleep(Duration::from_secs(4));
    agent.reload().unwrap();
    files.until_killed("hog", &["--mib", "1000"]);
    assert!(until(SOON, || files.evictions().len() == 1));
    let answer = get(&health, "/readyz").unwrap();
    begins(&answer, "HTTP/1.1 200");
    // They answer: what they hold is in force.
    files.config["shadow"] = json!(true);
    fs::write(&config, files.config.to_string()).unwrap();
    assert!(agent.says("the configuration has changed and is in force"));
    fs::write(&policies, policy.to_string()).unwrap();
    assert!(agent.says("the policies were read again"));
}

/// What cannot be used changes nothing, and what comes after it does.
#[test]
fn a_mistake_leaves_the_last_good_one_in_force() {
    let (mut files, agent, mut hog) = as_root!(running("mistake"));
    let path = files.write().unwrap();
    let address = files.config["metricsAddress"].as_str().unwrap().to_owned();
    let is_refused = |gauge: u8| {
        let line = format!("evictd_config_refused {gauge}");
        until(SOON, || shows(&address, &line))
    };
    assert!(is_refused(0));
    let mistakes = [
        // A shell truncates a file before it writes it.
        "",
        "evictionHard: [",
        "evictionHard: {memory.available: 1Gi}",
        "colour: 1",
    ];
    for (number, mistake) in (1..).zip(mistakes) {
        fs::write(&path, mistake).unwrap();
        let refused = format!("evictd_config_reloads_total{{result=\"failure\"}} {number}");
        assert!(until(SOON, || shows(&address, &refused)), "{mistake}");
        assert!(is_refused(1), "{mistake}");
        assert!(hog.is_alive() && files.records().is_empty(), "{mistake}");
    }
    assert!(agent.log().contains("the file is empty"));
    // The one in force again, which is no change.
    files.write().unwrap();
    assert!(is_refused(0));
    fs::write(&path, mistakes[0]).unwrap();
    assert!(is_refused(1));
    files.change("evictionHard", json!({ "memory.available": "180Mi" }));
    hog.killed();
    assert!(is_refused(0));
    let records = files.wait_for(2);
    let [Record::MetInForce(_), Record::Evicted(eviction), ..] = &records[..] else {
        panic!("{records:?}");
    };
    assert_eq!(eviction.threshold, 180 * MIB);
    has(&eviction.message, &["Threshold quantity: 180Mi"]);
}

// R47
#[test]
fn an_emptied_file_does_not_end_shadow_mode() {
    let mut files = as_root!(Files::of("emptied", 256, &json!([])));
    let address = listen(&mut files.config, "metricsAddress");
    files.config["shadow"] = json!(true);
    let agent = files.start(&[]);
    fs::write(files.dir().join("config.json"), "").unwrap();
    assert!(until(SOON, || shows(&address, "evictd_config_refused 1")));
    // Further looks find the same file.
    std::thread::sleep(Duration::from_secs(4));
    assert!(shows(&address, "evictd_config_refused 1") && shows(&address, "evictd_shadow_mode 1"));
    assert_eq!(agent.log().matches("the file is empty").count(), 1);
}

// R47
#[test]
fn shadow_mode_can_be_left_and_entered() {
    let (mut files, _agent, mut hog) = as_root!(running("reshadow"));
    let address = files.config["metricsAddress"].as_str().unwrap().to_owned();
    let is_shown = |is_on: u8| {
        let line = format!("evictd_shadow_mode {is_on}");
        until(SOON, || shows(&address, &line))
    };
    assert!(is_shown(0));
    files.config["shadow"] = json!(true);
    files.change("evictionHard", json!({ "memory.available": "180Mi" }));
    let is_evicted = |records: &[Record]| records.iter().any(|r| matches!(r, Record::Evicted(_)));
    assert!(until(SOON, || is_evicted(&files.records())));
    let mut records = files.records();
    records.retain(|record| !matches!(record, Record::ShadowNode(_)));
    assert!(
        matches!(&records[..], [Record::MetInForce(met), Record::Evicted(e)] if met.shadow && e.shadow && e.phase.is_none()),
        "{records:?}"
    );
    assert!(hog.is_alive() && is_shown(1));
    files.change("shadow", json!(false));
    hog.killed();
    assert!(is_shown(0));
}

#[test]
fn an_agent_that_leaves_shadow_mode_says_that_it_has_no_guard() {
    let mut files = as_root!(Files::of("unguarded", 256, &json!([])));
    files.config["shadow"] = json!(true);
    let agent = files.start(&[]);
    files.change("shadow", json!(false));
    assert!(agent.says("the pinned guard is installed at the next start"));
}

/// A node without a guard because of a path would be worse than one with the kubelet's defaults.
#[test]
fn a_kubelet_configuration_that_is_missing_is_taken_when_it_comes() {
    let mut files = as_root!(Files::of("nokubelet", 256, &json!([])));
    let address = listen(&mut files.config, "metricsAddress");
    files.config.as_object_mut().unwrap().remove("evictionHard");
    let kubelet = files.dir().join("kubelet.yaml");
    let kubelet_config = ["--kubelet-config", kubelet.to_str().unwrap()];
    let agent = files.start(&kubelet_config);
    let shows = |line: &str| until(Duration::from_secs(30), || shows(&address, line));
    let memory = |mib: u64| {
        let bytes = mib * MIB;
        format!("evictd_threshold{{signal=\"memory.available\",hard=\"true\"}} {bytes}")
    };
    let source = |name: &str| format!("evictd_kubelet_configuration{{source=\"{name}\"}} 1");
    assert!(shows(&memory(100)) && shows(&source("defaults")));
    let log = agent.log();
    let said = log.lines().find(|l| l.contains("kubelet.yaml"));
    let said = said.unwrap_or_else(|| panic!("{log}"));
    let parts = ["WARN", "No such file", "the kubelet's defaults hold"];
    has(said, &parts);

    let write = |text: &str| fs::write(&kubelet, text).unwrap();
    write("kind: KubeletConfiguration\nevictionHard: {memory.available: 64Mi}\n");
    assert!(shows(&memory(64)) && shows(&source("file")));
    // What cannot be used changes nothing.
    write("kind: KubeletConfiguration\nevictionHard: {memory.available: ten}\n");
    assert!(shows("evictd_config_reloads_total{result=\"failure\"} 1"));
    assert!(shows(&memory(64)));
    // Gone again: what it said stays in force, and evictd's own file is followed.
    fs::remove_file(&kubelet).unwrap();
    assert!(shows(&source("lastRead")));
    files.change("evictionHard", json!({ "memory.available": "48Mi" }));
    assert!(shows(&memory(48)));
    files.config.as_object_mut().unwrap().remove("evictionHard");
    files.write().unwrap();
    assert!(shows(&memory(64)));
    drop(agent);

    let config = files.write().unwrap();
    let paths = [("--config", &*config), ("--kubelet-config", &kubelet)];
    let found = agent::finding(&paths, "kubelet configuration");
    assert_eq!(found["state"], "degraded");
    let detail = found["detail"].as_str().unwrap();
    assert!(detail.contains("kubelet.yaml: No such file"), "{detail}");
}

/// A file that is there and wrong is a mistake, and the field is named.
#[test]
fn a_kubelet_configuration_with_a_mistake_is_refused() {
    let files = as_root!(Files::of("wrongkubelet", 256, &json!([])));
    let kubelet = files.dir().join("kubelet.yaml");
    let text = "kind: KubeletConfiguration\nevictionHard: {memory.available: ten}\n";
    fs::write(&kubelet, text).unwrap();
    let mut config = files.config.clone();
    config.as_object_mut().unwrap().remove("evictionHard");
    let path = files.dir().join("own.json");
    fs::write(&path, config.to_string()).unwrap();
    let paths = [("--config", path.as_path()), ("--kubelet-config", &kubelet)];
    let said = agent::refused(&["run"], &paths);
    assert!(said.contains("evictd: evictionHard"), "{said}");
}

#[test]
fn a_deprecated_name_is_logged() {
    let mut files = as_root!(Files::of("deprecated", 256, &json!([])));
    files.config["graduatedAction"] = json!({ "brake": {} });
    let agent = files.start(&[]);
    let log = agent.log();
    let said = |line: &str| line.contains("WARN") && line.contains("graduatedAction.brake is the");
    assert_eq!(log.lines().filter(|l| said(l)).count(), 1, "{log}");
}
