//! `kubectl evictd`: the plugin as a process, against a scripted API server.

use std::{os::unix::fs::symlink, process::Output};

use evictd_tests::{
    agent::{binary, text},
    apiserver::{Ran, pod},
    prelude::*,
};

const TOP: &str = "/evictd top --once --interval 0.5 -o json";
const NEWEST: &str = "/evictd report --newest 20 -o json";
const EXPLAIN: &str = "/evictd policy explain default/db --config /etc/evictd/config.yaml -o json";

/// A pod with an agent.
fn agent(name: &str, namespace: &str, labels: Value) -> Value {
    let uid = format!("agent-{name}");
    let mut agent = pod(name, &uid, "Burstable", 2_000_001_000, None);
    agent["metadata"]["namespace"] = namespace.into();
    agent["metadata"]["labels"] = labels;
    agent
}

/// A cluster of one node with an agent, and the plugin beside it.
struct Cluster {
    server: ApiServer,
    dir: tempfile::TempDir,
    kubeconfig: PathBuf,
}

impl Cluster {
    fn new() -> Self {
        let server = ApiServer::start().unwrap();
        let dir = tempfile::tempdir().unwrap();
        // As it is installed: the same program under another name.
        symlink(binary().unwrap(), dir.path().join("kubectl-evictd")).unwrap();
        let kubeconfig = server.kubeconfig(dir.path()).unwrap();
        let labels = json!({
            "app.kubernetes.io/name": "evictd", "app.kubernetes.io/version": "0.1.0",
        });
        let mut state = server.state();
        state.put_pod(agent("evictd-x7k2p", "evictd", labels));
        state.put_pod(pod("db", "u1", "Burstable", 7, Some("64Mi")));
        drop(state);
        Self {
            server,
            dir,
            kubeconfig,
        }
    }

    /// A configuration of agents with this `cluster`.
    fn configured(&self, name: &str, cluster: &Value) {
        let config = json!({ "cluster": cluster }).to_string();
        let mut state = self.server.state();
        state.put_config_map("evictd", name, json!({"config.yaml": config}));
    }

    /// Another agent, with this configuration.
    fn starts(&self, name: &str, configuration: &str) {
        let mut agent = agent(name, "evictd", json!({"app.kubernetes.io/name": "evictd"}));
        let volume = json!({"name": "config", "configMap": {"name": configuration}});
        agent["spec"]["volumes"] = json!([volume]);
        self.server.state().put_pod(agent);
    }

    fn run(&self, words: &[&str]) -> Output {
        let mut command = Command::new(self.dir.path().join("kubectl-evictd"));
        command
            .args(words)
            // One that is not there, for other servers than this.
            .env("HTTPS_PROXY", "http://127.0.0.1:1")
            .arg("--kubeconfig")
            .arg(&self.kubeconfig);
        command.output().unwrap()
    }

    #[track_caller]
    fn said(&self, words: &[&str]) -> String {
        text(&self.run(words))
    }

    fn json(&self, words: &[&str]) -> Value {
        serde_json::from_str(&self.said(&[words, &["-o", "json"]].concat())).unwrap()
    }

    /// The error of a command that ends with this code.
    fn refused(&self, code: i32, words: &[&str]) -> String {
        let output = self.run(words);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{words:?}: {stderr}");
        assert!(output.stdout.is_empty());
        stderr
    }

    fn without_agent(&self) {
        let mut state = self.server.state();
        state.remove(Collection::Pods, "evictd", "evictd-x7k2p");
    }

    fn agent_says(&self, command: &str, ran: Ran) {
        let key = ("evictd/evictd-x7k2p".to_owned(), command.to_owned());
        self.server.state().commands.insert(key, ran);
    }
}

fn prints(value: &Value) -> Ran {
    Ran {
        stdout: value.to_string(),
        ..Ran::default()
    }
}

fn fails(stderr: &str) -> Ran {
    Ran {
        stderr: format!("evictd: {stderr}\n"),
        code: 2,
        ..Ran::default()
    }
}

// R49
#[test]
fn status_shows_agents_pressure_and_pauses() {
    let cluster = Cluster::new();
    let shown = cluster.said(&["status"]);
    let line = shown.lines().find(|line| line.starts_with(NODE)).unwrap();
    let columns = line.split_whitespace().collect::<Vec<_>>();
    assert_eq!(columns, [NODE, "ready", "0.1.0", "-", "-"]);
    has(&shown, &["1 of 1 nodes have an agent that is ready"]);

    cluster.said(&["pause", "--node", NODE]);
    cluster.said(&["pause"]);
    {
        let mut state = cluster.server.state();
        let node = state.node();
        let annotations = &node["metadata"]["annotations"];
        assert_eq!(annotations["evictd.io/paused"], "true");
        // Nothing else has changed.
        assert!(node["spec"]["taints"].is_array());
        let map = state.config_map("evictd", "evictd-pause");
        assert_eq!(map["data"]["paused"], "true");
        let condition = json!({"type": "EvictdMemoryPressure", "status": "True"});
        let conditions = &mut state.node_mut()["status"]["conditions"];
        conditions.as_array_mut().unwrap().push(condition);
    }
    let node = &cluster.json(&["status"])["nodes"][0];
    assert_eq!(node["pausedBy"], json!(["configMap", "node"]));
    assert_eq!(node["pressure"], json!(["EvictdMemoryPressure"]));

    has(&cluster.said(&["resume"]), &["pauses of single nodes stay"]);
    let node = &cluster.json(&["status"])["nodes"][0];
    // One pause is lifted, not the other.
    assert_eq!(node["pausedBy"], json!(["node"]));
    cluster.said(&["resume", "--node", NODE]);
    // What is lifted already is no error.
    cluster.said(&["resume"]);
    assert_eq!(cluster.json(&["status"])["nodes"][0]["pausedBy"], json!([]));

    let brake_until = |until: &str| {
        let data = json!({"pace": "paused", "until": until, "nodes": "25", "by": "n9"});
        let mut state = cluster.server.state();
        state.put_config_map("evictd", "evictd-fleet", data);
    };
    brake_until("2020-01-01T00:00:00Z");
    assert!(cluster.json(&["status"])["fleetBrake"].is_null());
    brake_until("2999-01-01T00:00:00Z");
    assert_eq!(cluster.json(&["status"])["fleetBrake"]["pace"], "paused");
    let said = "active: paused until 2999-01-01T00:00:00Z, then slow for a window; urgent";
    has(&cluster.said(&["status"]), &[said]);
    // By the agents' own rules: a pause is over after half an hour, and nodes are slow for a window then.
    let rules = json!({"configMap": "evictd/evictd-fleet", "window": "1h"});
    cluster.configured("evictd-a", &json!({ "fleetBrake": rules }));
    cluster.starts("evictd-x7k2p", "evictd-a");
    let status = cluster.json(&["status"]);
    let brake = &status["fleetBrake"];
    let ends = |time: &Value| time.as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    let slow = ends(&brake["slowUntil"]).duration_since(ends(&brake["until"]));
    assert_eq!(slow.as_secs(), 3600);
    assert!(ends(&brake["until"]) < "2998-01-01T00:00:00Z".parse().unwrap());
    let ended = jiff::Timestamp::now() - Duration::from_secs(60);
    brake_until(&format!("{ended:.0}"));
    let slow = ended + Duration::from_secs(3600);
    has(
        &cluster.said(&["status"]),
        &[&format!("active: slow until {slow:.0}; urgent")],
    );

    cluster.without_agent();
    has(&cluster.said(&["status"]), &["0 of 1 nodes have an agent"]);
}

// A pause that no agent follows is none.
#[test]
fn a_pause_is_one_that_agents_follow() {
    let cluster = Cluster::new();
    let configured = |name: &str, map: Option<&str>| {
        cluster.configured(name, &json!({ "pauseConfigMap": map }));
    };
    let starts = |name: &str, configuration: &str| cluster.starts(name, configuration);
    let is_paused = || {
        let state = cluster.server.state();
        !state.config_map("evictd", "evictd-pause").is_null()
    };

    cluster.without_agent();
    let error = cluster.refused(2, &["pause"]);
    has(&error, &["no agent in the namespace evictd"]);
    assert!(!is_paused(), "nothing was sent");

    configured("evictd-a", Some("ops/halt"));
    configured("evictd-b", None);
    starts("a1", "evictd-a");
    let error = cluster.refused(2, &["pause"]);
    let expected =
        "evictd/evictd-pause: no agent follows it: their cluster.pauseConfigMap is ops/halt";
    has(&error, &[expected]);
    starts("b1", "evictd-b");
    cluster.refused(2, &["pause"]);
    assert!(!is_paused());

    // Some do: they are paused, and the others are named.
    configured("evictd-c", Some("evictd/evictd-pause"));
    starts("c1", "evictd-c");
    let said = cluster.said(&["pause"]);
    let expected = "but for agents with the configuration evictd-a, evictd-b, which follow";
    has(&said, &[expected]);
    assert!(is_paused());
    // Another one is not lifted in its place, and that there was none is said.
    let error = cluster.refused(2, &["resume", "--pause-config-map", "halt"]);
    has(&error, &["evictd/halt: no agent follows it"]);
    assert!(is_paused());
    // It can be lifted without asking any agent.
    let said = cluster.said(&["resume"]);
    assert!(!said.contains("no pause"), "{said}");
    assert!(!is_paused());
    let said = cluster.said(&["resume"]);
    let expected = "there was no pause to lift: no ConfigMap evictd/evictd-pause";
    has(&said, &[expected]);
}

// A release with labels and a ConfigMap of its own.
#[test]
fn another_release_is_named_by_flags() {
    let cluster = Cluster::new();
    let labels = json!({"app.kubernetes.io/name": "guard"});
    let agent = agent("guard-1", "guard", labels);
    cluster.server.state().put_pod(agent);
    let flags = "-n guard --selector app.kubernetes.io/name=guard --pause-config-map guard-pause";
    let flags: Vec<&str> = flags.split(' ').collect();
    let with = |words: &[&'static str]| [words, &flags].concat();
    cluster.said(&with(&["pause"]));
    let map = |name| cluster.server.state().config_map("guard", name);
    assert_eq!(map("guard-pause")["data"]["paused"], "true");
    assert!(map("evictd-pause").is_null());
    let node = &cluster.json(&with(&["status"]))["nodes"][0];
    assert_eq!(node["pausedBy"], json!(["configMap"]));
    let state = cluster.server.state();
    let listed = state.all("GET", "/namespaces/guard/pods").last().unwrap();
    let selector = "labelSelector=app.kubernetes.io%2Fname%3Dguard";
    has(&listed.query, &[selector]);
    drop(state);
    cluster.said(&with(&["resume"]));
    assert!(map("guard-pause").is_null());
}

// R13, R49
#[test]
fn a_pod_is_explained_by_the_agent_on_its_node() {
    let cluster = Cluster::new();
    let standing = |name: &str, first: bool, oom: bool| {
        json!({
            "pod": format!("default/{name}"), "usage": 100 << 20, "request": 64 << 20, "priority": 7,
            "qosClass": "Burstable", "predictedEvictionVictim": first, "predictedOomVictim": oom,
            "untilLimitSeconds": 90.0,
        })
    };
    let pods = [standing("hog", true, false), standing("db", false, true)];
    cluster.agent_says(TOP, prints(&json!({"signals": [], "pods": pods})));
    cluster.agent_says(EXPLAIN, fails("policies.json: No such file or directory"));
    let words = ["explain", "pod", "default/db"];
    let shown = cluster.said(&words);
    has(
        &shown,
        &[
            "default/db on n2: 2 of 2 in the order of eviction for memory",
            "uses 100.0 MiB, has requested 64.0 MiB, priority 7, Burstable",
            "the OOM killer would choose it",
            "it meets its own limit in 90 s",
            "policies: policies.json: No such file or directory",
        ],
    );
    assert!(!shown.contains("evicted first"), "{shown}");

    let rule = json!({"rule": "db/leader", "evict": "gate.leader == false", "shadow": false, "saysYes": false, "gates": []});
    let said = json!([{
        "pod": "default/db", "uid": "u1", "mayGo": false, "reason": "the gate leader says no", "order": 0, "rules": [rule],
    }]);
    cluster.agent_says(EXPLAIN, prints(&said));
    let shown = cluster.said(&words);
    has(
        &shown,
        &["policies: its eviction is denied: the gate leader says no\n"],
    );
    has(&shown, &["  rule db/leader: gate.leader == false: no\n"]);
    let explained = cluster.json(&words);
    assert_eq!(explained["place"], 2);
    assert_eq!(explained["policies"], said);

    let other = cluster.refused(2, &["explain", "pod", "default/nobody"]);
    assert_eq!(other, "kubectl-evictd: default/nobody: no such pod\n");
    let young = pod("young", "u9", "Burstable", 7, None);
    cluster.server.state().put_pod(young);
    let young = cluster.refused(2, &["explain", "pod", "default/young"]);
    has(&young, &["the agent on n2 does not see it"]);
}

// R49
#[test]
fn incidents_of_all_nodes_stand_in_the_order_of_time() {
    let cluster = Cluster::new();
    let eviction = |number: u32| {
        json!({
            "id": format!("i-{number}"), "time": format!("2026-11-23T07:00:{number:02}.5Z"), "namespace": "default",
            "name": "hog", "signal": "memory.available", "shadow": number == 2,
        })
    };
    let all: Vec<Value> = (0..25).map(eviction).collect();
    cluster.agent_says("/evictd report -o json", prints(&json!(all)));
    // What an agent prints takes memory of its own: it is asked for no more than what is shown.
    let mut newest = all[5..].to_vec();
    newest[0]["olderLeftOut"] = 5.into();
    cluster.agent_says(NEWEST, prints(&json!(newest)));
    let shown = cluster.said(&["incidents"]);
    has(
        &shown,
        &["2026-11-23T07:00:24  n2    default/hog  memory.available"],
    );
    has(&shown, &["5 older ones are left out: --all shows them"]);
    let whole = cluster.said(&["incidents", "--all"]);
    has(&whole, &["shadow  i-2\n"]);
    assert!(!whole.contains("left out"), "{whole}");
    let found = cluster.json(&["incidents", "--node", NODE]);
    assert_eq!(found["leftOut"], 5);
    assert_eq!(found["incidents"][0]["id"], "i-5");
    assert_eq!(found["incidents"][0]["node"], NODE);
    assert!(found["incidents"][0].get("olderLeftOut").is_none());

    let told = "default/hog was evicted\n";
    let one = Ran {
        stdout: told.into(),
        ..Ran::default()
    };
    cluster.agent_says("/evictd report latest -o table", one);
    let one = cluster.said(&["incidents", "latest", "--node", NODE]);
    assert_eq!(one, told);
    // Lines of its journal that cannot be read hide no incident.
    let damaged = Ran {
        stdout: told.into(),
        ..fails("1 line of journal.jsonl cannot be read")
    };
    cluster.agent_says("/evictd report i-9 -o table", damaged);
    let one = cluster.said(&["incidents", "i-9", "--node", NODE]);
    assert_eq!(one, told);
    let mut asked = eviction(3);
    asked["agreed"] = false.into();
    cluster.agent_says(NEWEST, prints(&json!([asked])));
    let shown = cluster.said(&["incidents"]);
    has(&shown, &["asked, and not agreed to  i-3"]);

    // An agent of the version before has no `--newest`.
    let old = Ran {
        stderr: "error: unexpected argument '--newest' found\n\nUsage: evictd report [OPTIONS]\n"
            .into(),
        code: 2,
        ..Ran::default()
    };
    cluster.agent_says(NEWEST, old);
    let shown = cluster.said(&["incidents"]);
    has(&shown, &["i-24", "5 older ones are left out"]);

    // One agent that fails hides no other one's.
    cluster.agent_says(NEWEST, fails("/var/lib/evictd: No such file"));
    let shown = cluster.said(&["incidents"]);
    has(
        &shown,
        &["without the agent on n2: /var/lib/evictd: No such file"],
    );
    let none = fails("x: is none of the 25 incidents");
    cluster.agent_says("/evictd report x -o table", none);
    let refused = cluster.refused(1, &["incidents", "x", "--node", NODE]);
    has(
        &refused,
        &["the agent on n2: x: is none of the 25 incidents"],
    );
}

#[test]
fn bad_input_is_named_and_nothing_is_sent() {
    let mut cluster = Cluster::new();
    let refused = |words: &str, expected: &str| {
        let words: Vec<&str> = words.split(' ').collect();
        has(&cluster.refused(2, &words), &[expected]);
    };
    refused("explain pod db", "db: must be namespace/name");
    refused("explain pod a/b/c", "a/b/c: must be namespace/name");
    refused("incidents latest", "--node <NAME>");
    refused("status --context nowhere", "--kubeconfig: ");
    assert!(cluster.server.state().requests.is_empty());
    refused("pause --node n9", "n9: no such node");
    refused("incidents --node n9", "n9: no agent runs there");

    let broken = cluster.dir.path().join("broken");
    fs::write(&broken, "clusters: 7").unwrap();
    let nowhere = cluster.dir.path().join("nowhere");
    for file in [&broken, &nowhere] {
        cluster.kubeconfig = file.clone();
        let stderr = cluster.refused(2, &["status"]);
        let says = stderr.strip_prefix("kubectl-evictd: --kubeconfig: ");
        has(says.expect(&stderr), &[file.to_str().unwrap()]);
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
}

/// A server that refuses is no bad input.
#[test]
fn a_refusal_says_what_was_asked() {
    let cluster = Cluster::new();
    cluster.server.state().token = Some("another".into());
    let refused = cluster.refused(1, &["status"]);
    begins(&refused, "kubectl-evictd: nodes: 401");
}
