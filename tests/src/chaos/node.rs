//! The scene: a member of a cluster with a hog and two innocent pods, a container runtime, and an agent that pins its guard.

use super::Fault;
use crate::{
    apiserver::State,
    bpffs::Bpffs,
    embedded::evictions,
    prelude::*,
    runtime::{self, Runtime},
    scrape::get,
};

/// Usage in MiB that the threshold leaves, of 256 MiB.
pub const THRESHOLD_MIB: u64 = 192;
const MIB_IN_ALL: u64 = 256;
/// Memory that the innocent pods use together, in MiB.
const INNOCENT_MIB: u64 = 60;
/// A fault strikes at this usage in MiB or later.
pub const LEAST_MIB: u64 = INNOCENT_MIB + 10;
/// Within so many MiB from there: before the threshold, and behind it.
pub const RANGE_MIB: u64 = 150;
/// More than any answer of a slow machine takes.
const LONG: Duration = Duration::from_secs(90);
/// Time after which what should not happen twice would have happened again.
const MOMENT: Duration = Duration::from_millis(700);

/// The scene. What is dropped first comes first: the agent before what it stands on.
pub struct Node {
    agent: Option<Agent>,
    innocent: Vec<Hog>,
    pub runtime: Option<Runtime>,
    bpffs: Option<Bpffs>,
    pub member: ClusterNode,
    hog: PathBuf,
    health: String,
    disk: Option<Disk>,
}

impl Node {
    pub fn new(fault: Fault) -> Result<Self> {
        let mut member = ClusterNode::of(ApiServer::start_tls()?, "chaos", MIB_IN_ALL)?;
        if fault == Fault::KubeletAway {
            // It is asked at the start alone.
            member.config["cluster"]["configz"] = json!(true);
            member
                .server
                .state()
                .fails("GET", "/proxy/", 1, InjectedFault::Hang);
        }
        let health = listen(&mut member.config, "healthAddress");
        let bpffs = Bpffs::mount().ok();
        if let Some(bpffs) = &bpffs {
            let directory = bpffs.path().join("evictd");
            member.config["pinnedGuard"] = json!({ "directory": directory });
        }
        let disk = match fault.is_of_disk() {
            true => Some(Disk::new("ext4", 16, 500)?),
            false => None,
        };
        if let Some(disk) = &disk {
            member.config["stateDir"] = json!(disk.path().join("state"));
        }
        let calm = member.pod("calm", 1, "Guaranteed", 0, Some("64Mi"))?;
        let near = member.pod("near", 2, "Burstable", 0, Some("32Mi"))?;
        let hog = member.pod("hog", 3, "BestEffort", 0, None)?;
        let runtime = Runtime::start(&member.dir().join("cri.sock"), runtime::State::default())?;
        let innocent = vec![
            Hog::start(&calm, &["--mib", "40"])?,
            Hog::start(&near, &["--mib", "20"])?,
        ];
        Ok(Self {
            agent: None,
            innocent,
            runtime: Some(runtime),
            bpffs,
            member,
            hog,
            health,
            disk,
        })
    }

    /// Starts an agent in the place of the one before.
    pub fn start(&mut self) -> Result<()> {
        self.agent = Some(self.another()?);
        Ok(())
    }

    /// Starts an agent beside the one that runs.
    pub fn another(&self) -> Result<Agent> {
        Agent::start(&self.member.write()?, &[])
    }

    pub fn agent(&self) -> Result<&Agent> {
        let agent = self.agent.as_ref();
        agent.context("no agent runs")
    }

    pub fn pid(&self) -> u32 {
        self.agent.as_ref().map_or(0, Agent::pid)
    }

    pub fn log(&self) -> String {
        self.agent.as_ref().map(Agent::log).unwrap_or_default()
    }

    pub fn kill(&mut self) {
        self.agent = None;
    }

    /// SIGTERM.
    pub fn end(&mut self) -> Result<()> {
        match self.agent.take() {
            Some(mut agent) => agent.terminate().map(|_| ()),
            None => Ok(()),
        }
    }

    /// Whether the kernel acts in the agent's place.
    pub fn is_guarded(&self) -> bool {
        self.log().contains("the pinned guard is installed")
    }

    pub fn pins(&self) -> PathBuf {
        let bpffs = self.bpffs.as_ref();
        bpffs.map_or_else(PathBuf::new, |bpffs| bpffs.path().join("evictd"))
    }

    pub fn disk(&self) -> Result<&Disk> {
        let disk = self.disk.as_ref();
        disk.context("no disk of its own")
    }

    pub fn socket(&self) -> PathBuf {
        self.member.dir().join("cri.sock")
    }

    pub fn start_hog(&self, rate: u64) -> Result<Hog> {
        Hog::start(&self.hog, &["--mib", "1024", "--rate", &rate.to_string()])
    }

    /// Returns earlier when the hog has died.
    pub fn wait_for_usage(&self, mib: u64, hog: &mut Hog) {
        let reached = || self.member.cgroup.usage().is_ok_and(|u| u >= mib * MIB);
        until(LONG, || reached() || !hog.is_alive());
    }

    /// The pods that the journal says were evicted.
    fn evicted(&self) -> Vec<String> {
        let dir = self.member.config["stateDir"].as_str().unwrap_or_default();
        let (records, _) = journal::read(dir.as_ref()).unwrap_or_default();
        let evictions = evictions(records).into_iter();
        evictions.map(|eviction| eviction.name).collect()
    }

    /// Lists what does not hold although it must, a sentence each. `ended` tells how the hog has ended.
    pub fn violations(&mut self, fault: Fault, ended: Result<Option<i32>>) -> Vec<String> {
        let mut found = Vec::new();
        let mut must = |holds: bool, sentence: String| {
            if !holds {
                found.push(sentence);
            }
        };
        let server = &self.member.server;
        // On a machine that takes ten seconds to start the agent the guard's kill is no eviction.
        let is_late = || self.agent.as_ref().is_some_and(Agent::came_too_late);
        let told = server.wait(LONG, |state| !events(state).is_empty() || is_late());
        must(told, "no Event tells of the eviction".into());
        let is_deleted = |state: &State| state.count("DELETE", "/pods/") > 0;
        let deleted = server.wait(LONG, |state| is_deleted(state) || is_late());
        must(deleted, "the pod is not deleted".into());
        let is_late = is_late();
        std::thread::sleep(MOMENT);
        {
            let state = server.state();
            let is_unused = !state.faults.is_empty() && state.faults.iter().all(|f| f.times > 0);
            must(!is_unused, "no request has met the fault".into());
        }

        must(
            matches!(ended, Ok(Some(libc::SIGKILL))),
            format!("the hog has ended by {ended:?}"),
        );
        let kills = self.member.cgroup.oom_kills();
        must(matches!(kills, Ok(0)), format!("OOM kills: {kills:?}"));
        let all_live = self.innocent.iter_mut().all(Hog::is_alive);
        must(all_live, "an innocent pod has died".into());
        {
            let state = server.state();
            let regarding = events(&state);
            let are_right = regarding == ["hog"] || is_late && regarding.is_empty();
            must(are_right, format!("Events about {regarding:?}"));
            let deleted: Vec<_> = state
                .all("DELETE", "/pods/")
                .map(|seen| seen.path.clone())
                .filter(|path| !path.ends_with("/hog"))
                .collect();
            must(deleted.is_empty(), format!("DELETE of {deleted:?}"));
        }
        let evicted = self.evicted();
        let is_lost = (is_late || fault.may_lose_record()) && evicted.is_empty();
        must(
            evicted == ["hog"] || is_lost,
            format!("the journal tells of {evicted:?}"),
        );
        let healthy = until(LONG, || {
            get(&self.health, "/healthz").is_ok_and(|answer| answer.contains("200 OK"))
        });
        must(healthy, "the agent is not healthy afterwards".into());
        found
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.agent = None;
        // An agent that has lost its disk may have left what it had pinned.
        let _ = fs::remove_dir_all(self.pins());
    }
}

/// The pods that Events say were evicted.
fn events(state: &State) -> Vec<String> {
    let pods = state.events_of("Evicted", "Pod").into_iter();
    pods.filter_map(|e| e["regarding"]["name"].as_str().map(str::to_owned))
        .collect()
}
