//! Everything but the memory that the fast path watches: which programs are loaded for it, and what is looked at.

use std::{
    path::{Path, PathBuf},
    sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel},
    time::Duration,
};

use evictd_config::Config;
use evictd_engine::{Layout, Signal};
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

/// What is counted of filesystems, by one program.
pub(crate) const INODES: [Signal; 3] = [
    Signal::NodeFsInodesFree,
    Signal::ImageFsInodesFree,
    Signal::ContainerFsInodesFree,
];
/// Why a count has no hook although there might be one.
pub(crate) const NOT_CONFIGURED: &str = "no threshold asks for it";
/// Number of ticks of the agent between two attempts.
const RETRY_TICKS: u32 = 10;
/// The start waits for disks for so long: memory is to be watched.
const FIRST_LOOK: Duration = Duration::from_secs(1);

/// Signal sources with the programs that feed them. Programs stay attached for as long as the object lives.
pub(super) struct Signals {
    pub object: Option<BpfObject>,
    pub sources: SignalSources,
    pub cgroup_events: CgroupEvents,
    pub disk_retry: DiskRetry,
}

/// Builds the sources. Hooks are attached for the signals that have thresholds; what cannot be had is logged, and the
/// sampler takes its place.
pub(super) fn build(config: &Config, memory: Scope, pods_memory: Option<Scope>) -> Signals {
    let mut object = BpfObject::load_counts().map_err(|error| error.to_string());
    let (sources, disk_retry) = sources(config, memory, pods_memory, &mut object);
    let cgroup_events = CgroupEvents::build(offer(&mut object, true));
    for (hook, reason) in &cgroup_events.selected_hook().refused {
        tracing::info!(%hook, reason, "a better hook for cgroup events is refused");
    }
    Signals {
        object: object.ok(),
        sources,
        cgroup_events,
        disk_retry,
    }
}

/// Sources without a hook, for subcommands that only look.
pub(super) fn without_hooks(
    config: &Config,
    memory: Scope,
    pods_memory: Option<Scope>,
) -> SignalSources {
    let mut none = Err("nothing is to be attached".to_owned());
    sources(config, memory, pods_memory, &mut none).0
}

fn sources(
    config: &Config,
    memory: Scope,
    pods_memory: Option<Scope>,
    object: &mut Result<BpfObject, String>,
) -> (SignalSources, DiskRetry) {
    let pids = match Pids::open(Path::new("/proc")) {
        Ok(pids) => {
            let object = offer(object, wants(config, &[Signal::PidAvailable]));
            let trigger = PidTrigger::build(pids, object);
            log_hook(Signal::PidAvailable, trigger.selected_hook());
            Some(trigger)
        }
        Err(error) => {
            tracing::warn!(%error, "pid.available cannot be read");
            None
        }
    };
    // Memory is watched whatever is wrong with a disk.
    let look = on_a_thread(config, find);
    let found = match look.recv_timeout(FIRST_LOOK) {
        Ok(found) => found,
        Err(RecvTimeoutError::Timeout) => Err("they do not answer".to_owned()),
        Err(RecvTimeoutError::Disconnected) => Err("no thread can look at them".to_owned()),
    };
    let disks = found.and_then(|found| watch(config, found, offer(object, wants(config, &INODES))));
    let disks = disks.inspect_err(|error| tracing::error!(error, "disks are not watched"));
    let retry = DiskRetry {
        is_needed: disks.is_err(),
        ticks: 0,
        first_look: Some(look),
        attempt: None,
    };
    let sources = SignalSources::new(memory, pods_memory, pids, disks.ok());
    (sources, retry)
}

/// Has a thread do what a disk may hang. No answer comes where the system has no thread to give.
fn on_a_thread<T: Send + 'static>(
    config: &Config,
    look: impl FnOnce(&Config) -> T + Send + 'static,
) -> Receiver<T> {
    let (found, answer) = channel();
    let config = config.clone();
    let thread = std::thread::Builder::new().name("disk-look".into());
    let started = thread.spawn(move || {
        // Where the time was over, the answer of a later look counts.
        let _ = found.send(look(&config));
    });
    if let Err(error) = started {
        tracing::warn!(%error, "no thread can look at the disks");
    }
    answer
}

/// The loaded programs where they are wanted, or why there are none.
pub(crate) fn offer(
    object: &mut Result<BpfObject, String>,
    wanted: bool,
) -> Result<&mut BpfObject, &str> {
    match object {
        _ if !wanted => Err(NOT_CONFIGURED),
        Ok(object) => Ok(object),
        Err(refusal) => Err(refusal),
    }
}

/// Whether a threshold asks for one of these signals.
pub(crate) fn wants(config: &Config, signals: &[Signal]) -> bool {
    let mut thresholds = config.eviction.thresholds.iter();
    thresholds.any(|t| signals.contains(&t.signal))
}

fn log_hook(signal: Signal, selected: &SelectedHook<CountHook>) {
    for (hook, reason) in &selected.refused {
        tracing::info!(%signal, %hook, reason, "a better hook is refused");
    }
    tracing::info!(%signal, hook = %selected.hook, "the signal has its hook");
}

/// nodefs, imagefs and containerfs, and how they lie. Each has answered.
struct Disks {
    paths: [PathBuf; 3],
    layout: Layout,
}

/// Finds the node's filesystems, or says why they cannot be watched.
fn find(config: &Config) -> Result<Disks, String> {
    let paths = config.filesystems.resolve();
    let paths = paths.ok_or("no kubelet directory here, and filesystems.nodefs is not set")?;
    let [nodefs, imagefs, containerfs] = &paths;
    let found = NodeFilesystems::find(nodefs, imagefs, containerfs).map_err(|e| e.to_string())?;
    for filesystem in [&found.nodefs, &found.imagefs, &found.containerfs] {
        let path = filesystem.path().display();
        filesystem.read().map_err(|e| format!("{path}: {e}"))?;
    }
    let layout = found.layout;
    Ok(Disks { paths, layout })
}

/// Builds the sources that watch the disks, or says why they cannot be watched.
fn watch(
    config: &Config,
    Disks { paths, layout }: Disks,
    object: Result<&mut BpfObject, &str>,
) -> Result<DiskSources, String> {
    let [nodefs, imagefs, containerfs] = &paths;
    let built = InodeTrigger::build(&[nodefs, imagefs, containerfs], object);
    let mut trigger = built.map_err(|e| e.to_string())?;
    let tested = trigger.self_test(&config.state_dir);
    tested.map_err(|e| e.to_string())?;
    let name = |path: &Path, available, inodes_free| {
        let filesystem = trigger.index_of(path)?;
        if let Some((_, selected)) = trigger.selected_hook(filesystem) {
            log_hook(inodes_free, selected);
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
        layout,
    })
}

/// Disks that could not be watched at the start are tried again, on a thread that a disk may hang.
pub(super) struct DiskRetry {
    is_needed: bool,
    ticks: u32,
    /// The look of the start: while it hangs, another one would hang as well.
    first_look: Option<Receiver<Result<Disks, String>>>,
    attempt: Option<Receiver<Result<DiskSources, String>>>,
}

impl DiskRetry {
    /// Takes what an attempt has found, once, and starts the next one when it is due. To be called at each tick.
    pub(super) fn tick(&mut self, config: &Config) -> Option<DiskSources> {
        if !self.is_needed {
            self.first_look = None;
            return None;
        }
        if let Some(look) = &self.first_look {
            match look.try_recv() {
                Err(TryRecvError::Empty) => return None,
                // It hung, and does not any more.
                Ok(_) => self.ticks = RETRY_TICKS,
                Err(TryRecvError::Disconnected) => {}
            }
            self.first_look = None;
        }
        if let Some(attempt) = &self.attempt {
            let answer = attempt.try_recv();
            if matches!(answer, Err(TryRecvError::Empty)) {
                return None;
            }
            self.attempt = None;
            let found = answer.ok().and_then(Result::ok);
            self.is_needed = found.is_none();
            return found;
        }
        self.ticks += 1;
        if self.ticks >= RETRY_TICKS {
            self.ticks = 0;
            self.attempt = Some(on_a_thread(config, |config| {
                watch(config, find(config)?, Err("the disks came after the start"))
            }));
        }
        None
    }
}

/// The settings of the engine. Hard memory pressure is the fast path's.
pub(super) fn settings(
    config: &Config,
    layout: Layout,
    by_fastpath: Vec<Signal>,
) -> evictd_engine::PlannerSettings {
    for threshold in layout.ignored(&config.eviction.thresholds) {
        tracing::warn!(%threshold, "the threshold is ignored: containerfs follows the filesystem that it is part of");
    }
    evictd_engine::PlannerSettings {
        eviction: config.eviction.clone(),
        layout,
        strategy: config.ranking_strategy,
        mode: config.mode,
        fastpath_signals: by_fastpath,
        has_api_server: config.cluster.is_some(),
    }
}
