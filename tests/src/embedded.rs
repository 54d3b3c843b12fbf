//! The files that an embedded agent needs, in a directory of the test's own: configuration, manifest, state.

use std::process::{Child, Output};

use evictd_engine::pace::PaceInputs;
use evictd_store::{
    incident,
    record::{RequestRecord, oom_kill::OomKillRecord},
};

use crate::{
    agent::{binary, refusal, until_its_end},
    prelude::*,
};

fn hog() -> Value {
    json!({ "name": "hog", "cgroup": "besteffort/hog" })
}

fn calm() -> Value {
    json!({ "name": "calm", "cgroup": "calm", "requests": { "memory": "64Mi" } })
}

/// Values from the records of one kind: `records_of!(records, Record::Stuck(s) if s.id == id => s.time)`. Without a value, whether and how often.
#[macro_export]
macro_rules! records_of {
    ($records:expr, $pattern:pat $(if $guard:expr)? => $value:expr) => {{
        let values = $records.into_iter().filter_map(|record| match record {
            $pattern $(if $guard)? => Some($value),
            _ => None,
        });
        values.collect::<Vec<_>>()
    }};
    ($records:expr, $pattern:pat $(if $guard:expr)?) => {
        $crate::records_of!($records, $pattern $(if $guard)? => ())
    };
}

pub fn evictions(records: Vec<Record>) -> Vec<EvictionRecord> {
    records_of!(records, Record::Evicted(eviction) => *eviction)
}

/// Pods that the records say were asked to end.
pub fn requests(records: Vec<Record>) -> Vec<RequestRecord> {
    records_of!(records, Record::Requested(asked) => *asked)
}

/// Sets a soft threshold on memory, with a grace period of a second.
pub fn set_soft(config: &mut Value, threshold: &str) {
    config["evictionSoft"] = json!({ "memory.available": threshold });
    config["evictionSoftGracePeriod"] = json!({ "memory.available": "1s" });
}

/// They are dropped after the agent and the processes of the pods.
pub struct Files {
    dir: tempfile::TempDir,
    /// The configuration; a test changes what it is about.
    pub config: Value,
    pods: Value,
    scope: Option<TestCgroup>,
}

impl Files {
    /// A scope of its own of so many MiB, with a cgroup for each of these pods, and a hard threshold of 64Mi.
    pub fn of(name: &str, mib: u64, pods: &Value) -> Self {
        let scope = TestCgroup::new(name, mib * MIB).expect("a scope");
        for pod in pods.as_array().into_iter().flatten() {
            let cgroup = pod["cgroup"].as_str().expect("a pod's cgroup");
            scope.child(cgroup).expect("a cgroup");
        }
        let mut files = Self::new(scope.path(), pods);
        files.scope = Some(scope);
        files
    }

    /// Creates the files and a scope of so many MiB for a hog alone, without a request.
    pub fn of_hog(name: &str, mib: u64) -> Self {
        Self::of(name, mib, &json!([hog()]))
    }

    /// Creates the files and a scope of so many MiB for a hog without a request and a calm pod with one of 64Mi.
    pub fn of_hog_and_calm(name: &str, mib: u64) -> Self {
        Self::of(name, mib, &json!([hog(), calm()]))
    }

    /// A scope of the test's with these pods and a hard threshold of 64Mi.
    pub fn new(scope: &Path, pods: &Value) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let manifest = dir.path().join("pods.json");
        fs::write(&manifest, json!({ "pods": pods }).to_string()).expect("a manifest");
        let config = json!({
            "scope": { "cgroup": scope },
            "podManifest": manifest,
            "stateDir": dir.path().join("state"),
            "evictionHard": { "memory.available": "64Mi" },
        });
        Self {
            dir,
            config,
            pods: pods.clone(),
            scope: None,
        }
    }

    /// Creates the files and the cgroups of a hog without a request and a calm pod with one of 64Mi; the cgroups are in
    /// that order.
    pub fn hog_and_calm(scope: &TestCgroup) -> (Self, [PathBuf; 2]) {
        let cgroups = ["besteffort/hog", "calm"].map(|pod| scope.child(pod).expect("a cgroup"));
        (Self::new(scope.path(), &json!([hog(), calm()])), cgroups)
    }

    /// The scope that was made with it.
    pub fn scope(&self) -> &TestCgroup {
        self.scope.as_ref().expect("a scope of its own")
    }

    /// The cgroup of a pod in it.
    pub fn cgroup(&self, pod: &str) -> PathBuf {
        let mut pods = self.pods.as_array().into_iter().flatten();
        let found = pods.find(|given| given["name"] == pod);
        let cgroup = found.and_then(|pod| pod["cgroup"].as_str());
        self.scope()
            .path()
            .join(cgroup.expect("a pod of this name"))
    }

    /// Starts a hog in the cgroup of a pod.
    #[track_caller]
    pub fn hog(&self, pod: &str, arguments: &[&str]) -> Hog {
        Hog::start(&self.cgroup(pod), arguments).expect("a hog")
    }

    /// Starts a hog that takes too much, in the cgroup of a pod, and returns when it has been killed, as it has to be.
    #[track_caller]
    pub fn until_killed(&self, pod: &str, arguments: &[&str]) {
        Hog::until_killed(&self.cgroup(pod), arguments);
    }

    /// Starts a forker in the cgroup of a pod.
    #[track_caller]
    pub fn forker(&self, pod: &str) -> Forker {
        Forker::start(Some(&self.cgroup(pod))).expect("a forker")
    }

    /// Changes a field of the configuration while the agent runs.
    pub fn change(&mut self, field: &str, value: Value) {
        self.config[field] = value;
        self.write().expect("a configuration");
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Writes the configuration and says where it is.
    pub fn write(&self) -> Result<PathBuf> {
        let path = self.dir.path().join("config.json");
        fs::write(&path, self.config.to_string())?;
        Ok(path)
    }

    /// Runs the agent, which must refuse these files; what it says of them.
    #[track_caller]
    pub fn refused(&self) -> String {
        refusal(&self.run_until_it_ends(|_| {}))
    }

    /// Runs it to its end, which must come by itself, with something done to it as soon as the process is there.
    pub fn run_until_it_ends(&self, meanwhile: impl FnOnce(&Child)) -> Output {
        let run = || {
            let child = Command::new(binary()?)
                .args(["run", "--config"])
                .arg(self.write()?)
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()?;
            Ok::<_, Error>(child)
        };
        let child = run().expect("a run");
        meanwhile(&child);
        until_its_end(child)
    }

    /// Starts the agent and returns when it watches; it ends well when dropped.
    pub fn start(&self, more: &[&str]) -> Agent {
        let config = self.write().expect("a configuration");
        let agent = Agent::start(&config, more).expect("an agent");
        agent.ends_well()
    }

    pub fn records(&self) -> Vec<Record> {
        let read = journal::read(&self.dir.path().join("state"));
        read.expect("a journal").0
    }

    pub fn evictions(&self) -> Vec<EvictionRecord> {
        evictions(self.records())
    }

    /// Lists the inputs from which each eviction of memory was decided, as far as they are written.
    pub fn pace_inputs(&self) -> Vec<PaceInputs> {
        let state = self.dir.path().join("state");
        let read = |eviction: &EvictionRecord| {
            let incident = incident::files::read(&state, &eviction.id);
            incident.expect("an incident")?.pace_inputs
        };
        self.evictions().iter().filter_map(read).collect()
    }

    /// The names of the pods that were evicted, in order.
    pub fn evicted(&self) -> Vec<String> {
        self.evictions().into_iter().map(|e| e.name).collect()
    }

    /// Waits until the journal has an OOM kill, and answers with the first.
    pub fn oom_kill(&self) -> Option<OomKillRecord> {
        let kills = || records_of!(self.records(), Record::OomKill(kill) => *kill);
        until(SOON, || !kills().is_empty());
        kills().into_iter().next()
    }

    pub fn wait_for(&self, count: usize) -> Vec<Record> {
        until(SOON, || self.records().len() >= count);
        self.records()
    }
}
