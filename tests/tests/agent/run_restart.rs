//! An agent that is killed and started again: limits count on, an old journal counts too, and who was killed already is not
//! evicted a second time.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use evictd::{evict::journal::Record, observe::cgroup::MemoryCgroup};
use evictd_tests::{
    agent::Agent, cgroup::TestCgroup, embedded::Files, hog::Hog, node::MIB, patience::holds,
    skip::not_root, skip_if,
};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(30);
/// Where cgroup v1 freezes.
const FREEZER: &str = "/sys/fs/cgroup/freezer";
/// More than the threshold leaves of the scope, and less than the scope.
const TOO_MUCH: &str = "210";

struct Limited {
    files: Files,
    scope: TestCgroup,
}

impl Limited {
    /// A scope of 256Mi, of which 64Mi must be available, with three pods: `a` and `b` belong together, `c` does not.
    fn new(name: &str) -> Self {
        let scope = TestCgroup::new(name, 256 * MIB).unwrap();
        let pod = |name: &str, owner: &str| {
            scope.child(name).unwrap();
            json!({
                "name": name,
                "cgroup": name,
                "labels": {"app": owner},
                "owner": {"kind": "StatefulSet", "name": owner},
            })
        };
        let pods = json!([pod("a", "one"), pod("b", "one"), pod("c", "other")]);
        let files = Files::new(scope.path(), &pods);
        Self { files, scope }
    }

    fn start(&self) -> Agent {
        self.files.start(&[])
    }

    fn hog(&self, pod: &str, mib: &str) -> Hog {
        Hog::start(&self.scope.path().join(pod), &["--mib", mib]).unwrap()
    }

    fn evicted(&self) -> Vec<String> {
        let evicted = self.files.records().into_iter().filter_map(|r| match r {
            Record::Evicted(e) => Some(e.name),
            _ => None,
        });
        evicted.collect()
    }

    fn reason(&self, pod: &str) -> Value {
        let path = self.files.dir().join("state/policies.json");
        let text = fs::read_to_string(path).unwrap_or_default();
        let all: Vec<Value> = serde_json::from_str(&text).unwrap_or_default();
        let wanted = format!("default/{pod}");
        let mut found = all.into_iter().filter(|e| e["pod"] == wanted.as_str());
        found.next().unwrap_or_default()["reason"].take()
    }

    /// The pod uses too much, and is evicted.
    fn goes(&self, pod: &str) {
        let before = self.evicted().len();
        let mut hog = self.hog(pod, TOO_MUCH);
        assert_eq!(hog.wait().unwrap(), Some(libc::SIGKILL));
        assert!(holds(SOON, || self.evicted().len() > before));
        assert_eq!(self.evicted().last().map(String::as_str), Some(pod));
    }

    /// The pod uses too much, and the agent says that nobody may be evicted.
    fn stays(&self, pod: &str, agent: &Agent) {
        let before = self.evicted();
        let mut hog = self.hog(pod, TOO_MUCH);
        let said = || agent.log().contains("no pod may be evicted");
        assert!(holds(SOON, said), "{}", agent.log());
        assert!(hog.is_alive());
        let reason = || self.reason(pod) == "a limit has no room";
        assert!(holds(SOON, reason), "{}", self.reason(pod));
        assert_eq!(self.evicted(), before);
        let memory = MemoryCgroup::open(self.scope.path()).unwrap();
        assert_eq!(memory.oom_kills().unwrap(), 0);
    }

    fn state(&self) -> PathBuf {
        let state = self.files.dir().join("state");
        fs::create_dir_all(&state).unwrap();
        state
    }
}

#[test]
fn a_rate_of_the_node_survives_sigkill() {
    skip_if!(not_root());
    let mut limited = Limited::new("ratenode");
    limited.files.config["evictionRates"] = json!({"node": {"evictions": 1, "period": "1h"}});
    let agent = limited.start();
    limited.goes("a");
    // SIGKILL.
    drop(agent);
    let agent = limited.start();
    limited.stays("b", &agent);
    drop(agent);
    let agent = limited.start();
    limited.stays("c", &agent);
}

#[test]
fn a_rate_of_an_owner_survives_sigkill() {
    skip_if!(not_root());
    let mut limited = Limited::new("rateowner");
    limited.files.config["evictionRates"] = json!({"owner": {"evictions": 1, "period": "1h"}});
    let agent = limited.start();
    limited.goes("a");
    drop(agent);
    let agent = limited.start();
    limited.stays("b", &agent);
    limited.goes("c");
}

#[test]
fn a_limit_of_a_group_survives_sigkill() {
    skip_if!(not_root());
    let mut limited = Limited::new("rategroup");
    let policy = limited.files.dir().join("policy.yaml");
    let limits = json!([{"groupBy": "app", "maxEvictedAtOnce": 1, "period": "1h"}]);
    let document = json!({
        "apiVersion": "evictd.io/v1alpha1",
        "kind": "EvictionPolicy",
        "metadata": {"name": "groups"},
        "spec": {"rules": [{"name": "r", "evict": "Always", "limits": limits}]},
    });
    fs::write(&policy, document.to_string()).unwrap();
    limited.files.config["policies"] = json!([policy]);
    let agent = limited.start();
    limited.goes("a");
    drop(agent);
    let agent = limited.start();
    limited.stays("b", &agent);
    limited.goes("c");
}

// An upgrade: the version before has not written down whose the pod was. One line is of a version to come.
#[test]
fn a_journal_of_another_version_counts() {
    skip_if!(not_root());
    let mut limited = Limited::new("rateold");
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

/// Keeps processes from dying, where cgroup v1 can.
struct Freezer(PathBuf);

impl Freezer {
    fn new(name: &str) -> io::Result<Self> {
        let path = Path::new(FREEZER).join(format!("evictd-{name}-{}", std::process::id()));
        fs::create_dir(&path)?;
        Ok(Self(path))
    }

    fn write(&self, file: &str, text: &str) {
        fs::write(self.0.join(file), text).unwrap();
    }

    fn freeze(&self, pid: &str) {
        self.write("cgroup.procs", pid);
        self.write("freezer.state", "FROZEN");
        let frozen = || {
            let state = fs::read_to_string(self.0.join("freezer.state")).unwrap();
            state.trim() == "FROZEN"
        };
        assert!(holds(SOON, frozen));
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        let _ = fs::write(self.0.join("freezer.state"), "THAWED");
        holds(SOON, || !self.0.exists() || fs::remove_dir(&self.0).is_ok());
    }
}

#[test]
fn who_was_killed_before_the_restart_is_not_evicted_twice() {
    skip_if!(not_root());
    let root = Path::new(FREEZER);
    skip_if!((!root.exists()).then_some("no freezer of cgroup v1"));
    let limited = Limited::new("dying");
    let agent = limited.start();
    let dir = limited.scope.path().join("a");
    // process_mrelease gives back what is mapped, but no file.
    let tmpfs = ["--way", "tmpfs", "--dir", "/dev/shm", "--mib", "150"];
    let mut hog = Hog::start(&dir, &tmpfs).unwrap();
    let used = || {
        let memory = MemoryCgroup::open(limited.scope.path()).unwrap();
        memory.usage().unwrap()
    };
    assert!(holds(SOON, || used() > 145 * MIB));
    let procs = fs::read_to_string(dir.join("cgroup.procs")).unwrap();
    // Dropped before the hog, which could not be waited for.
    let freezer = Freezer::new("dying").unwrap();
    freezer.freeze(procs.trim());
    // What is short is used by one that is no pod.
    let system = limited.scope.child("system").unwrap();
    let other = Hog::start(&system, &["--mib", "60"]).unwrap();
    assert!(holds(SOON, || !limited.evicted().is_empty()));
    drop(agent);
    let before = limited.evicted();
    assert!(before.iter().all(|pod| pod == "a"), "{before:?}");

    let agent = limited.start();
    let ending = "it was evicted before the agent started, and has processes left";
    assert!(holds(SOON, || limited.reason("a") == ending));
    assert!(holds(SOON, || agent
        .log()
        .contains("no pod may be evicted")));
    assert_eq!(limited.evicted(), before);
    assert!(hog.is_alive());
    drop(freezer);
    assert_eq!(hog.wait().unwrap(), Some(libc::SIGKILL));
    drop(other);
    // It is a pod like any other again.
    assert!(holds(SOON, || limited.reason("a").is_null()));
    limited.goes("a");
    assert_eq!(limited.evicted().len(), before.len() + 1);
    drop(agent);
}
