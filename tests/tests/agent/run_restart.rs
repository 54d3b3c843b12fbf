//! An agent that is killed and started again: limits count on, an old journal counts too, and a pod that was killed already
//! is not evicted a second time.

use std::os::unix::fs::MetadataExt as _;

use evictd_tests::{held_in_exit::HeldInExit, prelude::*};

/// More than the threshold leaves of the scope, and less than the scope.
const TOO_MUCH: [&str; 2] = ["--mib", "210"];

/// A crash, and then starts that fail: the pods that the crash has left throttled do not wait for a start that succeeds.
// R46
#[test]
fn a_start_that_fails_leaves_no_pod_throttled() {
    skip_if!(not_root());
    for field in ["scope", "podManifest"] {
        let mut files = Files::of("unstarted", 256, &json!([]));
        files.config[field] = match field {
            "scope" => json!({ "cgroup": "/nowhere" }),
            _ => json!("/nowhere"),
        };
        let pod = files.dir().join("pod");
        let high = pod.join("memory.high");
        fs::create_dir(&pod).unwrap();
        fs::write(&high, "65536\n").unwrap();
        let id = fs::metadata(&pod).unwrap().ino();
        let left = json!([{ "uid": "a", "cgroup": pod, "id": id, "before": "max", "high": 65536 }]);
        fs::create_dir(files.dir().join("state")).unwrap();
        fs::write(files.dir().join("state/brakes.json"), left.to_string()).unwrap();
        assert!(files.refused().contains("/nowhere"));
        assert_eq!(fs::read_to_string(&high).unwrap(), "max");
    }
}

/// Its service is started again, say.
#[test]
fn a_scope_that_is_made_anew_is_watched_again() {
    let files = as_root!(Files::of_hog("anew", 256));
    let agent = files.start(&[]);
    let scope = files.scope();
    scope.make_anew(256 * MIB).unwrap();
    scope.child("besteffort/hog").unwrap();
    assert!(agent.says("the scope's cgroup was made anew"));
    files.until_killed("hog", &TOO_MUCH);
    assert!(until(SOON, || files.evicted() == ["hog"]));
    assert_eq!(scope.oom_kills().unwrap(), 0);
}

struct Limited {
    files: Files,
}

impl Limited {
    /// A scope of 256Mi, of which 64Mi must be available, with three pods: `a` and `b` belong together, `c` does not.
    fn new(name: &str) -> Self {
        let pod = |name: &str, owner: &str| {
            json!({
                "name": name,
                "cgroup": name,
                "labels": {"app": owner},
                "owner": {"kind": "StatefulSet", "name": owner},
            })
        };
        let pods = json!([pod("a", "one"), pod("b", "one"), pod("c", "other")]);
        let files = Files::of(name, 256, &pods);
        Self { files }
    }

    fn start(&self) -> Agent {
        self.files.start(&[])
    }

    fn evicted(&self) -> Vec<String> {
        self.files.evicted()
    }

    fn reason(&self, pod: &str) -> Value {
        let path = self.files.dir().join("state/policies.json");
        let text = fs::read_to_string(path).unwrap_or_default();
        let all: Vec<Value> = serde_json::from_str(&text).unwrap_or_default();
        let wanted = format!("default/{pod}");
        let mut found = all.into_iter().filter(|e| e["pod"] == wanted.as_str());
        found.next().unwrap_or_default()["reason"].take()
    }

    /// A scope where `a` is evicted under a limit; then the agent is killed, and the one that follows lets `b` live.
    fn restarted(name: &str, limit: impl FnOnce(&mut Self)) -> (Self, Agent) {
        let mut limited = Self::new(name);
        limit(&mut limited);
        let agent = limited.start();
        limited.goes("a");
        agent.kill();
        let agent = limited.start();
        limited.stays("b", &agent);
        (limited, agent)
    }

    /// The pod uses too much, and is evicted.
    fn goes(&self, pod: &str) {
        let before = self.evicted().len();
        let mut hog = self.files.hog(pod, &TOO_MUCH);
        hog.killed();
        assert!(until(SOON, || self.evicted().len() > before));
        assert_eq!(self.evicted().last().map(String::as_str), Some(pod));
    }

    /// The pod uses too much, and the agent says that no pod may be evicted.
    fn stays(&self, pod: &str, agent: &Agent) {
        let before = self.evicted();
        let mut hog = self.files.hog(pod, &TOO_MUCH);
        assert!(agent.says("no pod may be evicted"));
        assert!(hog.is_alive());
        let reason = || self.reason(pod) == "a limit has no room";
        assert!(until(SOON, reason), "{}", self.reason(pod));
        assert_eq!(self.evicted(), before);
        assert_eq!(self.files.scope().oom_kills().unwrap(), 0);
    }

    fn state(&self) -> PathBuf {
        let state = self.files.dir().join("state");
        fs::create_dir_all(&state).unwrap();
        state
    }
}

#[test]
fn a_rate_of_the_node_survives_sigkill() {
    let rate = json!({"node": {"evictions": 1, "period": "1h"}});
    let (limited, agent) = as_root!(Limited::restarted("ratenode", |limited| {
        limited.files.config["evictionRates"] = rate;
    }));
    agent.kill();
    let agent = limited.start();
    limited.stays("c", &agent);
}

#[test]
fn a_rate_of_an_owner_survives_sigkill() {
    let rate = json!({"owner": {"evictions": 1, "period": "1h"}});
    let (limited, _agent) = as_root!(Limited::restarted("rateowner", |limited| {
        limited.files.config["evictionRates"] = rate;
    }));
    limited.goes("c");
}

#[test]
fn a_limit_of_a_group_survives_sigkill() {
    let limits = json!([{"groupBy": "app", "maxEvictedAtOnce": 1, "period": "1h"}]);
    let document = json!({
        "apiVersion": "evictd.io/v1alpha1",
        "kind": "EvictionPolicy",
        "metadata": {"name": "groups"},
        "spec": {
            "allNamespaces": "a node without a cluster",
            "rules": [{"name": "r", "evict": "Always", "limits": limits}],
        },
    });
    let (limited, _agent) = as_root!(Limited::restarted("rategroup", |limited| {
        let policy = limited.files.dir().join("policy.yaml");
        fs::write(&policy, document.to_string()).unwrap();
        limited.files.config["policies"] = json!([policy]);
    }));
    limited.goes("c");
}

// An upgrade: the version before has not written down whose the pod was. One line is of a version to come.
#[test]
fn a_journal_of_another_version_counts() {
    let mut limited = as_root!(Limited::new("rateold"));
    limited.files.config["evictionRates"] = json!({"owner": {"evictions": 1, "period": "1h"}});
    let time = jiff::Timestamp::now() - jiff::SignedDuration::from_mins(10);
    // As it is written: the event comes first.
    let eviction = format!(
        r#"{{"event":"evicted","id":"00000000-0000-4000-8000-000000000000-1-1","time":"{time}","namespace":"default","name":"x","uid":"x","phase":"Failed","reason":"Evicted","message":"","signal":"memory.available","shadow":false,"hook":"sampler","stages":{{"crossed":0,"woken":1,"decided":2,"signalled":3}},"available":0,"threshold":0,"usageAtCrossing":0,"usageAtDecision":0,"workingSet":0,"request":0}}"#
    );
    let future = format!(r#"{{"event":"levitated","time":"{time}","height":3}}"#);
    let journal = limited.state().join("journal.jsonl");
    fs::write(journal, format!("{future}\n{eviction}\n")).unwrap();
    let agent = limited.start();
    // Any owner's pod of that namespace may have been it.
    limited.stays("b", &agent);
}

/// A victim of an agent that was killed: `a` holds 150 MiB and cannot die. The rest of what is short is used by `b`, if it is there,
/// and by one that is no pod.
struct Dying {
    limited: Limited,
    held: Option<HeldInExit>,
    hog: Hog,
    innocent: Option<Hog>,
    other: Hog,
}

impl Dying {
    fn new(name: &str, has_innocent: bool) -> Self {
        let limited = Limited::new(name);
        let agent = limited.start();
        let innocent = has_innocent.then(|| limited.files.hog("b", &["--mib", "30"]));
        // process_mrelease gives back what is mapped, but no file.
        let tmpfs = ["--way", "tmpfs", "--dir", "/dev/shm", "--mib", "150"];
        let (hog, scope) = (limited.files.hog("a", &tmpfs), limited.files.scope());
        assert!(scope.holds(145));
        let held = HeldInExit::hold(hog.pid()).unwrap();
        let system = scope.child("system").unwrap();
        // So slow that the first victim's memory is waited for: at full speed it would not come in time.
        let rest = if has_innocent { "30" } else { "60" };
        let other = Hog::start(&system, &["--mib", rest, "--rate", "20"]).unwrap();
        assert!(until(SOON, || !limited.evicted().is_empty()));
        agent.kill();
        assert_eq!(limited.evicted(), ["a"]);
        Self {
            limited,
            held: Some(held),
            hog,
            innocent,
            other,
        }
    }

    /// It can die now, and does.
    fn dies(&mut self) {
        self.held = None;
        self.hog.killed();
    }

    /// The id of its eviction, and how often that is found in the journal as stuck and as finished.
    fn told(&self) -> (String, usize, usize) {
        let records = self.limited.files.records();
        let id =
            records_of!(&records, Record::Evicted(e) if e.name == "a" => e.id.clone()).remove(0);
        let stuck = records_of!(&records, Record::Stuck(s) if s.id == id).len();
        let finished =
            records_of!(&records, Record::Finished(f) if f.id == id && f.exited > 0).len();
        (id, stuck, finished)
    }
}

#[test]
fn a_pod_killed_before_the_restart_is_not_evicted_twice() {
    let mut dying = as_root!(Dying::new("dying", false));
    let agent = dying.limited.start();
    let limited = &dying.limited;
    let ending = "it was evicted before the agent started, and has processes left";
    assert!(until(SOON, || limited.reason("a") == ending));
    // Once nothing is expected of it any more.
    assert!(until(SOON, || agent
        .log()
        .contains("no pod may be evicted")));
    assert_eq!(limited.evicted(), ["a"]);
    assert!(dying.hog.is_alive());
    dying.dies();
    let Dying { limited, other, .. } = dying;
    drop(other);
    // It is a pod like any other again.
    assert!(until(SOON, || limited.reason("a").is_null()));
    limited.goes("a");
    assert_eq!(limited.evicted(), ["a", "a"]);
}

/// While its memory is due no other pod goes for it, across any number of agents; once it is stuck the next one goes, at the
/// pace that the first eviction has set.
// R43
#[test]
fn what_an_earlier_victim_holds_is_due_until_it_is_stuck() {
    let mut dying = as_root!(Dying::new("due", true));
    let agent = dying.limited.start();
    assert!(until(SOON, || dying.told().1 > 0));
    agent.kill();
    let _agent = dying.limited.start();
    let innocent = dying.innocent.as_mut().unwrap();
    innocent.killed();
    let limited = &dying.limited;
    assert!(until(SOON, || limited.evicted().len() > 1));
    assert_eq!(limited.evicted(), ["a", "b"]);
    let records = limited.files.records();
    let place = |is: fn(&Record) -> bool| records.iter().position(is).unwrap();
    let stuck = place(|r| matches!(r, Record::Stuck(_)));
    let next = place(|r| matches!(r, Record::Evicted(e) if e.name == "b"));
    assert!(stuck < next, "{records:?}");
    let evictions = limited.files.evictions().into_iter();
    let at: Vec<u64> = evictions.map(|e| e.stages.signalled).collect();
    assert!(at[1] - at[0] >= 10_000_000_000, "{at:?}");
    assert_eq!(dying.told().1, 1);
    dying.dies();
}

/// It comes to its end while the next agent runs: no other pod has gone for it, and the end is told of its eviction.
// R43
#[test]
fn an_earlier_victim_that_dies_after_the_restart_saves_the_others() {
    let mut dying = as_root!(Dying::new("saves", true));
    let _agent = dying.limited.start();
    dying.dies();
    assert!(until(SOON, || dying.told().2 == 1));
    assert_eq!(dying.limited.evicted(), ["a"]);
    assert!(dying.innocent.as_mut().unwrap().is_alive());
}

/// The process of another pod stands for a container that the kubelet has started again: from then on it runs in the victim's
/// cgroup.
// R47
#[test]
fn shadow_mode_signals_no_victim_of_live_mode() {
    let mut dying = as_root!(Dying::new("shadowed", true));
    let agent = dying.limited.start();
    dying.limited.files.change("shadow", json!(true));
    assert!(agent.says("the configuration has changed and is in force"));
    let Dying {
        limited, innocent, ..
    } = &mut dying;
    let restarted = innocent.as_mut().unwrap();
    let processes = limited.files.cgroup("a").join("cgroup.procs");
    fs::write(processes, restarted.pid().to_string()).unwrap();
    // One that is stuck is signalled once a second.
    let looked_at = Duration::from_secs(4);
    std::thread::sleep(looked_at);
    assert!(restarted.is_alive(), "the agent that was live before");
    agent.kill();
    let _agent = limited.start();
    std::thread::sleep(looked_at);
    assert!(restarted.is_alive(), "an agent that starts in shadow mode");
    limited.files.change("shadow", json!(false));
    restarted.killed();
    dying.dies();
}
