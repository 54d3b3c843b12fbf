//! Rights, tokens and the kubelet's configuration.

use evictd_config::ConfigMapName;
use evictd_kube::{access, scraper_access::SCRAPER_RIGHTS};
use evictd_tests::prelude::*;

/// Each missing right is named, and no other.
#[test]
fn every_missing_right_is_named() {
    let server = ApiServer::start().unwrap();
    let denied = [
        "create pods/eviction",
        "patch nodes/status",
        "patch evictionpolicies/status",
        "list servicecidrs",
        "create subjectaccessreviews",
        "get endpointslices",
        "watch configmaps",
    ];
    let pause = ConfigMapName {
        namespace: "evictd".into(),
        name: "evictd-pause".into(),
    };
    let mut state = server.state();
    state.denied.extend(denied.map(str::to_owned));
    // It is being upgraded.
    state.fails("POST", "selfsubjectaccessreviews", 3, 503);
    drop(state);
    let runtime = current_thread().unwrap();
    let missing = runtime.block_on(async {
        let connection = server.client().await;
        let again = Duration::from_millis(1);
        access::check(&connection, again, Some(&pause), None, SCRAPER_RIGHTS).await
    });
    let names = missing
        .iter()
        .map(|right| format!("{} {}", right.verb, right.resource));
    assert_eq!(names.collect::<Vec<_>>(), denied);
    let asked = [
        access::RIGHTS.len(),
        access::ENDPOINT_RIGHTS.len(),
        access::PAUSE_RIGHTS.len(),
        SCRAPER_RIGHTS.len(),
    ];
    let reviews = server.count("POST", "selfsubjectaccessreviews");
    assert_eq!(reviews, 3 + asked.iter().sum::<usize>());
    let state = server.state();
    let slice = state.requests.iter().find_map(|r| {
        let asked = &r.body["spec"]["resourceAttributes"];
        (asked["resource"] == "endpointslices").then_some(asked)
    });
    let slice = slice.unwrap();
    let slice = [&slice["namespace"], &slice["name"]];
    assert_eq!(slice, ["default", "kubernetes"]);
    let last = state.requests.last().unwrap();
    let asked = &last.body["spec"]["resourceAttributes"];
    assert_eq!(asked["name"], "evictd-pause");
    assert_eq!(asked["namespace"], "evictd");
}

/// A token that expires between two evictions: the file is read again.
#[test]
fn an_eviction_survives_its_token() {
    let (member, wild) = as_root!(ClusterNode::with_wild("token").unwrap());
    member.server.state().token = Some("first".into());
    let _agent = member.start().unwrap();
    member.server.state().token = Some("second".into());
    fs::write(member.dir().join("token"), "second").unwrap();
    member.evicts(&wild, "deleted");
}

/// A right that is missing for good: tried a few times, given up, and said; the agent goes on.
#[test]
fn a_report_that_is_forbidden_is_given_up_in_the_end() {
    let (member, wild) = as_root!(ClusterNode::with_wild("forbidden").unwrap());
    member.server.fails("DELETE", "/pods/wild", 100, 403);
    let _agent = member.start().unwrap();
    Hog::until_killed(&wild, &["--mib", "1024"]);
    begins(&member.outcomes(1)[0], "refused: 403 Forbidden");
}

/// Bad input: one line that names the field, exit code 2.
#[test]
fn an_unusable_kubeconfig_is_bad_input() {
    let mut member = as_root!(ClusterNode::new("badkube", 256).unwrap());
    member.config["cluster"]["kubeconfig"] = json!(member.dir().join("nowhere"));
    let stderr = agent::refused(&["run"], &[("--config", &member.write().unwrap())]);
    let last = stderr.lines().last().unwrap();
    begins(last, "evictd: cluster.kubeconfig: ");
}

/// Thresholds of the node's own kubelet: from its configuration file, unless evictd's says otherwise.
#[test]
fn thresholds_come_from_the_kubelets_file() {
    let dir = tempfile::tempdir().unwrap();
    let kubelet = dir.path().join("kubelet.yaml");
    let text = "kind: KubeletConfiguration\nevictionHard: {memory.available: 321Mi}\n";
    fs::write(&kubelet, text).unwrap();
    let config = dir.path().join("config.json");
    let thresholds = |document: Value| {
        fs::write(&config, document.to_string()).unwrap();
        let words = ["thresholds", "-o", "json"];
        agent::text(&agent::evictd(&words, &[("--config", &config)]))
    };
    let cluster = json!({"nodeName": NODE, "kubeletConfig": kubelet});
    let found = thresholds(json!({ "cluster": cluster }));
    assert!(found.contains(&(321_u64 << 20).to_string()), "{found}");
    let own = json!({"cluster": cluster, "evictionHard": {"memory.available": "7Mi"}});
    let found = thresholds(own);
    assert!(found.contains(&(7_u64 << 20).to_string()), "{found}");
}

/// The kubelet's drop-ins, from a directory that comes after the agent, as they come, change and go.
#[test]
fn drop_ins_of_the_kubelet_are_followed() {
    let mut member = as_root!(ClusterNode::new("dropins", 256).unwrap());
    let kubelet = member.dir().join("kubelet.yaml");
    let directory = member.dir().join("kubelet.conf.d");
    fs::write(&kubelet, "evictionHard: {memory.available: 40Mi}\n").unwrap();
    let address = listen(&mut member.config, "metricsAddress");
    let config = member.config.as_object_mut().unwrap();
    config.remove("evictionHard");
    member.config["cluster"]["kubeletConfig"] = json!(kubelet);
    member.config["cluster"]["kubeletConfigDir"] = json!(directory);
    member.config["cluster"]["configz"] = true.into();
    let agent = member.start().unwrap();
    let in_force = |mib: u64| {
        let series = "evictd_threshold{signal=\"memory.available\",hard=\"true\"}";
        let line = format!("{series} {}", mib * MIB);
        let shown = until(SOON, || shows(&address, &line));
        assert!(shown, "{line}");
    };
    in_force(40);
    assert!(agent.says("kubelet.conf.d: "), "a missing directory");
    fs::create_dir(&directory).unwrap();
    let write = |name: &str, quantity: &str| {
        let text = format!("evictionHard: {{memory.available: {quantity}}}\n");
        fs::write(directory.join(name), text).unwrap();
    };
    write("20-late.conf", "56Mi");
    in_force(56);
    // An earlier one is hidden, a later change is not.
    write("10-early.conf", "48Mi");
    write("20-late.conf", "64Mi");
    in_force(64);
    fs::remove_file(directory.join("20-late.conf")).unwrap();
    in_force(48);
    assert!(agent.says("cluster.configz is not used"));
    // What is wrong changes nothing.
    write("30-wrong.conf", "ten");
    let refused = || {
        shows(
            &address,
            "evictd_config_reloads_total{result=\"failure\"} 1",
        )
    };
    assert!(until(SOON, refused));
    in_force(48);
}

/// Thresholds of the running kubelet: 180Mi, which 90 MiB in a node of 256 MiB do not leave. It answers late, as on a node that has
/// just been started, and the start does not wait for it.
#[test]
fn thresholds_come_from_the_running_kubelet() {
    let (mut member, wild) = as_root!(ClusterNode::with_wild("configz").unwrap());
    let recordings = Path::new(env!("CARGO_MANIFEST_DIR")).join("recordings");
    let recorded = fs::read_to_string(recordings.join("kubelet/configz.json"));
    let mut configz: Value = serde_json::from_str(&recorded.unwrap()).unwrap();
    configz["kubeletconfig"]["evictionHard"] = json!({"memory.available": "180Mi"});
    let path = "/api/v1/nodes/n2/proxy/configz";
    let config = member.config.as_object_mut().unwrap();
    config.remove("evictionHard");
    member.config["cluster"]["configz"] = true.into();
    // Of a kubelet that has no files: it says nothing.
    let directory = member.dir().join("kubelet.conf.d");
    fs::create_dir(&directory).unwrap();
    member.config["cluster"]["kubeletConfigDir"] = json!(directory);
    let address = listen(&mut member.config, "metricsAddress");
    member.server.fails("GET", path, 1, InjectedFault::Hang);
    let begun = Instant::now();
    let _agent = member.start().unwrap();
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(8), "{took:?}");
    let has_source = |source: &str| {
        let series = format!("evictd_kubelet_configuration{{source=\"{source}\"}} 1");
        until(SOON, || shows(&address, &series))
    };
    assert!(has_source("defaults"));
    let mut state = member.server.state();
    state.objects.insert(path.to_owned(), configz.clone());
    drop(state);
    assert!(has_source("configz"));
    let asked = member.server.count("GET", path);
    Hog::until_killed(&wild, &["--mib", "90"]);
    assert_eq!(member.evicted(1), ["wild"]);
    assert_eq!(member.evictions()[0].threshold, 180 << 20);
    assert_eq!(member.server.count("GET", path), asked, "it is known");
    // A command that shows them asks the same kubelet, or says why it has no answer.
    let config = member.write().unwrap();
    let paths = [("--config", &*config)];
    let shown = || agent::evictd(&["thresholds"], &paths);
    has(&agent::text(&shown()), &["180Mi"]);
    let found = agent::finding(&paths, "hard thresholds");
    has(found["detail"].as_str().unwrap(), &["180Mi"]);
    // A soft threshold of evictd's own with the kubelet's grace period.
    configz["kubeletconfig"]["evictionSoftGracePeriod"] = json!({"memory.available": "1m17s"});
    member.config["evictionSoft"] = json!({"memory.available": "200Mi"});
    member.write().unwrap();
    (member.server.state().objects).insert(path.to_owned(), configz);
    has(&agent::text(&shown()), &["77s"]);
    member
        .config
        .as_object_mut()
        .unwrap()
        .remove("evictionSoft");
    member.write().unwrap();
    member.server.state().objects.remove(path);
    let said = shown();
    // The default.
    has(&agent::text(&said), &["100Mi"]);
    let stderr = String::from_utf8_lossy(&said.stderr);
    has(&stderr, &["/configz cannot be read"]);
}
