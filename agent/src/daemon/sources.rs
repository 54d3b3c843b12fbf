//! Everything but the memory that the fast path watches: which programs are loaded for it, and what is looked at.

use std::path::Path;

use evictd_config::Config;
use evictd_engine::{Layout, Signal, Threshold};
use evictd_manager::{DiskSource, DiskSources, SignalSources};
use evictd_node::{
    bpf::object::BpfObject,
    fs::statfs::NodeFilesystems,
    memory_scope::Scope,
    proc::pids::Pids,
    trigger::{
        cgroups::CgroupEvents,
        hook::{CountHook, SelectedHook},
        inodes::InodeTrigger,
        pids::PidTrigger,
    },
};

use tokio::task::{JoinHandle, spawn_blocking};

use crate::daemon::RunError;

/// Why a count has no hook although there might be one.
const NOT_CONFIGURED: &str = "no threshold asks for it";
/// So many ticks of the agent are between two attempts.
const RETRY_TICKS: u32 = 10;

/// What was built. Programs stay attached for as long as the object lives.
pub(super) struct Signals {
    pub object: Option<BpfObject>,
    pub sources: SignalSources,
    pub life: CgroupEvents,
}

/// Builds the sources. Hooks are attached for the signals that have thresholds; what cannot be had is said, and the
/// sampler takes its place.
pub(super) fn build(
    config: &Config,
    memory: Scope,
    pods_memory: Option<Scope>,
) -> Result<Signals, RunError> {
    let mut object = BpfObject::load_counts().map_err(|error| error.to_string());
    let sources = sources(config, memory, pods_memory, &mut object);
    let life = CgroupEvents::build(offer(&mut object, true), None);
    let life = life.map_err(|e| std::io::Error::other(e.to_string()))?;
    for (hook, reason) in &life.choice().refused {
        tracing::info!(%hook, reason, "a better hook for cgroup events is refused");
    }
    Ok(Signals {
        object: object.ok(),
        sources,
        life,
    })
}

/// Sources without a hook, for subcommands that only look.
pub(super) fn without_hooks(
    config: &Config,
    memory: Scope,
    pods_memory: Option<Scope>,
) -> SignalSources {
    let mut none = Err("nothing is to be attached".to_owned());
    sources(config, memory, pods_memory, &mut none)
}

fn sources(
    config: &Config,
    memory: Scope,
    pods_memory: Option<Scope>,
    object: &mut Result<BpfObject, String>,
) -> SignalSources {
    let thresholds = &config.eviction.thresholds;
    let wants = |signals: &[Signal]| wants(thresholds, signals);
    let pids = match Pids::open(Path::new("/proc")) {
        Ok(pids) => {
            let object = offer(object, wants(&[Signal::PidAvailable]));
            let built = PidTrigger::build(pids, object, None);
            // Nothing was forced, so that nothing is refused.
            built
                .ok()
                .inspect(|p| say(Signal::PidAvailable, p.choice()))
        }
        Err(error) => {
            tracing::warn!(%error, "pid.available cannot be read");
            None
        }
    };
    let inodes = [
        Signal::NodeFsInodesFree,
        Signal::ImageFsInodesFree,
        Signal::ContainerFsInodesFree,
    ];
    // Memory is watched whatever is wrong with a disk.
    let disks = disks(config, offer(object, wants(&inodes)));
    let disks = disks.inspect_err(|error| tracing::error!(error, "disks are not watched"));
    SignalSources::new(memory, pods_memory, pids, disks.ok())
}

/// The loaded programs for who wants them, or why there are none.
fn offer(object: &mut Result<BpfObject, String>, wanted: bool) -> Result<&mut BpfObject, &str> {
    match object {
        _ if !wanted => Err(NOT_CONFIGURED),
        Ok(object) => Ok(object),
        Err(refusal) => Err(refusal),
    }
}

fn wants(thresholds: &[Threshold], signals: &[Signal]) -> bool {
    thresholds.iter().any(|t| signals.contains(&t.signal))
}

fn say(signal: Signal, choice: &SelectedHook<CountHook>) {
    for (hook, reason) in &choice.refused {
        tracing::info!(%signal, %hook, reason, "a better hook is refused");
    }
    tracing::info!(%signal, hook = %choice.hook, "the signal has its hook");
}

/// The node's filesystems, or why they cannot be watched.
fn disks(config: &Config, object: Result<&mut BpfObject, &str>) -> Result<DiskSources, String> {
    let paths = config.filesystems.resolve();
    let paths = paths.ok_or("no kubelet directory here, and filesystems.nodefs is not set")?;
    let [nodefs, imagefs, containerfs] = &paths;
    let found = NodeFilesystems::find(nodefs, imagefs, containerfs).map_err(|e| e.to_string())?;
    let built = InodeTrigger::build(&[nodefs, imagefs, containerfs], object, None);
    let mut trigger = built.map_err(|e| e.to_string())?;
    let tested = trigger.self_test(&config.state_dir);
    tested.map_err(|e| e.to_string())?;
    let name = |path: &Path, available, inodes_free| {
        let filesystem = trigger.index_of(path)?;
        if let Some((_, choice)) = trigger.choice(filesystem) {
            say(inodes_free, choice);
        }
        Some(DiskSource {
            filesystem,
            available,
            inodes_free,
        })
    };
    use Signal::*;
    let names = [
        name(nodefs, NodeFsAvailable, NodeFsInodesFree),
        name(imagefs, ImageFsAvailable, ImageFsInodesFree),
        name(containerfs, ContainerFsAvailable, ContainerFsInodesFree),
    ];
    let [Some(a), Some(b), Some(c)] = names else {
        return Err("a filesystem has vanished while it was looked at".to_owned());
    };
    Ok(DiskSources {
        trigger,
        names: [a, b, c],
        layout: found.layout,
    })
}

/// Disks that could not be told apart at the start are tried again, on a thread that a disk may hang.
pub(super) struct DiskRetry {
    is_needed: bool,
    ticks: u32,
    attempt: Option<JoinHandle<Result<DiskSources, String>>>,
}

impl DiskRetry {
    pub(super) fn new(sources: &SignalSources) -> Self {
        Self {
            is_needed: sources.disks.is_none(),
            ticks: 0,
            attempt: None,
        }
    }

    /// What an attempt has found, once. To be called at each tick.
    pub(super) async fn tick(&mut self, config: &Config) -> Option<DiskSources> {
        if let Some(attempt) = self.attempt.take_if(|attempt| attempt.is_finished()) {
            let found = attempt.await.ok().and_then(Result::ok)?;
            self.is_needed = false;
            return Some(found);
        }
        self.ticks = self.ticks.wrapping_add(1);
        if self.is_needed && self.attempt.is_none() && self.ticks.is_multiple_of(RETRY_TICKS) {
            let config = config.clone();
            let attempt = move || disks(&config, Err("the disks came after the start"));
            self.attempt = Some(spawn_blocking(attempt));
        }
        None
    }
}

/// What the engine is told. Hard memory pressure is the fast path's.
pub(super) fn settings(
    config: &Config,
    layout: Layout,
    by_fastpath: Vec<Signal>,
) -> evictd_engine::Settings {
    for threshold in layout.ignored(&config.eviction.thresholds) {
        tracing::warn!(%threshold, "means nothing: containerfs follows the filesystem that it is part of");
    }
    evictd_engine::Settings {
        eviction: config.eviction.clone(),
        layout,
        strategy: config.ranking_strategy,
        mode: config.mode,
        externally_handled: by_fastpath,
        static_pods_keep_files: config.cluster.is_some(),
    }
}
