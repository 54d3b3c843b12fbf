//! The manager while it runs: its start, the threads that work for it (disk scan, mitigation, container runtime), and
//! what follows its events.

mod events;
mod scan_watch;

use std::{io, path::PathBuf, sync::Arc, time::Duration};

use evictd_config::Config;
use evictd_cri::{CriEvent, CriWorker};
use evictd_engine::{
    Cause, Layout, NodeReclaimOptions, PlannerSettings, Signal, limiter::EvictionLimiter,
    recorder::Recorder,
};
use evictd_fastpath::{FastPathControl, KilledBy, OtherKill};
use evictd_manager::{
    Command, CommandQueue, DiskScanner, ManagerEventQueue, ManagerHandle, ManagerSetup,
    MitigationThreads, MitigationWorker, PodSet, ScanTarget, SharedStatus, SignalSources,
};
use evictd_node::pods::table::PodEntry;
use evictd_store::restore::Restored;

use super::{
    RunError,
    evictions::restore,
    pods::PodSource,
    signals::{DiskRetry, RuntimeDiskCheck},
};
use scan_watch::ScanWatch;
pub use scan_watch::{FILESYSTEMS, unknown_layers};

/// The running manager.
pub(super) struct RunningManager {
    /// Handle of the manager, until the agent ends.
    handle: Option<ManagerHandle>,
    pub commands: Arc<CommandQueue>,
    pub events: Arc<ManagerEventQueue>,
    pub status: Arc<SharedStatus>,
    /// Recorder of the manager's latest samples.
    pub recorder: Arc<Recorder>,
    pub scanner: Arc<DiskScanner>,
    scan_watch: ScanWatch,
    /// Asks the container runtime, where one is configured.
    pub cri: Option<CriWorker>,
    pub mitigation: Arc<MitigationWorker>,
    pub steps: MitigationThreads,
    /// Layout of the disks: which of nodefs, imagefs and containerfs are separate.
    pub layout: Layout,
    disk_retry: DiskRetry,
}

/// Arguments with which the manager starts.
pub(super) struct StartArgs<'a> {
    pub sources: SignalSources,
    pub disk_retry: DiskRetry,
    pub source: &'a PodSource,
    pub entries: &'a [Arc<PodEntry>],
    pub restored: &'a Restored,
    pub limiter: &'a Arc<EvictionLimiter>,
    pub mitigation: Arc<MitigationWorker>,
    /// The node's memory cgroup, where cgroup v1 has it.
    pub memory_v1: Option<PathBuf>,
    /// Control of the fast path, which counts what the manager kills.
    pub control: &'a Arc<FastPathControl>,
}

impl RunningManager {
    /// Starts the disk scan, the loop, and the threads that take mitigation steps. Returns the targets of the scan too.
    ///
    /// # Errors
    /// The system has no thread or no descriptor to give.
    pub fn start(
        config: &Config,
        beginning: StartArgs<'_>,
    ) -> Result<(Self, Vec<ScanTarget>), RunError> {
        let StartArgs {
            sources,
            disk_retry,
            source,
            entries,
            restored,
            limiter,
            mitigation,
            memory_v1,
            control,
        } = beginning;
        let layout = sources.layout();
        let disks = sources.disks.as_ref();
        let scanner = DiskScanner::start(disks.and_then(|d| d.trigger.cgroup_count_reader()))?;
        let targets: Vec<_> = entries.iter().map(|e| source.target(config, e)).collect();
        scanner.set_targets(targets.clone());
        let control = Arc::clone(control);
        let handle = ManagerHandle::start(ManagerSetup {
            settings: planner_settings(config, layout),
            sources,
            scanner: Arc::clone(&scanner),
            pods: PodSet::new(entries),
            limiter: Arc::clone(limiter),
            shadow: config.shadow,
            node_reclaim: NodeReclaimOptions {
                runtime: config.cri.as_ref().map(|cri| cri.reclaim_timeout),
                kubelet: source.cluster().is_some(),
            },
            mitigation: config.mitigation,
            memory_v1,
            restored: restore::planner_state(restored, entries),
            on_kill: Box::new(move |pod, signalled, cause| {
                control.note_kill(OtherKill {
                    pod: Arc::clone(pod),
                    signalled,
                    by: KilledBy::Manager,
                    is_for_pressure: matches!(cause, Cause::Pressure(_)),
                });
            }),
        })?;
        let commands = Arc::clone(&handle.commands);
        let steps = start_mitigation(&mitigation, &commands)?;
        let manager = Self {
            cri: start_cri(config, &commands, &scanner),
            events: Arc::clone(&handle.events),
            status: Arc::clone(&handle.status),
            recorder: Arc::clone(&handle.recorder),
            handle: Some(handle),
            commands,
            scanner,
            scan_watch: ScanWatch::default(),
            mitigation,
            steps,
            layout,
            disk_retry,
        };
        Ok((manager, targets))
    }

    /// Whether the loop was not stopped yet.
    pub fn is_running(&self) -> bool {
        self.handle.is_some()
    }

    pub fn send(&self, command: Command) {
        if self.is_running() && !self.commands.send(command) {
            tracing::warn!("the manager's command queue is full: a command was dropped");
        }
    }

    /// Sends the settings of a changed configuration.
    pub fn send_settings(&self, config: &Config) {
        self.send(Command::Settings {
            settings: Box::new(planner_settings(config, self.layout)),
            shadow: config.shadow,
            mitigation: config.mitigation,
        });
    }

    /// Logs what the scan and the filesystems cannot do. To be called at each tick.
    pub fn watch_disks(&mut self) {
        self.scan_watch.tick(&self.scanner);
        if self.is_running() {
            self.scan_watch.see_hung(self.status.get().hung);
        }
    }

    /// Has disks watched that were not there at the start. No hook counts their inodes before the next start.
    pub fn follow_disks(&mut self, config: &Config) {
        let Some(found) = self.disk_retry.tick(config) else {
            return;
        };
        tracing::info!("disks are watched now");
        self.layout = found.layout;
        self.send(Command::Disks(Box::new(found)));
        self.send_settings(config);
    }

    /// Ends the loop; its last events are still to be read.
    pub fn stop(&mut self, patience: Duration) {
        self.scanner.stop();
        if let Some(handle) = self.handle.take()
            && !handle.stop(patience)
        {
            tracing::error!("the manager thread does not stop: the agent ends without it");
        }
    }
}

fn start_mitigation(
    worker: &Arc<MitigationWorker>,
    commands: &Arc<CommandQueue>,
) -> io::Result<MitigationThreads> {
    let commands = Arc::clone(commands);
    MitigationThreads::start(worker, move |effect| {
        commands.send(Command::MitigationDone(Box::new(effect)));
    })
}

fn start_cri(
    config: &Config,
    commands: &Arc<CommandQueue>,
    scanner: &Arc<DiskScanner>,
) -> Option<CriWorker> {
    let cri = config.cri.clone()?;
    let (commands, scanner) = (Arc::clone(commands), Arc::clone(scanner));
    let disks = RuntimeDiskCheck::new(config);
    Some(CriWorker::start(cri, move |answer| match answer {
        CriEvent::Reclaimed(removed) => {
            commands.send(Command::NodeReclaimDone(removed));
        }
        CriEvent::Layers {
            layers,
            requested_at,
        } => scanner.set_layers(layers, requested_at),
        CriEvent::Disks(theirs) => disks.compare(theirs),
    }))
}

/// Why a threshold of containerfs is ignored.
pub const FOLLOWS: &str = "containerfs follows the filesystem that it is part of";

/// The settings of the planner. Hard memory pressure is the fast path's.
fn planner_settings(config: &Config, layout: Layout) -> PlannerSettings {
    for threshold in layout.ignored(&config.eviction.thresholds) {
        tracing::warn!(%threshold, "the threshold is ignored: {FOLLOWS}");
    }
    let thresholds = config.eviction.thresholds.iter();
    let kubelets = thresholds.filter(|t| t.is_hard() && config.follows_kubelet(t));
    PlannerSettings {
        kubelets_signals: kubelets.map(|t| t.signal).collect(),
        eviction: config.eviction.clone(),
        layout,
        strategy: config.ranking_strategy,
        mode: config.mode,
        fastpath_signals: Signal::MEMORY.to_vec(),
        has_api_server: config.cluster.is_some(),
    }
}
