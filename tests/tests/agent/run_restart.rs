//! An agent that is killed and started again: limits count on, an old journal counts too, and a pod that was killed already
//! is not evicted a second time.

use std::os::unix::fs::MetadataExt as _;

use evictd_tests::{
    held_in_exit::HeldInExit, policies::document, policy_fixture::always, prelude::*,
};

use crate::TOO_MUCH;

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

/// A scope of 256Mi, of which 64Mi must be available, with three pods: `a` and `b` belong together, `c` does not.
fn limited(name: &str) -> Files {
    let pod = |name: &str, owner: &str| {
        json!({
            "name": name,
            "cgroup": name,
            "labels": {"app": owner},
            "owner": {"kind": "StatefulSet", "name": owner},
        })
    };
    let pods = json!([pod("a", "one"), pod("b", "one"), pod("c", "other")]);
    Files::of(name, 256, &pods)
}

/// A scope where `a` is evicted under a limit; then the agent is killed, and the one that follows lets `b` live.
fn restarted(name: &str, limit: impl FnOnce(&mut Files)) -> (Files, Agent) {
    let mut files = limited(name);
    limit(&mut files);
    let agent = files.start(&[]);
    goes(&files, "a");
    agent.kill();
    let agent = files.start(&[]);
    stays(&files, "b", &agent);
    (files, agent)
}

fn reason(files: &Files, pod: &str) -> Value {
    let path = files.dir().join("state/policies.json");
    let text = fs::read_to_string(path).unwrap_or_default();
    let all: Vec<Value> = serde_json::from_str(&text).unwrap_or_default();
    let wanted = format!("default/{pod}");
    let mut found = all.into_iter().filter(|e| e["pod"] == wanted.as_str());
    found.next().unwrap_or_default()["reason"].take()
}

/// The pod uses too much, and is evicted.
fn goes(files: &Files, pod: &str) {
    let before = files.evicted().len();
    files.until_killed(pod, &TOO_MUCH);
    assert!(until(SOON, || files.evicted().len() > before));
    assert_eq!(files.evicted().last().map(String::as_str), Some(pod));
}

/// The pod uses too much, and the agent says that no pod may be evicted.
fn stays(files: &Files, pod: &str, agent: &Agent) {
    let before = files.evicted();
    let mut hog = files.hog(pod, &TOO_MUCH);
    assert!(agent.says("no pod may be evicted"));
    assert!(hog.is_alive());
    let is_said = || reason(files, pod) == "a limit has no room";
    assert!(until(SOON, is_said), "{}", reason(files, pod));
    assert_eq!(files.evicted(), before);
    assert_eq!(files.scope().oom_kills().unwrap(), 0);
}

#[test]
fn a_rate_of_the_node_survives_sigkill() {
    let rate = json!({"node": {"evictions": 1, "period": "1h"}});
    let (files, agent) = as_root!(restarted("ratenode", |files| {
        files.config["evictionRates"] = rate;
    }));
    agent.kill();
    let agent = files.start(&[]);
    stays(&files, "c", &agent);
}

#[test]
fn a_rate_of_an_owner_survives_sigkill() {
    let rate = json!({"owner": {"evictions": 1, "period": "1h"}});
    let (files, _agent) = as_root!(restarted("rateowner", |files| {
        files.config["evictionRates"] = rate;
    }));
    goes(&files, "c");
}

#[test]
fn a_limit_of_a_group_survives_sigkill() {
    let limits = json!([{"groupBy": "app", "maxEvictedAtOnce": 1, "period": "1h"}]);
    let document = document("groups", always(&limits));
    let (files, _agent) = as_root!(restarted("rategroup", |files| {
        let policy = files.dir().join("policy.yaml");
        fs::write(&policy, document.to_string()).unwrap();
        files.config["policies"] = json!([policy]);
    }));
    goes(&files, "c");
}

// An upgrade: the version before has not written down whose the pod was. One line is of a version to come.
#[test]
fn a_journal_of_another_version_counts() {
    let mut files = as_root!(limited("rateold"));
    files.config["evictionRates"] = json!({"owner": {"evictions": 1, "period": "1h"}});
    let time = jiff::Timestamp::now() - jiff::SignedDuration::from_mins(10);
    // As it is written: the event comes first.
    let eviction = format!(
        r#"{{"event":"evicted","id":"00000000-0000-4000-8000-000000000000-1-1","time":"{time}","namespace":"default","name":"x","uid":"x","phase":"Failed","reason":"Evicted","message":"","signal":"memory.available","shadow":false,"hook":"sampler","stages":{{"crossed":0,"woken":1,"decided":2,"signalled":3}},"available":0,"threshold":0,"usageAtCrossing":0,"usageAtDecision":0,"workingSet":0,"request":0}}"#
    );
    let future = format!(r#"{{"event":"levitated","time":"{time}","height":3}}"#);
    let state = files.dir().join("state");
    fs::create_dir(&state).unwrap();
    fs::write(
        state.join("journal.jsonl"),
        format!("{future}\n{eviction}\n"),
    )
    .unwrap();
    let agent = files.start(&[]);
    // Any owner's pod of that namespace may have been it.
    stays(&files, "b", &agent);
}

/// A victim of an agent that was killed: `a` holds 150 MiB and cannot die. The rest of what is short is used by `b`, if it is there,
/// and by one that is no pod.
struct Dying {
    files: Files,
    held: Option<HeldInExit>,
    hog: Hog,
    innocent: Option<Hog>,
    other: Hog,
}

impl Dying {
    fn new(name: &str, has_innocent: bool) -> Self {
        let files = limited(name);
        let agent = files.start(&[]);
        let innocent = has_innocent.then(|| files.hog("b", &["--mib", "30"]));
        // process_mrelease gives back what is mapped, but no file.
        let tmpfs = ["--way", "tmpfs", "--dir", "/dev/shm", "--mib", "150"];
        let (hog, scope) = (files.hog("a", &tmpfs), files.scope());
        assert!(scope.holds(145));
        let held = HeldInExit::hold(hog.pid()).unwrap();
        let system = scope.child("system").unwrap();
        // So slow that the first victim's memory is waited for: at full speed it would not come in time.
        let rest = if has_innocent { "30" } else { "60" };
        let other = Hog::start(&system, &["--mib", rest, "--rate", "20"]).unwrap();
        assert!(until(SOON, || !files.evicted().is_empty()));
        agent.kill();
        assert_eq!(files.evicted(), ["a"]);
        Self {
            files,
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
        let records = self.files.records();
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
    let agent = dying.files.start(&[]);
    let files = &dying.files;
    let ending = "it was evicted before the agent started, and has processes left";
    assert!(until(SOON, || reason(files, "a") == ending));
    // Once nothing is expected of it any more.
    assert!(until(SOON, || agent
        .log()
        .contains("no pod may be evicted")));
    assert_eq!(files.evicted(), ["a"]);
    assert!(dying.hog.is_alive());
    dying.dies();
    let Dying { files, other, .. } = dying;
    drop(other);
    // It is a pod like any other again.
    assert!(until(SOON, || reason(&files, "a").is_null()));
    goes(&files, "a");
    assert_eq!(files.evicted(), ["a", "a"]);
}

/// While its memory is due no other pod goes for it, across any number of agents; once it is stuck the next one goes, at the
/// pace that the first eviction has set.
// R43
#[test]
fn what_an_earlier_victim_holds_is_due_until_it_is_stuck() {
    let mut dying = as_root!(Dying::new("due", true));
    let agent = dying.files.start(&[]);
    assert!(until(SOON, || dying.told().1 > 0));
    agent.kill();
    let _agent = dying.files.start(&[]);
    let innocent = dying.innocent.as_mut().unwrap();
    innocent.killed();
    let files = &dying.files;
    assert!(until(SOON, || files.evicted().len() > 1));
    assert_eq!(files.evicted(), ["a", "b"]);
    let records = files.records();
    let place = |is: fn(&Record) -> bool| records.iter().position(is).unwrap();
    let stuck = place(|r| matches!(r, Record::Stuck(_)));
    let next = place(|r| matches!(r, Record::Evicted(e) if e.name == "b"));
    assert!(stuck < next, "{records:?}");
    let evictions = files.evictions().into_iter();
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
    let _agent = dying.files.start(&[]);
    dying.dies();
    assert!(until(SOON, || dying.told().2 == 1));
    assert_eq!(dying.files.evicted(), ["a"]);
    assert!(dying.innocent.as_mut().unwrap().is_alive());
}

/// The process of another pod stands for a container that the kubelet has started again: from then on it runs in the victim's
/// cgroup.
// R47
#[test]
fn shadow_mode_signals_no_victim_of_live_mode() {
    let mut dying = as_root!(Dying::new("shadowed", true));
    let agent = dying.files.start(&[]);
    dying.files.change("shadow", json!(true));
    assert!(agent.says("the configuration has changed and is in force"));
    let Dying {
        files, innocent, ..
    } = &mut dying;
    let restarted = innocent.as_mut().unwrap();
    let processes = files.cgroup("a").join("cgroup.procs");
    fs::write(processes, restarted.pid().to_string()).unwrap();
    // One that is stuck is signalled once a second.
    let looked_at = Duration::from_secs(4);
    std::thread::sleep(looked_at);
    assert!(restarted.is_alive(), "the agent that was live before");
    agent.kill();
    let _agent = files.start(&[]);
    std::thread::sleep(looked_at);
    assert!(restarted.is_alive(), "an agent that starts in shadow mode");
    files.change("shadow", json!(false));
    restarted.killed();
    dying.dies();
}
