//! What each daemon takes while nothing happens: CPU time, and memory.

use evictd_tests::{prelude::*, reaped::Reaped, workload::Stage};
use serde::Serialize;

use crate::{
    contender::Contender,
    heat::wait,
    process::{CpuShare, Footprint},
};

/// Far from the threshold as most nodes are: a deadline sampler looks once a second. No memory is used for it.
const FAR: u64 = 16 << 30;
/// Near enough that every hook is attached.
const NEAR: u64 = 512 << 20;
const THRESHOLD: u64 = 100 << 20;
/// The kubelet's default for the pods of one node.
const PODS: u64 = 110;
/// Until what a start leaves behind is done.
const SETTLE: Duration = Duration::from_secs(5);

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Resting {
    pub contender: String,
    /// What it watches.
    pub setting: String,
    /// CPU time per elapsed time, in percent of one core.
    pub cpu_percent: f64,
    pub seconds: f64,
    pub memory_kib: Footprint,
    pub threads: usize,
}

/// Measures all contenders that are daemons, each for so long.
pub fn run(contenders: &[Contender], time: Duration) -> Result<Vec<Resting>> {
    let mut found = Vec::new();
    for contender in contenders {
        if matches!(
            contender,
            Contender::Nothing | Contender::Floor | Contender::Spinner
        ) {
            continue;
        }
        for (setting, size) in [("6 pods, far", FAR), ("6 pods, near", NEAR)] {
            let stage = Stage::start("rest", NEAR, &["--mib", "1"], true)?;
            stage.limit(size)?;
            let files = tempfile::tempdir()?;
            // The race says which contender cannot start.
            let Ok(running) = contender.start(&stage, THRESHOLD, 0.0, files.path(), None) else {
                break;
            };
            if let Some(pid) = running.pid() {
                found.push(rest(contender.name(), setting, pid, time)?);
            }
        }
    }
    found.push(daemon_set(time)?);
    Ok(found)
}

/// evictd as a DaemonSet: a node with 110 pods, and an API server.
fn daemon_set(time: Duration) -> Result<Resting> {
    let node = ClusterNode::new("rest", FAR >> 20)?;
    // A process in each, as pods have.
    let mut sleepers = Vec::new();
    for container in burstable_pods(&node, PODS)? {
        let sleeper = Reaped(Command::new("sleep").arg("3600").spawn()?);
        fs::write(container.join("cgroup.procs"), sleeper.id().to_string())?;
        sleepers.push(sleeper);
    }
    let agent = node.start()?;
    let setting = "DaemonSet, 110 pods, far";
    rest("evictd-auto".into(), setting, agent.pid(), time)
}

/// Adds so many pods to a node; the cgroups of their containers.
pub fn burstable_pods(node: &ClusterNode, count: u64) -> Result<Vec<PathBuf>> {
    let pod = |number| {
        node.pod(
            &format!("pod-{number}"),
            number,
            "Burstable",
            0,
            Some("10Mi"),
        )
    };
    (1..=count).map(pod).collect()
}

fn rest(contender: String, setting: &str, pid: u32, time: Duration) -> Result<Resting> {
    wait(SETTLE)?;
    let share = CpuShare::of(pid, || wait(time))?;
    Ok(Resting {
        contender,
        setting: setting.to_owned(),
        cpu_percent: share.percent,
        seconds: share.seconds,
        memory_kib: Footprint::of(pid)?,
        threads: fs::read_dir(format!("/proc/{pid}/task"))?.count(),
    })
}
