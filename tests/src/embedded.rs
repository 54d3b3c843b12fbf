//! The files that an embedded agent needs, in a directory of the test's own: configuration, manifest, state.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use evictd_engine::pace::Judged;
use evictd_store::{
    incident, journal,
    record::{EvictionRecord, Record, oom_kill::OomKill},
};
use serde_json::{Value, json};

use crate::{
    agent::{Agent, binary, until_its_end},
    cgroup::TestCgroup,
    wait::{SOON, until},
};

pub fn evictions(records: Vec<Record>) -> Vec<EvictionRecord> {
    let evictions = records.into_iter().filter_map(|record| match record {
        Record::Evicted(eviction) => Some(*eviction),
        _ => None,
    });
    evictions.collect()
}

pub struct Files {
    dir: tempfile::TempDir,
    /// The configuration; a test changes what it is about.
    pub config: Value,
}

impl Files {
    /// A scope with these pods and a hard threshold of 64Mi.
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
        Self { dir, config }
    }

    /// The same for a hog alone, without a request, and its cgroup.
    pub fn hog(scope: &TestCgroup) -> (Self, PathBuf) {
        let pods = json!([{ "name": "hog", "cgroup": "besteffort/hog" }]);
        let cgroup = scope.child("besteffort/hog").expect("a cgroup");
        (Self::new(scope.path(), &pods), cgroup)
    }

    /// The same for a hog without a request and a calm pod with one of 64Mi, and their cgroups in that order.
    pub fn hog_and_calm(scope: &TestCgroup) -> (Self, [PathBuf; 2]) {
        let pods = json!([
            { "name": "hog", "cgroup": "besteffort/hog" },
            { "name": "calm", "cgroup": "calm", "requests": { "memory": "64Mi" } },
        ]);
        let cgroups = ["besteffort/hog", "calm"].map(|pod| scope.child(pod).expect("a cgroup"));
        (Self::new(scope.path(), &pods), cgroups)
    }

    /// Sets a soft threshold on memory, with a grace period of a second.
    pub fn soft(&mut self, threshold: &str) {
        self.config["evictionSoft"] = json!({ "memory.available": threshold });
        self.config["evictionSoftGracePeriod"] = json!({ "memory.available": "1s" });
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Writes the configuration and says where it is.
    pub fn write(&self) -> io::Result<PathBuf> {
        let path = self.dir.path().join("config.json");
        fs::write(&path, self.config.to_string())?;
        Ok(path)
    }

    /// Runs the agent to its end, which must come by itself.
    pub fn refused(&self) -> Output {
        self.run_until_it_ends(|_| {})
    }

    /// The same, with something done to it as soon as the process is there.
    pub fn run_until_it_ends(&self, meanwhile: impl FnOnce(&Child)) -> Output {
        let run = || {
            let child = Command::new(binary()?)
                .args(["run", "--config"])
                .arg(self.write()?)
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()?;
            io::Result::Ok(child)
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

    /// What each eviction of memory was decided from, as far as it is written.
    pub fn judged(&self) -> Vec<Judged> {
        let state = self.dir.path().join("state");
        let read = |eviction: &EvictionRecord| {
            let incident = incident::files::read(&state, &eviction.id);
            incident.expect("an incident")?.judged
        };
        self.evictions().iter().filter_map(read).collect()
    }

    /// The names of the pods that were evicted, in order.
    pub fn evicted(&self) -> Vec<String> {
        self.evictions().into_iter().map(|e| e.name).collect()
    }

    /// Waits until the journal has an OOM kill, and answers with the first.
    pub fn oom_kill(&self) -> Option<OomKill> {
        let first = || {
            self.records().into_iter().find_map(|r| match r {
                Record::OomKill(kill) => Some(*kill),
                _ => None,
            })
        };
        until(SOON, || first().is_some());
        first()
    }

    pub fn wait_for(&self, count: usize) -> Vec<Record> {
        until(SOON, || self.records().len() >= count);
        self.records()
    }
}
