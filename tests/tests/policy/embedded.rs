//! `evictd run` with policies in files, and scripted servers for its gates.

use std::ffi::OsString;

use evictd_tests::{policies::document, prelude::*, scripted::Scripted, vectors::evictd};

struct Ruled {
    files: Files,
}

impl Ruled {
    /// Two BestEffort pods, `db` and `web`, and one policy.
    fn new(name: &str, ip: &str, spec: &Value) -> Self {
        let pod = |name: &str| json!({"name": name, "cgroup": format!("besteffort/{name}"), "labels": {"app": name}, "ip": ip});
        Self::of(name, spec, &json!([pod("db"), pod("web")]))
    }

    fn of(name: &str, spec: &Value, pods: &Value) -> Self {
        let files = Files::of(name, 256, pods);
        let mut ruled = Self { files };
        ruled.files.config["policies"] = json!([ruled.policies()]);
        fs::create_dir(ruled.policies()).unwrap();
        ruled.write("db", spec);
        ruled
    }

    fn policies(&self) -> PathBuf {
        self.files.dir().join("policies")
    }

    fn write(&self, name: &str, spec: &Value) {
        let policy = document(name, spec.clone());
        // At once, as an editor or a mounted ConfigMap does it.
        let new = self.files.dir().join("new");
        fs::write(&new, policy.to_string()).unwrap();
        fs::rename(new, self.policies().join(format!("{name}.yaml"))).unwrap();
    }

    fn hog(&self, pod: &str, mib: &str) -> Hog {
        self.files.hog(pod, &["--mib", mib])
    }

    /// The same, when it has grown.
    fn grown(&self, pod: &str, mib: u64) -> Hog {
        let hog = self.hog(pod, &mib.to_string());
        let least = (mib - 5) * MIB;
        self.wait("it has grown", |r| r.files.scope().usage().unwrap() > least);
        hog
    }

    fn explained(&self, pod: &str) -> Value {
        super::explained(self.files.dir(), pod)
    }

    /// What a command prints that is given the agent's configuration.
    fn told(&self, words: &[&str]) -> String {
        let config = self.files.dir().join("config.json");
        let words = words.iter().chain(&["--config"]).map(OsString::from);
        evictd(words.chain([config.into()])).good()
    }

    fn wait(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        let holds = until(Duration::from_secs(30), || condition(self));
        assert!(holds, "{what}");
    }
}

/// One rule for all pods.
fn evict(word: &str) -> Value {
    json!({"rules": [{"name": "r", "evict": word}]})
}

fn never() -> Value {
    json!({"selector": {"matchLabels": {"app": "db"}}, "rules": [{"name": "db", "evict": "Never"}]})
}

// R12, R34
#[test]
fn a_spared_pod_outlives_a_smaller_one() {
    let ruled = as_root!(Ruled::new("emspare", "", &never()));
    let _agent = ruled.files.start(&[]);
    let mut db = ruled.grown("db", 120);
    ruled.hog("web", "100").killed();
    assert!(db.is_alive());
    ruled.wait("it is written down", |r| r.files.evicted() == ["web"]);
    assert_eq!(ruled.explained("db")["reason"], "the rule says Never");
}

/// Under any signal, and once.
// R12, R34
#[test]
fn a_shortage_for_which_every_pod_is_denied_is_logged() {
    let disk = or_skip!(Disk::new("ext4", 64, 1024));
    let mut ruled = Ruled::new("emdenied", "", &evict("Never"));
    ruled.files.config["filesystems"] = json!({"nodefs": disk.path()});
    ruled.files.config["evictionHard"]["nodefs.available"] = json!("99.9%");
    let mut pods = ["db", "web"].map(|pod| ruled.hog(pod, "10"));
    let agent = ruled.files.start(&[]);
    let words = "the threshold is met and no pod may be evicted signal=nodefs.available";
    assert!(agent.says(words));
    has(&agent.log(), &["denied=2"]);
    // A few looks more.
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(agent.log().matches(words).count(), 1);
    assert!(pods.iter_mut().all(Hog::is_alive) && ruled.files.evicted().is_empty());
}

/// A policy in shadow mode lets the pod go, and the log has what it would have denied.
#[test]
fn a_soft_eviction_is_logged_that_a_shadow_policy_would_have_denied() {
    let mut spec = never();
    spec["shadow"] = json!(true);
    let mut ruled = as_root!(Ruled::new("emsoftshadow", "", &spec));
    set_soft(&mut ruled.files.config, "160Mi");
    let agent = ruled.files.start(&[]);
    let mut db = ruled.hog("db", "110");
    assert_eq!(db.wait().unwrap(), Some(libc::SIGTERM));
    assert!(agent.says("a policy in shadow mode would have denied the eviction"));
}

/// Policies spare the first eighteen of twenty pods: the one that goes is in its report all the same, and in its place.
// R49
#[test]
fn a_victim_behind_many_spared_pods_is_reported() {
    skip_if!(not_root());
    // None is above its request, so that the policy's order decides.
    let pod = |name: &str, app: &str| {
        let cgroup = format!("besteffort/{name}");
        json!({"name": name, "cgroup": cgroup, "labels": {"app": app}, "requests": {"memory": "1Gi"}})
    };
    let spared = (0..18).map(|number| pod(&format!("spared{number}"), "db"));
    let others = [pod("hog", "web"), pod("web", "web")];
    let pods: Vec<Value> = spared.chain(others).collect();
    let mut spec = never();
    spec["rules"][0]["order"] = (-5).into();
    let ruled = Ruled::of("emmany", &spec, &json!(pods));
    let agent = ruled.files.start(&[]);
    ruled.hog("hog", "220").killed();
    ruled.wait("it is written down", |r| r.files.evicted() == ["hog"]);
    drop(agent);
    let text = ruled.told(&["report", "latest", "-o", "json"]);
    let incident: Value = serde_json::from_str(&text).unwrap();
    let pods = incident["incident"]["pods"].as_array().unwrap();
    let victim = pods.iter().find(|pod| pod["evicted"] == true).unwrap();
    assert_eq!(
        (&victim["pod"], &victim["place"]),
        (&json!("default/hog"), &json!(19))
    );
    assert_eq!(pods.len(), 17, "{text}");
    assert!(pods[0]["spared"].is_string() && pods[0].get("place").is_none());
    let table = ruled.told(&["report", "latest"]);
    let line = table
        .lines()
        .find(|line| line.contains("default/hog  "))
        .unwrap();
    assert!(
        line.trim_start().starts_with("19 ") && line.ends_with("evicted"),
        "{table}"
    );
}

// R12, R13
#[test]
fn top_shows_the_order_that_policies_leave() {
    let ruled = as_root!(Ruled::new("emtop", "", &never()));
    let agent = ruled.files.start(&[]);
    let _db = ruled.hog("db", "60");
    let _web = ruled.hog("web", "30");
    ruled.wait("both are there", |r| {
        r.files.scope().usage().unwrap() > 85 * MIB
    });
    let top = || -> Value {
        let told = ruled.told(&["top", "-n", "1", "--interval", "0.1", "-o", "json"]);
        serde_json::from_str(&told).unwrap()
    };
    let pods = || {
        let pods = top()["pods"].as_array().unwrap().clone();
        let shown = pods.into_iter().map(|pod| {
            let is_first = pod["predictedEvictionVictim"] == true;
            (
                pod["pod"].as_str().unwrap().to_owned(),
                is_first,
                pod["spared"].clone(),
            )
        });
        shown.collect::<Vec<_>>()
    };
    let pod = |name: &str, is_first| (format!("default/{name}"), is_first, Value::Null);
    let (mut db, web) = (pod("db", false), pod("web", true));
    db.2 = json!("the rule says Never");
    assert_eq!(pods(), [db, web]);
    // The larger one may go, and last.
    let mut spec = never();
    spec["rules"][0] = json!({"name": "db", "evict": "Always", "order": 10});
    ruled.write("db", &spec);
    ruled.wait("the agent has read it", |r| {
        r.explained("db")["order"] == 10
    });
    assert_eq!(pods(), [pod("web", true), pod("db", false)]);
    assert_eq!(top()["policiesUnknown"], false);
    drop(agent);
    // Whether that still holds is not known.
    assert_eq!(pods(), [pod("db", true), pod("web", false)]);
    let told = ruled.told(&["top", "-n", "1", "--interval", "0.1"]);
    assert!(told.contains("no agent answers"), "{told}");
}

// R38
#[test]
fn a_gate_opens_while_the_node_is_short() {
    let server = Scripted::start(61).unwrap();
    server.json("/drained", json!({"drained": false}));
    let spec = json!({
        "selector": {"matchLabels": {"app": "db"}},
        "gates": [{
            "name": "drained",
            "interval": "100ms",
            "http": {"port": server.port(), "path": "/drained"},
            "check": "answer.drained",
        }],
        "rules": [{"name": "db", "evict": "When", "when": "gates.drained"}],
    });
    let ruled = as_root!(Ruled::new("emgate", &server.ip(), &spec));
    let _agent = ruled.files.start(&[]);
    let mut db = ruled.grown("db", 200);
    ruled.wait("it is asked and said", |r| {
        r.explained("db")["rules"][0]["gates"][0]["answer"] == false
    });
    std::thread::sleep(Duration::from_millis(300));
    assert!(db.is_alive() && ruled.files.evicted().is_empty());
    // The agent says how it is now, not how it was when it changed last.
    let explain = |output: &str| ruled.told(&["policy", "explain", "db", "-o", output]);
    let age = |json: &str| {
        let explained: Value = serde_json::from_str(json).unwrap();
        explained[0]["rules"][0]["gates"][0]["ageSeconds"]
            .as_f64()
            .unwrap()
    };
    ruled.wait("its age starts anew with each answer", |_| {
        age(&explain("json")) < 1.0
    });
    let text = explain("table");
    has(&text, &["could not be evicted: gates.drained is false"]);
    has(&text, &["gate drained: no, answered "]);
    assert!(!text.contains("no agent"), "{text}");
    server.json("/drained", json!({"drained": true}));
    db.killed();
}

#[test]
fn a_bad_policy_is_refused_at_the_start_and_later_changes_nothing() {
    let mut ruled = as_root!(Ruled::new("embad", "", &evict("Sometimes")));
    let address = listen(&mut ruled.files.config, "metricsAddress");
    let stderr = ruled.files.refused();
    let expected = "policies/db.yaml: db: spec.rules[0].evict: \"Sometimes\": must be one of Always, Never, When";
    let is_it = |line: &str| line.starts_with("evictd: ") && line.ends_with(expected);
    assert!(stderr.lines().any(is_it), "{stderr}");

    ruled.write("db", &never());
    let _agent = ruled.files.start(&[]);
    ruled.write(
        "db",
        &json!({"rules": [{"name": "r", "evict": "When", "when": "pod.colour"}]}),
    );
    let refused = "evictd_policies_refused{source=\"file\"} 1";
    ruled.wait("it is refused", |_| shows(&address, refused));
    let mut db = ruled.grown("db", 200);
    std::thread::sleep(Duration::from_millis(300));
    assert!(db.is_alive(), "the last good policy stays in force");
    // And a good one is taken without a new start.
    ruled.write("db", &evict("Always"));
    db.killed();
}

#[test]
fn a_file_pauses_the_agent() {
    let ruled = as_root!(Ruled::new("empause", "", &evict("Always")));
    let _agent = ruled.files.start(&[]);
    let pause = ruled.files.dir().join("state/pause");
    fs::write(&pause, "").unwrap();
    ruled.wait("it is obeyed", |r| {
        r.explained("db")["reason"] == "evictions are paused on this node"
    });
    let mut db = ruled.grown("db", 200);
    std::thread::sleep(Duration::from_millis(300));
    assert!(db.is_alive());
    fs::remove_file(pause).unwrap();
    db.killed();
}

/// Stops the agent while a pod grows past the floor; how often the OOM killer acted.
fn oom_kills_while_stopped(name: &str, spec: &Value) -> u64 {
    let mut ruled = Ruled::new(name, "", spec);
    ruled.files.config["kernelFloor"] = json!({"enabled": true, "memory.available": "32Mi"});
    let agent = ruled.files.start(&[]);
    let mut db = ruled.files.hog("db", &["--mib", "1000", "--rate", "60"]);
    ruled.wait("it grows", |r| r.files.scope().usage().unwrap() > 120 * MIB);
    agent.stop().unwrap();
    db.killed();
    let kills = ruled.files.scope().oom_kills().unwrap();
    agent.go_on().unwrap();
    kills
}

// R41: past the floor the kernel kills only pods that the policies let go for good.
#[test]
fn the_kernel_kills_no_pod_that_the_policies_deny() {
    skip_if!(no_bpf());
    let for_now =
        json!({"rules": [{"name": "r", "evict": "When", "when": "pod.labels.app == 'db'"}]});
    for (name, spec, oom_kills, why) in [
        ("emfloornever", never(), 1, "the OOM killer had to"),
        (
            "emfloorwhen",
            for_now,
            1,
            "no thread looks whether it still counts",
        ),
        ("emflooralways", evict("Always"), 0, "the floor holds"),
    ] {
        assert_eq!(oom_kills_while_stopped(name, &spec), oom_kills, "{why}");
    }
}
