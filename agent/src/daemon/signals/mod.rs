//! The sources of the manager's signals, with the hooks that count for them: process ids, disks, cgroup events. The
//! memory scopes come from [`memory`](super::memory).

mod disks;
mod runtime_disks;

use std::path::Path;

use evictd_config::Config;
use evictd_engine::Signal;
use evictd_manager::SignalSources;
use evictd_node::{
    bpf::object::BpfObject,
    memory_scope::Scope,
    proc::pids::Pids,
    trigger::{
        cgroups::CgroupEvents,
        hook::{CountHook, SelectedHook},
        pids::PidTrigger,
    },
};

pub use disks::DiskRetry;
pub use runtime_disks::RuntimeDiskCheck;

/// Signals that the program for inodes counts for.
pub(crate) const INODES: [Signal; 3] = {
    let [nodefs, imagefs, containerfs] = Signal::FILESYSTEMS;
    [nodefs.1, imagefs.1, containerfs.1]
};
/// Why a count has no hook although there might be one.
pub(crate) const NOT_CONFIGURED: &str = "no threshold asks for it";

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
    let (mut sources, disk_retry) = sources(config, memory, pods_memory, &mut object);
    let cgroup_events = CgroupEvents::build(offer(&mut object, true));
    for (hook, reason) in &cgroup_events.selected_hook().refused {
        tracing::info!(%hook, reason, "a better hook for cgroup events is refused");
    }
    // The others are not told which cgroup is above.
    sources.counts_are_merged = cgroup_events.selected_hook().hook == CountHook::Typed;
    Signals {
        object: object.ok(),
        sources,
        cgroup_events,
        disk_retry,
    }
}

/// Sources without a hook, for subcommands.
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
    let (disks, retry) = disks::first(config, offer(object, wants(config, &INODES)));
    let sources = SignalSources::new(memory, pods_memory, pids, disks);
    (sources, retry)
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
