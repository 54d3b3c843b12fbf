//! A node that is a member of a cluster: cgroups with pods as the kubelet lays them out, a scripted API server, and
//! an agent between the two.

use evictd_store::record::Reported;

use crate::{apiserver, embedded::evictions, prelude::*};

pub struct ClusterNode {
    pub cgroup: TestCgroup,
    pub server: ApiServer,
    dir: tempfile::TempDir,
    /// The agent's configuration; tests change it before they start an agent.
    pub config: Value,
}

impl ClusterNode {
    /// The UID that the kubelet gives to a static pod.
    pub const HASH: &str = "d4ae8de11a3b28dc31b9c89edbd7f90a";

    /// A node of so many MiB without pods; 64 MiB of it must be available.
    pub fn new(name: &str, mib: u64) -> Result<Self> {
        Self::of(ApiServer::start()?, name, mib)
    }

    /// Creates a node like [`Self::new`], with an API server that was started before.
    pub fn of(server: ApiServer, name: &str, mib: u64) -> Result<Self> {
        server.state().is_agents_alone = true;
        let cgroup = TestCgroup::new(name, mib * MIB)?;
        let dir = tempfile::tempdir()?;
        let config = json!({
            "scope": {"cgroup": cgroup.path()},
            "stateDir": dir.path().join("state"),
            "cluster": {"nodeName": NODE, "kubeconfig": server.kubeconfig(dir.path())?},
            // No runtime is there, whatever container runtime this machine has.
            "cri": {"socket": dir.path().join("cri.sock")},
            "evictionHard": {"memory.available": "64Mi"},
            "evictionPressureTransitionPeriod": "2s",
        });
        Ok(Self {
            cgroup,
            server,
            dir,
            config,
        })
    }

    /// A node of 256 MiB with one pod, `wild`, and the cgroup of its container.
    pub fn with_wild(name: &str) -> Result<(Self, PathBuf)> {
        let member = Self::new(name, 256)?;
        let wild = member.best_effort("wild", 1);
        Ok((member, wild))
    }

    /// A UID in the API's form, made of a number.
    pub fn uid(number: u64) -> String {
        format!("00000000-0000-4000-8000-{number:012}")
    }

    pub fn cgroup_of(&self, uid: &str, qos: &str) -> Result<PathBuf> {
        let class = match qos {
            "BestEffort" => "besteffort/",
            "Burstable" => "burstable/",
            _ => "",
        };
        self.cgroup.child(&format!("kubepods/{class}pod{uid}/c1"))
    }

    /// Adds a pod to the node and to the API server, and returns the cgroup of its container.
    pub fn pod(
        &self,
        name: &str,
        number: u64,
        qos: &str,
        priority: i32,
        request: Option<&str>,
    ) -> Result<PathBuf> {
        let uid = Self::uid(number);
        let pod = apiserver::pod(name, &uid, qos, priority, request);
        self.server.state().put_pod(pod);
        self.cgroup_of(&uid, qos)
    }

    /// Adds a pod without a request and without a priority, and returns the cgroup of its container.
    #[track_caller]
    pub fn best_effort(&self, name: &str, number: u64) -> PathBuf {
        let added = self.pod(name, number, "BestEffort", 0, None);
        added.expect("a cgroup")
    }

    /// Adds a static pod of priority 0 to the node, and its mirror to the API server.
    #[track_caller]
    pub fn static_pod(&self, number: u64) -> PathBuf {
        let mut mirror = apiserver::pod("static-node-1", &Self::uid(number), "BestEffort", 0, None);
        mirror["metadata"]["annotations"] = json!({
            "kubernetes.io/config.mirror": Self::HASH,
            "kubernetes.io/config.hash": Self::HASH,
            "kubernetes.io/config.source": "file",
        });
        self.server.state().put_pod(mirror);
        self.cgroup_of(Self::HASH, "BestEffort").expect("a cgroup")
    }

    /// Starts an agent and returns when its trigger is armed; it ends well when dropped.
    pub fn start(&self) -> Result<Agent> {
        Agent::start(&self.write()?, &[]).map(Agent::ends_well)
    }

    /// Writes the configuration and returns its path.
    pub fn write(&self) -> Result<PathBuf> {
        let path = self.dir.path().join("config.json");
        fs::write(&path, self.config.to_string())?;
        Ok(path)
    }

    /// Directory of the token file and the journal.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn records(&self) -> Vec<Record> {
        journal::read(&self.dir.path().join("state"))
            .map(|(records, _)| records)
            .unwrap_or_default()
    }

    pub fn evictions(&self) -> Vec<EvictionRecord> {
        evictions(self.records())
    }

    pub fn reported(&self) -> Vec<Reported> {
        records_of!(self.records(), Record::Reported(reported) => reported)
    }

    /// A hog in this cgroup takes more than the node has. It is killed, and that is reported with this outcome.
    #[track_caller]
    pub fn evicts(&self, cgroup: &Path, outcome: &str) {
        Hog::until_killed(cgroup, &["--mib", "1024"]);
        assert_eq!(self.outcomes(1), [outcome]);
    }

    /// Waits for so many evictions; the names of the pods, in order.
    pub fn evicted(&self, count: usize) -> Vec<String> {
        self.wait(SOON, |m| m.evictions().len() >= count);
        let evictions = self.evictions().into_iter();
        evictions.map(|eviction| eviction.name).collect()
    }

    /// Waits for so many reports; what came of them, in order.
    pub fn outcomes(&self, count: usize) -> Vec<String> {
        self.wait(SOON, |m| m.reported().len() >= count);
        let reported = self.reported().into_iter();
        reported.map(|report| report.outcome).collect()
    }

    /// Waits until the condition holds; false when it does not in time.
    pub fn wait(&self, timeout: Duration, condition: impl Fn(&Self) -> bool) -> bool {
        until(timeout, || condition(self))
    }
}
