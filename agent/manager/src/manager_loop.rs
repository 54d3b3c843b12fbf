//! The thread: waits, samples, asks the engine's planner, and acts on its plan. Which pods go, and when, is decided in
//! the engine; what it needs for that is read here.

mod execute;
mod fastpath_kills;
mod mitigation_steps;
mod node_pods;
mod node_reclaim;
mod report;

use std::{collections::BTreeSet, path::PathBuf, sync::Arc, time::Duration};

use evictd_engine::{
    Cause, EvictionDecision, NodeReclaimOptions, Observations, Planner, PlannerSettings, Resource,
    Signal, Threshold,
    limiter::{EvictionKind, EvictionLimiter},
    model::settings::MitigationConfig,
    pace::GAP_NS,
    record::Departure,
    recorder::Recorder,
    units::{nanos, signed},
};
use evictd_node::{
    pods::table::{PodEntry, flush_statistics},
    trigger::counter::CounterEvent,
};
use evictd_sys::{
    clock::{WorkMark, monotonic_ns},
    poll::poll,
};

use crate::{
    Command, CommandQueue, DiskScanner, ManagerEvent, ManagerEventQueue, PodSet, SharedStatus,
    SignalSources,
    manager_loop::{
        execute::{Shadow, SoftUnderWay},
        fastpath_kills::KnownKills,
        mitigation_steps::MitigationState,
        node_pods::NodePods,
        node_reclaim::NodeReclaimState,
        report::NodeReporter,
    },
    usage::UsageCollector,
};

/// Time at which the thread woke, and the crossing that woke it, if one did.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wake {
    pub woken: u64,
    pub crossed: Option<(Signal, CounterEvent)>,
}

impl Wake {
    /// No trigger has woken it.
    fn at(woken: u64) -> Self {
        let crossed = None;
        Self { woken, crossed }
    }
}

pub(super) struct ManagerLoop {
    pub planner: Planner,
    pub sources: SignalSources,
    pub node: NodePods,
    pub scanner: Arc<DiskScanner>,
    pub limiter: Arc<EvictionLimiter>,
    pub shadow: Shadow,
    pub commands: Arc<CommandQueue>,
    pub reporter: NodeReporter,
    pub node_reclaim: NodeReclaimState,
    pub mitigation: MitigationState,
    pub on_kill: OnKill,
    /// The last request for a soft eviction, as long as it is needed.
    pub soft_request: Option<SoftUnderWay>,
    /// Its candidates.
    pub soft_candidates: Vec<Arc<PodEntry>>,
    /// Evictions so far, for their numbers.
    pub evictions: u64,
    look_again: RearmBackoff,
}

/// How soon it is looked again after a trigger has moved, which may have been crossed meanwhile. A percentage of a
/// capacity that moves itself (XFS counts the inodes that free space has room for) moves its trigger at each look.
#[derive(Debug, Default)]
struct RearmBackoff(Duration);

/// A look and what follows from it keep the thread's CPU no longer than this.
const MAX_WORK: Duration = Duration::from_secs(20);
/// The shortest and the longest pause before a look that follows another one because of a trigger that has moved.
const REARM_BACKOFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(160));

impl RearmBackoff {
    /// At once after the first one, then ever more slowly.
    fn pause(&mut self) -> Duration {
        let (shortest, longest) = REARM_BACKOFF;
        let next = (self.0 * 2).clamp(shortest, longest);
        std::mem::replace(&mut self.0, next)
    }
}

impl ManagerLoop {
    pub fn new(
        setup: ManagerSetup,
        events: Arc<ManagerEventQueue>,
        commands: Arc<CommandQueue>,
        status: Arc<SharedStatus>,
        recorder: Arc<Recorder>,
    ) -> Self {
        let ManagerSetup {
            settings,
            sources,
            scanner,
            pods,
            limiter,
            shadow,
            node_reclaim,
            mitigation,
            // The thread has seen to it.
            memory_v1: _,
            restored,
            on_kill,
        } = setup;
        let disks = sources.disks.as_ref();
        let cgroup_counts = disks.and_then(|d| d.trigger.cgroup_count_reader());
        let usage_collector =
            UsageCollector::new(Arc::clone(&scanner), cgroup_counts, settings.mode);
        let mut planner = Planner::new(settings.clone());
        planner.restore(signed(monotonic_ns()), &restored);
        Self {
            planner,
            sources,
            node: NodePods::new(pods, usage_collector, KnownKills::after(&restored)),
            scanner,
            limiter,
            shadow: Shadow::new(shadow),
            commands,
            reporter: NodeReporter::new(events, status, recorder),
            node_reclaim: NodeReclaimState::new(node_reclaim),
            mitigation: MitigationState::new(mitigation),
            on_kill,
            soft_request: None,
            soft_candidates: Vec::new(),
            evictions: 0,
            look_again: RearmBackoff::default(),
        }
    }

    /// Runs the loop until the command queue says that it is over.
    pub fn run(&mut self) {
        let (mut looked, mut interval) = (monotonic_ns(), Duration::ZERO);
        loop {
            let due = looked.saturating_add(nanos(interval));
            self.wait(interval);
            if self.commands.stopped() {
                return;
            }
            let wake = Wake {
                woken: monotonic_ns(),
                crossed: self.sources.next_crossing(),
            };
            self.note_gap(wake.woken.saturating_sub(due), wake.woken);
            let begun = WorkMark::at(wake.woken);
            while let Some(command) = self.commands.next() {
                self.apply(command);
            }
            (looked, interval) = self.iterate(wake, begun);
            self.reporter.status.heartbeat(wake.woken);
        }
    }

    fn wait(&self, interval: Duration) {
        let [pids, inodes] = self.sources.fds();
        poll([pids, inodes, Some(self.commands.fd())], Some(interval));
    }

    /// The agent, or the whole machine, may have stood still while this thread waited or took its look.
    fn note_gap(&mut self, late: u64, now: u64) {
        if late >= GAP_NS {
            self.planner.exclude_gap(late, signed(now));
            self.node_reclaim.exclude_gap(late, now);
            self.node.empty.exclude_gap(late, now);
        }
    }

    fn apply(&mut self, command: Command) {
        match command {
            Command::Pods(pods) => {
                self.unthrottle(pods.deleting_since(&self.node.pods));
                self.node.set_pods(pods);
                self.shadow.keep_pods(&self.node.pods);
            }
            Command::PodsMemory(scope) => self.sources.pods_memory = scope.map(|scope| *scope),
            Command::NodeMemory(scope) => self.sources.memory = *scope,
            Command::Disks(disks) => self.sources.disks = Some(*disks),
            Command::EvictedByFastPath {
                uid,
                signal,
                available,
                outcome,
            } => self.take_fastpath_report(&uid, signal, available, outcome),
            Command::EvictedByKubelet { uid, resource } => {
                let now = signed(monotonic_ns());
                let seen = self.sources.sample(now);
                let node = self.node.with_ended(&seen);
                self.planner
                    .note_kubelet_eviction(now, node, &uid, resource);
            }
            Command::SoftEvictionFinished { chosen, gone } => {
                self.soft_eviction_finished(&chosen, gone);
            }
            Command::NodeReclaimDone(removed) => self.node_reclaim_done(removed),
            Command::MitigationDone(effect) => self.mitigation_done(*effect),
            Command::Settings {
                settings,
                shadow,
                mitigation,
            } => self.reconfigure(*settings, shadow, mitigation),
        }
    }

    fn soft_eviction_finished(
        &mut self,
        chosen: &str,
        gone: Option<(EvictionDecision, Departure)>,
    ) {
        let candidates = std::mem::take(&mut self.soft_candidates);
        if let Some((gone, departure)) = &gone {
            let listed = self.node.pods.entry(&gone.uid);
            // Its cgroup may be gone by now, and the pod with it: its eviction counts all the same.
            let left = candidates.iter().find(|entry| entry.pod.uid == gone.uid);
            // One that was killed meanwhile is charged already.
            let is_charged = match listed {
                Some(_) => self.node.known_kills.awaits_end(&gone.uid),
                None => left.is_some_and(|entry| entry.eviction_state.is_evicted()),
            };
            if let Some(entry) = listed.or(left).cloned() {
                if !is_charged {
                    self.charge_request(&entry, *departure);
                }
                self.node.known_kills.note(&entry);
                // It may be another one than the one that was chosen: a budget protected that.
                self.unthrottle(vec![entry]);
            }
        }
        // What its end will bring is of what is there now.
        let now = signed(monotonic_ns());
        let observations = self.sources.sample(now);
        let node = self.node.snapshot(&observations);
        let gone = gone
            .as_ref()
            .map(|(decision, departure)| (decision, *departure));
        self.planner.soft_eviction_finished(now, node, chosen, gone);
    }

    fn reconfigure(
        &mut self,
        settings: PlannerSettings,
        shadow: bool,
        mitigation: MitigationConfig,
    ) {
        self.mitigation.reconfigure(mitigation);
        self.planner.reconfigure(settings);
        if shadow != self.shadow.on {
            self.begin_steps_anew(shadow);
            self.shadow = Shadow::new(shadow);
            self.planner.change_shadow_mode();
            self.limiter.forget_shadow();
        }
    }

    fn charge_request(&self, entry: &PodEntry, departure: Departure) {
        let now = monotonic_ns();
        match departure {
            Departure::Requested => self.limiter.charge_request(entry, now),
            Departure::Ended => self.limiter.charge(EvictionKind::Paced, entry, now),
            Departure::GoneBefore => {}
        }
    }

    /// One look, which has `begun` with the commands, and what follows from it; when it was taken, and the time until the
    /// next one.
    fn iterate(&mut self, wake: Wake, begun: WorkMark) -> (u64, Duration) {
        let seen = self.sample();
        let now = monotonic_ns();
        self.note_gap(begun.idle_until(now, MAX_WORK), now);
        self.reporter.record(&self.planner, &seen);
        let node = self.node.snapshot(&seen);
        let mut plan = self.planner.plan(signed(now), node);
        self.scanner
            .set_short_since(self.planner.files_short_since());
        let evictions = std::mem::take(&mut plan.evictions);
        self.execute(evictions, &seen, wake);
        self.reclaim_node(&plan, &seen);
        self.mitigate(&seen);
        let stuck = std::mem::take(&mut plan.stuck);
        if plan.files_stay && !self.shadow.on {
            self.reporter.emit(ManagerEvent::FilesStay);
        }
        self.reporter
            .report(plan, &self.planner, &self.sources, &seen);
        // In shadow mode the pods were not to end.
        for uid in stuck.iter().filter(|_| !self.shadow.on) {
            if let Some(entry) = self.node.pods.entry(uid) {
                self.reporter.emit(ManagerEvent::Stuck(Arc::clone(entry)));
            }
        }
        let has_changed = self.sources.arm(self.planner.thresholds(), &seen);
        while let Some(refusal) = self.sources.refusals.pop() {
            self.reporter.emit(ManagerEvent::HookRefused(refusal));
        }
        let next = self
            .sources
            .sample_interval(self.planner.thresholds(), &seen);
        let interval = match has_changed {
            true => self.look_again.pause().min(next),
            false => {
                self.look_again = RearmBackoff::default();
                next
            }
        };
        (now, interval)
    }

    /// Observations, and the use of everything that is short.
    pub(super) fn sample(&mut self) -> Observations {
        let mut seen = self.sources.sample(signed(monotonic_ns()));
        let short = |t: &&Threshold| t.is_unresolved(&seen);
        let resources: BTreeSet<Resource> = self
            .planner
            .thresholds()
            .filter(short)
            .map(|t| t.signal.resource())
            .collect();
        if resources.contains(&Resource::Memory) {
            // Page cache that the kernel has not added up yet passes for a working set.
            flush_statistics(&self.node.pods.entries);
            self.sources
                .sample_memory(&mut seen, signed(monotonic_ns()));
        }
        self.node.usage_collector.take_walks();
        self.find_fastpath_kills(&seen);
        self.node.usage_collector.forget_all_but(&resources);
        let deleted = self.node.find_running(!resources.is_empty());
        // Memory last: the files of a walk take the place of all that was known of its containers.
        for resource in resources.into_iter().rev() {
            self.node
                .usage_collector
                .measure(resource, &self.node.pods, &self.sources);
        }
        let mode = self.planner.mode();
        self.node.ask_policies(&self.limiter, mode, monotonic_ns());
        for uid in &deleted {
            let node = self.node.with_ended(&seen);
            let now = signed(monotonic_ns());
            self.planner.note_end_of_deleted(now, node, uid);
        }
        seen
    }
}

/// Called at each kill, with the moment of SIGKILL in nanoseconds of CLOCK_MONOTONIC and the cause. It must not block.
pub type OnKill = Box<dyn Fn(&Arc<PodEntry>, u64, Cause) + Send>;

/// Settings and parts that the manager needs.
pub struct ManagerSetup {
    /// Thresholds, layout and all other settings of the engine.
    pub settings: PlannerSettings,
    /// Sources of the signals.
    pub sources: SignalSources,
    /// Walks the pods' directories.
    pub scanner: Arc<DiskScanner>,
    /// The pods at the start.
    pub pods: PodSet,
    /// Limits and the pause, which hold for all pods.
    pub limiter: Arc<EvictionLimiter>,
    /// Decide and report, and kill nothing.
    pub shadow: bool,
    /// Components that may do a [`ManagerEvent::NodeReclaim`]: evictions wait for it, for a while.
    pub node_reclaim: NodeReclaimOptions,
    /// Settings of what is done about a soft threshold on memory before a pod is evicted.
    pub mitigation: MitigationConfig,
    /// A directory of cgroup v1's memory hierarchy, where there is one (`join_root_memcg`).
    pub memory_v1: Option<PathBuf>,
    /// Record of what an earlier agent has done.
    pub restored: evictd_engine::RestoredState,
    /// The fast path counts on what comes back, whatever the pod was killed for.
    pub on_kill: OnKill,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn triggers_that_always_move_are_looked_at_ever_more_slowly() {
        let mut again = RearmBackoff::default();
        let pauses: Vec<u128> = (0..6).map(|_| again.pause().as_millis()).collect();
        assert_eq!(pauses, [0, 20, 40, 80, 160, 160]);
    }
}
