//! `evictd report` and `evictd top` as processes: an eviction is told again, and which pod would be next is shown.

use std::{io, os::unix::process::CommandExt as _};

use evictd_node::proc::pids::Pids;
use evictd_tests::{
    agent::{binary, evictd, json, text},
    bpffs::Bpffs,
    forker::process_ids_of_the_machine,
    prelude::*,
};
use nix::sys::resource::{Resource, setrlimit};

/// What `evictd report` says of the agent's state directory.
fn report(files: &Files, words: &[&str]) -> String {
    let state = files.dir().join("state");
    let words = [&["report"], words].concat();
    text(&evictd(&words, &[("--state-dir", &state)]))
}

/// The latest incident, once it is complete.
fn latest(files: &Files, is_complete: impl Fn(&Value) -> bool) -> Value {
    let mut incident = Value::Null;
    let recorded = until(Duration::from_secs(20), || {
        let told = report(files, &["latest", "-o", "json"]);
        let mut told: Value = serde_json::from_str(&told).unwrap();
        incident = told["incident"].take();
        is_complete(&incident)
    });
    assert!(recorded, "{incident}");
    incident
}

// R49
#[test]
fn an_eviction_is_told_with_what_came_before_and_after() {
    let files = as_root!(Files::of_hog_and_calm("report", 256));
    let _agent = files.start(&[]);
    let _calm = files.hog("calm", &["--mib", "40"]);
    files.until_killed("hog", &["--mib", "1000", "--rate", "400"]);
    files.wait_for(2);
    // It is in the journal at once, and what came after it is recorded a moment later.
    let has_samples = |i: &Value| i["samples"]["memory.available"].is_array();
    let incident = &latest(&files, has_samples);
    let eviction = &incident["eviction"];
    assert_eq!(eviction["pace"]["urgent"], json!(true), "{eviction}");
    // The same decision follows from the file alone.
    let id = eviction["id"].as_str().unwrap();
    let file = files.dir().join(format!("state/incidents/{id}.json"));
    let replay = |file: &Path, more: &[&str]| {
        let words = [&["replay", file.to_str().unwrap()][..], more].concat();
        evictd(&words, &[])
    };
    let again = json(&replay(&file, &[]));
    assert_eq!(again["agrees"], json!(true), "{again}");
    assert_eq!(again["wentFirst"], json!(true), "{again}");
    let again_text = text(&replay(&file, &["-o", "table"]));
    let decided = "decided again: evict at once: urgent; as it was recorded\n";
    assert!(again_text.ends_with(decided), "{again_text}");
    assert_eq!(again["evicted"], json!("default/hog"));
    let urgency = &again["decision"]["evict"]["urgency"];
    assert!(urgency["urgent"].is_object(), "{again}");
    let mut damaged: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    // Another order, other room, and no decision at all.
    let copy = files.dir().join("changed.json");
    let replayed = |incident: &Value| {
        fs::write(&copy, incident.to_string()).unwrap();
        replay(&copy, &["-o", "json"])
    };
    let mut other = damaged.clone();
    for pod in other["pods"].as_array_mut().unwrap() {
        pod["request"] = json!(0);
        pod["priority"] = json!(i32::from(pod["evicted"] == true));
    }
    let again = json(&replayed(&other));
    assert_eq!(again["wentFirst"], json!(false), "{again}");
    assert_eq!(again["agrees"], json!(false), "{again}");
    damaged["judged"]["seen"]["room"]["atOnce"] = json!(1_u64 << 40);
    let again = json(&replayed(&damaged));
    assert_eq!(again["agrees"], json!(false), "{again}");
    damaged.as_object_mut().unwrap().remove("judged");
    let refused = replayed(&damaged);
    assert_eq!(refused.status.code(), Some(2));
    let refusal = String::from_utf8_lossy(&refused.stderr);
    has(&refusal, &["judged: is not there"]);
    let threshold = eviction["threshold"].as_u64().unwrap();
    let looks = incident["samples"]["memory.available"].as_array().unwrap();
    let number = |value: &Value| value.as_u64().unwrap();
    let looks = looks.iter();
    let seen: Vec<_> = looks.map(|l| (number(&l[0]), number(&l[1]))).collect();
    let decided = eviction["stages"]["decided"].as_u64().unwrap();
    assert!(seen.is_sorted_by_key(|(time, _)| *time), "oldest first");
    let is_well = |(_, left): &(u64, u64)| *left > threshold;
    let mut before = seen.iter().filter(|(time, _)| *time < decided);
    assert!(before.any(is_well), "{seen:?}");
    let mut after = seen.iter().filter(|(time, _)| *time > decided);
    assert!(after.any(is_well), "{seen:?}");
    let least = seen.iter().map(|(_, left)| *left).min().unwrap();
    assert!(least < threshold, "the eviction itself: {seen:?}");
    let pods = incident["pods"].as_array().unwrap();
    assert_eq!(pods.len(), 2);
    let evicted: Vec<&Value> = pods.iter().filter(|p| p["evicted"] == true).collect();
    assert_eq!(evicted.len(), 1);
    assert!(evicted[0]["pod"].as_str().unwrap().ends_with("hog"));
    assert_eq!(evicted[0]["usage"], eviction["workingSet"]);

    let parts = ["hog was evicted at", "SIGKILL", "available again", "calm"];
    has(&report(&files, &["latest"]), &parts);
    let picture = report(&files, &["latest", "-o", "svg"]);
    assert!(picture.starts_with("<svg ") && picture.contains("<polyline"));
    has(&report(&files, &[]), &[id]);
    let named: Value = serde_json::from_str(&report(&files, &[id, "-o", "json"])).unwrap();
    assert_eq!(named["incident"], *incident);
    // An agent that ends has written everything.
}

/// The kubelet takes no static pod.
#[test]
fn the_kubelets_choice_is_the_kubelets() {
    skip_if!(not_root());
    let pods = json!([
        { "name": "hog", "cgroup": "hog", "static": true, "priority": 0 },
        { "name": "calm", "cgroup": "calm" },
    ]);
    let files = Files::of("choice", 256, &pods);
    let _agent = files.start(&[]);
    let _calm = files.hog("calm", &["--mib", "40"]);
    files.until_killed("hog", &["--mib", "1000", "--rate", "400"]);
    files.wait_for(2);
    let incident = latest(&files, |incident| incident["kubeletVictim"].is_string());
    assert_eq!(incident["eviction"]["name"], "hog");
    assert_eq!(incident["kubeletVictim"], "default/calm");
    let page = report(&files, &["latest", "-o", "html"]);
    has(
        &page,
        &["The kubelet looks every 10 s, and would have evicted default/calm"],
    );
}

// R5, R49: asked and not killed.
#[test]
fn a_pod_that_was_asked_to_go_has_a_report_as_well() {
    let mut files = as_root!(Files::of_hog_and_calm("asked", 256));
    set_soft(&mut files.config, "160Mi");
    files.config["evictionMaxPodGracePeriod"] = json!(5);
    let _agent = files.start(&[]);
    let mut hog = files.hog("hog", &["--mib", "130"]);
    assert_eq!(hog.wait().unwrap(), Some(libc::SIGTERM));
    let incident = &latest(&files, |incident| incident["finish"].is_object());
    let asked = &incident["asked"];
    assert_eq!(asked["gracePeriodSeconds"], 5);
    let number = |of: &Value| of.as_u64().unwrap();
    let [decided, exited, freed] = [
        &asked["decided"],
        &incident["finish"]["exited"],
        &incident["finish"]["freed"],
    ]
    .map(number);
    assert!(decided < exited && decided < freed, "{incident}");
    assert!(number(&incident["finish"]["available"]) >= number(&asked["threshold"]));
    let looks = incident["samples"]["memory.available"].as_array().unwrap();
    assert!(looks.is_sorted_by_key(|look| number(&look[0])));
    assert!(number(&looks[0][0]) < decided, "what came before it too");
    assert_eq!(incident["pods"][0]["evicted"], true);

    let first = "hog was asked to go within 5 s at";
    let stages = ["  asked to go\n", "  found gone\n", "  available again\n"];
    let told = report(&files, &["latest"]);
    has(&told, &[first]);
    has(&told, &stages);
    let picture = report(&files, &["latest", "-o", "svg"]);
    // Where the pod is found gone late, the first two are too close for a label each.
    let labels = ["asked to go 0.00", "asked to go, available again"];
    let is_drawn = labels.iter().any(|label| picture.contains(label));
    assert!(is_drawn, "{picture}");
    has(&report(&files, &[]), &["asked, 5 s"]);
    let listed: Value = serde_json::from_str(&report(&files, &["-o", "json"])).unwrap();
    assert_eq!(listed[0]["gracePeriodSeconds"], 5);
}

// R49
#[test]
fn an_agent_that_is_told_to_end_writes_down_what_is_not_over() {
    let _alone = as_root!(process_ids_of_the_machine().unwrap());
    // Room for the kernel memory of all that the forker starts.
    let mut files = Files::of_hog_and_calm("ends", 1024);
    let free = Pids::open(Path::new("/proc")).unwrap().read().unwrap();
    // What others start on this machine meanwhile must not cross it.
    let threshold = free.available() - 1500;
    files.config["evictionHard"] = json!({ "pid.available": threshold.to_string() });
    let mut greedy = files.forker("hog");
    let mut agent = files.start(&[]);
    // It dies over this order, and crosses the threshold even where all other processes end meanwhile.
    let _ = greedy.order(&format!("hold {}", free.used + 3000));
    files.wait_for(1);
    assert_eq!(agent.terminate().unwrap(), Some(0));
    let incident = latest(&files, |_| true);
    let looks = incident["samples"]["pid.available"].as_array();
    let looks = looks.unwrap_or_else(|| panic!("{incident}: {}", agent.log()));
    let left = looks.iter().filter_map(|look| look[1].as_i64()).min();
    assert!(left.unwrap() < threshold, "the eviction itself: {looks:?}");
}

/// `kubectl evictd` runs it in the agent's container, whose memory limit holds for both.
#[test]
fn a_full_journal_is_listed_in_little_memory() {
    const LIMIT: u64 = 48 * MIB;
    let dir = tempfile::tempdir().unwrap();
    let labels = json!({
        "app.kubernetes.io/name": "web", "app.kubernetes.io/instance": "x", "pod-template-hash": "7d9c",
    });
    let owner = json!({"kind": "ReplicaSet", "name": "web-7d9c", "uid": "0b5dbb9a-5d0c-4a29-8e5e-3f2d5f5d6c11"});
    let line = |number: usize| {
        let id = format!("0b5dbb9a-5d0c-4a29-8e5e-3f2d5f5d6c11-123456789012-{number}");
        json!({
            "event": "evicted", "id": id, "time": "2026-11-22T02:00:00Z", "namespace": "shop", "name": "web", "uid": id,
            "reason": "Evicted", "message": "The node was low on resource: memory. ".repeat(5), "signal": "memory.available",
            "shadow": false, "hook": "sampler", "stages": {"crossed": 1, "woken": 2, "decided": 3, "signalled": 4},
            "available": 1, "threshold": 2, "usageAtCrossing": 0, "usageAtDecision": 0, "workingSet": 0, "request": 0,
            "workload": {"owner": owner, "labels": labels},
        })
        .to_string()
    };
    let mut number = 0;
    for name in ["journal.1.jsonl", "journal.jsonl"] {
        let mut text = String::new();
        while text.len() < 4 << 20 {
            number += 1;
            text += &(line(number) + "\n");
        }
        fs::write(dir.path().join(name), text).unwrap();
    }
    for words in [
        &["--newest", "20", "-o", "json"][..],
        &["-o", "json"],
        &["-o", "table"],
        &["latest"],
    ] {
        let mut command = Command::new(binary().unwrap());
        command.arg("report").args(words);
        command.arg("--state-dir").arg(dir.path());
        let limit = || setrlimit(Resource::RLIMIT_DATA, LIMIT, LIMIT).map_err(io::Error::from);
        // SAFETY: it calls nothing but setrlimit.
        unsafe { command.pre_exec(limit) };
        let output = command.output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{words:?}: {stderr}");
        let listed = String::from_utf8(output.stdout).unwrap();
        let expected = match words[0] {
            "latest" => "shop/web was evicted".to_owned(),
            _ => format!("-123456789012-{number}"),
        };
        assert!(listed.contains(&expected), "{words:?}");
        if words[0] == "--newest" {
            let listed: Vec<Value> = serde_json::from_str(&listed).unwrap();
            assert_eq!(listed.len(), 20);
            assert_eq!(listed[0]["olderLeftOut"], number - 20);
        }
    }
}

/// The agent runs without the kubelet's file as well, and so does what reads its journal or removes its pins.
#[test]
fn a_kubelet_configuration_that_is_missing_hides_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let bpffs = or_skip!(Bpffs::mount());
    let config = dir.path().join("config.json");
    // Only a running agent needs the node's name.
    let cluster = json!({"kubeletConfig": dir.path().join("nowhere")});
    let settings = json!({
        "stateDir": dir.path(), "cluster": cluster, "pinnedGuard": {"directory": bpffs.path().join("evictd")},
    });
    fs::write(&config, settings.to_string()).unwrap();
    let run = |command: &str| text(&evictd(&[command], &[("--config", &config)]));
    run("report");
    assert_eq!(run("detach").lines().count(), 1);
    // What agents with other state directories have left is no secret.
    let other = bpffs.path().join("evictd/var-lib-other");
    fs::create_dir_all(other.join("guard")).unwrap();
    let said = run("detach");
    has(
        &said,
        &[
            "nothing is pinned in ",
            "others are pinned",
            other.to_str().unwrap(),
        ],
    );
}

#[test]
fn what_is_not_there_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let at: &[(&str, &Path)] = &[("--state-dir", dir.path())];
    let refused = |words: &[&str], at: &[(&str, &Path)], expected: &str| {
        has(&agent::refused(words, at), &[expected]);
    };
    // Files on another filesystem than a BPF filesystem are no pins.
    let (config, file) = (
        dir.path().join("config.json"),
        dir.path().join("pins/journal/data.json"),
    );
    fs::create_dir_all(dir.path().join("pins/journal")).unwrap();
    fs::write(&file, "{}").unwrap();
    let settings =
        json!({ "stateDir": "/journal", "pinnedGuard": { "directory": dir.path().join("pins") } });
    fs::write(&config, settings.to_string()).unwrap();
    refused(
        &["detach"],
        &[("--config", &config)],
        "is not on a BPF filesystem",
    );
    assert!(file.exists());
    refused(&["report", "x"], at, "x: is none of the 0 incidents in ");
    let expected = "latest: is none of the 0 incidents";
    refused(&["report", "latest"], at, expected);
    let expected = "-o svg: shows one incident, and none";
    refused(&["report", "-o", "svg"], at, expected);
    let nowhere: &[(&str, &Path)] = &[("--state-dir", &dir.path().join("nowhere"))];
    refused(&["report"], nowhere, "nowhere: No such file");
    let expected = "is no positive number of seconds";
    refused(&["top", "--interval", "0"], &[], expected);
    let config = dir.path().join("config.yaml");
    fs::write(&config, "colour: red").unwrap();
    let config: &[(&str, &Path)] = &[("--config", &config)];
    refused(&["top"], config, "colour: unknown field");
    // Nothing has happened: nothing is listed.
    assert_eq!(text(&evictd(&["report"], at)).lines().count(), 1);
}

// R13, R44
#[test]
fn the_next_pod_and_how_long_memory_will_last() {
    let files = as_root!(Files::of_hog_and_calm("top", 512));
    let config = files.write().unwrap();
    let _calm = files.hog("calm", &["--mib", "40"]);
    let _hog = files.hog("hog", &["--mib", "300", "--rate", "20"]);
    let at: &[(&str, &Path)] = &[("--config", &config)];
    let words = ["top", "--interval", "1", "-o", "json"];
    // The hog overtakes first.
    let mut seen = Value::Null;
    let found = until(Duration::from_secs(20), || {
        seen = json(&evictd(&words, at));
        seen["pods"][0]["pod"] == "default/hog"
    });
    assert!(found, "{seen}");
    let hog = &seen["pods"][0];
    assert_eq!(hog["predictedEvictionVictim"], true);
    let growth = hog["growth"].as_f64().unwrap();
    assert!(growth > 0.0, "{seen}");
    let signals = seen["signals"].as_array().unwrap();
    let mut signals = signals.iter();
    let memory = signals.find(|s| s["signal"] == "memory.available");
    let memory = memory.unwrap();
    assert_eq!(memory["capacity"], 512 * MIB);
    let [threshold, exhausted] = ["untilThresholdSeconds", "untilExhaustedSeconds"]
        .map(|field| memory[field].as_f64().unwrap());
    assert!(threshold < exhausted, "{seen}");
    let left = memory["available"].as_f64().unwrap();
    let expected = left / growth;
    let about = expected / 3.0..expected * 3.0;
    assert!(about.contains(&exhausted), "{seen}");
    let told = text(&evictd(&["top", "--interval", "0.2", "-n", "2"], at));
    assert_eq!(told.matches("SIGNAL").count(), 2, "{told}");
    let parts = ["GROWTH/s", "evicted first", "memory.available"];
    has(&told, &parts);
}

/// In a cluster the agent remembers what the API server has told, and `top` reads that.
#[test]
fn in_a_cluster_pods_have_their_names() {
    let node = as_root!(ClusterNode::new("top", 512).unwrap());
    node.pod("known", 1, "Burstable", 0, Some("10Mi")).unwrap();
    node.cgroup_of(&ClusterNode::uid(2), "BestEffort").unwrap();
    let config = node.write().unwrap();
    let _agent = node.start().unwrap();
    let at: &[(&str, &Path)] = &[("--config", &config)];
    let mut seen = Value::Null;
    let found = until(Duration::from_secs(30), || {
        seen = json(&evictd(&["top", "--interval", "0.1", "-o", "json"], at));
        let pods = seen["pods"].as_array().unwrap();
        pods.iter().any(|pod| pod["pod"] == "default/known")
    });
    assert!(found, "{seen}");
    assert_eq!(seen["podsUnknownToTheApiServer"], 1, "{seen}");
}
