//! The thread: waits, samples, asks the engine's planner, and acts on its plan. Which pods go, and when, is decided in
//! the engine; what it needs for that is read here.

mod execute;
mod external_kills;
mod mitigation_steps;
mod node_reclaim;
mod report;

use std::{
    collections::{BTreeSet, HashMap},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use evictd_engine::{
    EmptyPods, NodeCondition, NodeState, Observation, Observations, Planner, Pod, ReclaimOptions,
    Resource, Signal, Snapshot, Threshold,
    limiter::EvictionLimiter,
    model::settings::{MitigationConfig, Mode},
    recorder::Recorder,
    soft::Departure,
    units::signed,
};
use evictd_node::{pods::table::PodEntry, trigger::counter::CounterEvent};
use evictd_sys::{clock::monotonic_ns, poll::poll};

use crate::{
    Command, CommandQueue, DiskPressure, DiskScanner, FastPathOutcome, ManagerEvent,
    ManagerEventQueue, PodSet, SharedStatus, SignalSources,
    manager_loop::{
        execute::is_unresolved,
        external_kills::{AfterKill, KnownKills},
        mitigation_steps::MitigationState,
        node_reclaim::ReclaimState,
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
    pub pods: PodSet,
    pub limiter: Arc<EvictionLimiter>,
    pub shadow: bool,
    pub events: Arc<ManagerEventQueue>,
    pub commands: Arc<CommandQueue>,
    pub status: Arc<SharedStatus>,
    pub recorder: Arc<Recorder>,
    pub reclaim: ReclaimState,
    pub mitigation: MitigationState,
    pub reported: NodeState,
    /// Time at which `reported` was sent, in nanoseconds of CLOCK_MONOTONIC.
    pub reported_at: u64,
    /// Conditions for which the fast path has evicted since the last sample.
    pub evicted_for: BTreeSet<NodeCondition>,
    pub message: String,
    /// Signals for which shadow mode has reported a victim during this pressure.
    pub shadow_reported: BTreeSet<String>,
    pub known_kills: KnownKills,
    pub on_kill: OnKill,
    pub decided: u64,
    pub cycles: u64,
    look_again: RearmBackoff,
    pub recreations: u64,
}

/// The pods as the planner gets them.
pub(super) struct NodePods {
    pub usage_collector: UsageCollector,
    /// Pods that have not ended. One without processes may be between two runs of its container.
    pub running: Vec<Pod>,
    pub empty: EmptyPods,
}

impl NodePods {
    /// The node as it was observed.
    pub fn snapshot<'a>(&'a self, observations: &'a Observations) -> Snapshot<'a> {
        Snapshot {
            observations,
            pods: &self.running,
            usages: self.usage_collector.usages(),
        }
    }

    /// Makes a snapshot that includes the pods that have ended.
    pub fn with_ended<'a>(
        &'a self,
        observations: &'a Observations,
        pods: &'a PodSet,
    ) -> Snapshot<'a> {
        Snapshot {
            pods: &pods.pods,
            ..self.snapshot(observations)
        }
    }
}

/// How soon it is looked again after a trigger has moved, which may have been crossed meanwhile. A percentage of a
/// capacity that moves itself (XFS counts the inodes that free space has room for) moves its trigger at each look.
#[derive(Debug, Default)]
struct RearmBackoff(Duration);

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
            reclaims,
            mitigation,
            // The thread has seen to it.
            memory_v1: _,
            restored,
            on_kill,
        } = setup;
        let disks = sources.disks.as_ref();
        let cgroup_counts = disks.and_then(|d| d.trigger.cgroup_count_reader());
        let mut usage_collector =
            UsageCollector::new(Arc::clone(&scanner), cgroup_counts, settings.mode);
        usage_collector.set_pods(&pods);
        let mut planner = Planner::new(settings.clone());
        planner.restore(signed(monotonic_ns()), &restored);
        Self {
            planner,
            sources,
            node: NodePods {
                running: Vec::clone(&pods.pods),
                empty: EmptyPods::default(),
                usage_collector,
            },
            scanner,
            pods,
            limiter,
            shadow,
            events,
            commands,
            status,
            recorder,
            reclaim: ReclaimState::new(reclaims),
            mitigation: MitigationState::new(mitigation),
            reported: NodeState::default(),
            reported_at: 0,
            evicted_for: BTreeSet::new(),
            message: String::new(),
            shadow_reported: BTreeSet::new(),
            known_kills: KnownKills::after(&restored),
            on_kill,
            decided: 0,
            cycles: 0,
            look_again: RearmBackoff::default(),
            recreations: 0,
        }
    }

    /// Runs the loop until the command queue says that it is over.
    pub fn run(&mut self) {
        let mut interval = Duration::ZERO;
        loop {
            self.wait(interval);
            if self.commands.stopped() {
                return;
            }
            let wake = Wake {
                woken: monotonic_ns(),
                crossed: self.sources.crossed(),
            };
            while let Some(command) = self.commands.next() {
                self.apply(command);
            }
            interval = self.iterate(wake);
            self.status.beat(wake.woken);
        }
    }

    fn wait(&self, interval: Duration) {
        let [pids, inodes] = self.sources.fds();
        poll([pids, inodes, Some(self.commands.fd())], Some(interval));
    }

    fn apply(&mut self, command: Command) {
        let now = signed(monotonic_ns());
        match command {
            Command::Pods(pods) => {
                self.unthrottle(pods.deleting_since(&self.pods));
                if !Arc::ptr_eq(&pods.pods, &self.pods.pods) {
                    self.node.usage_collector.set_pods(&pods);
                    self.node.running.clone_from(&pods.pods);
                }
                self.known_kills.keep(&pods.entries);
                self.node.empty.keep(&pods.pods);
                self.pods = pods;
            }
            Command::PodsMemory(scope) => self.sources.pods_memory = scope.map(|scope| *scope),
            Command::NodeMemory(scope) => self.sources.memory = *scope,
            Command::Disks(disks) => self.sources.disks = Some(*disks),
            Command::EvictedByFastPath {
                uid,
                signal,
                available,
                outcome,
            } => {
                if outcome == FastPathOutcome::Shadow && !self.shadow {
                    // Sent before shadow mode ended: the pod may be evicted like any other now.
                    return;
                }
                self.evicted_for.insert(signal.node_condition());
                let mut dip = self.sources.sample(now);
                if let Some(seen) = dip.get(signal) {
                    let available = signed(available).min(seen.available);
                    dip.set(signal, Observation { available, ..seen });
                }
                self.take_external_eviction(&uid, signal, &dip, outcome);
            }
            Command::EvictedByKubelet { uid, resource } => {
                let seen = self.sources.sample(now);
                let node = self.node.with_ended(&seen, &self.pods);
                self.planner
                    .note_kubelet_eviction(now, node, &uid, resource);
            }
            Command::SoftEvictionFinished { chosen, gone } => {
                if let Some((gone, departure)) = &gone
                    && let Some(entry) = self.pods.entry(&gone.uid).cloned()
                {
                    // One that was killed meanwhile is charged already.
                    if !self.known_kills.awaits_end(&gone.uid) {
                        self.charge_asked(&entry, *departure);
                    }
                    self.known_kills.note(&entry);
                    // It may be another one than the one that was chosen: a budget protected that.
                    self.unthrottle(vec![entry]);
                }
                // What its end will bring is of what is there now.
                let observations = self.sources.sample(now);
                let node = self.node.snapshot(&observations);
                let gone = gone.as_ref().map(|(decision, _)| decision);
                self.planner
                    .soft_eviction_finished(now, node, &chosen, gone);
            }
            Command::Reclaimed(removed) => self.reclaimed(removed),
            Command::MitigationDone(effect) => self.mitigation_done(*effect),
            Command::Settings {
                settings,
                shadow,
                mitigation,
            } => {
                self.mitigation.reconfigure(mitigation);
                if shadow != self.shadow {
                    self.begin_steps_anew(shadow);
                }
                self.planner.reconfigure(*settings);
                if std::mem::replace(&mut self.shadow, shadow) != shadow {
                    self.planner.change_shadow_mode();
                    self.shadow_reported.clear();
                    self.limiter.forget_shadow();
                }
            }
        }
    }

    fn charge_asked(&self, entry: &PodEntry, departure: Departure) {
        let (permit, now) = (&entry.permit, monotonic_ns());
        match departure {
            Departure::Asked => self.limiter.charge_asked(permit, now),
            Departure::Ended => self.limiter.charge(permit, now),
            Departure::GoneBefore => {}
        }
    }

    /// One look and what follows from it; the time until the next one.
    fn iterate(&mut self, wake: Wake) -> Duration {
        let seen = self.sample();
        self.record(&seen);
        let now = monotonic_ns();
        let allows_paced = match self.planner.mode() {
            Mode::Kubelet => self.limiter.fleet_allows_paced(now),
            Mode::Evictd => self.limiter.allows_paced(now),
        };
        self.planner.block_paced(!allows_paced);
        self.planner
            .block_own_limits(self.limiter.awaits_policies(now));
        let node = self.node.snapshot(&seen);
        let mut plan = self.planner.plan(signed(monotonic_ns()), node);
        let evictions = std::mem::take(&mut plan.evictions);
        self.execute(evictions, &seen, wake);
        self.reclaim(&plan, &seen);
        self.mitigate(&seen);
        self.report(plan, &seen);
        let has_changed = self.sources.arm(self.planner.thresholds(), &seen);
        while let Some(refusal) = self.sources.refusals.pop() {
            self.emit(ManagerEvent::HookRefused(refusal));
        }
        let next = self
            .sources
            .sample_interval(self.planner.thresholds(), &seen);
        match has_changed {
            true => self.look_again.pause().min(next),
            false => {
                self.look_again = RearmBackoff::default();
                next
            }
        }
    }

    /// Observations, and the use of everything that is short.
    pub(super) fn sample(&mut self) -> Observations {
        let seen = self.sources.sample(signed(monotonic_ns()));
        self.node.usage_collector.take_walks();
        self.see_external_kills(&seen);
        let short = |t: &&Threshold| is_unresolved(t, &seen);
        let resources: BTreeSet<Resource> = self
            .planner
            .thresholds()
            .filter(short)
            .map(|t| t.signal.resource())
            .collect();
        let is_pressed = |t: &Threshold| {
            t.signal.resource().is_of_files()
                && (t.is_met(&seen, false) || self.planner.is_pressed(t))
        };
        let pressed = self.planner.thresholds().filter(|t| is_pressed(t));
        let pressure = pressed.map(|t| match t.is_hard() {
            true => DiskPressure::Hard,
            false => DiskPressure::Soft,
        });
        self.scanner
            .set_pressure(pressure.max().unwrap_or_default());
        self.find_running(!resources.is_empty());
        for resource in resources {
            self.node
                .usage_collector
                .measure(resource, &self.pods, &self.sources);
        }
        self.ask_policies();
        seen
    }

    /// Asks what the policies say at this moment of all pods that have not ended.
    fn ask_policies(&mut self) {
        let now = monotonic_ns();
        let by_uid = self.pods.entries.iter().map(|e| (e.pod.uid.as_str(), e));
        let by_uid: HashMap<&str, &Arc<PodEntry>> = by_uid.collect();
        let left = self.limiter.left_of_node_rate(now);
        self.planner.set_left_of_node_rate(left);
        for pod in &mut self.node.running {
            if let Some(entry) = by_uid.get(pod.uid.as_str()) {
                let permit = &entry.permit;
                pod.order = permit.order();
                // The planner knows what the node's rate has left.
                pod.is_denied = !self.limiter.allows_at_own_limit(permit, now);
            }
        }
    }

    /// Leaves out the pods that have ended: those without processes that were killed, are over, or are being deleted.
    fn find_running(&mut self, is_short: bool) {
        let now = monotonic_ns();
        let PodSet { entries, pods } = &self.pods;
        // Of most pods it is needed only where something is short.
        let looks_at_all = is_short || self.node.empty.is_due(now);
        let mut running: Vec<&Pod> = Vec::with_capacity(pods.len());
        for (entry, pod) in entries.iter().zip(pods.iter()) {
            let is_known = EmptyPods::is_over(pod) || self.known_kills.was_killed(&pod.uid);
            let is_empty = (looks_at_all || is_known) && entry.killer.is_empty();
            if looks_at_all {
                self.node.empty.note(&pod.uid, is_empty, now);
            }
            let has_ended = match self.known_kills.look_at(entry, is_empty, now) {
                // The one that was killed is not among the pods at this look; from the next one on it is another one.
                AfterKill::RunsAgain => true,
                AfterKill::Ends => is_empty,
                AfterKill::Other => self.node.empty.has_ended(pod, is_empty, is_short, now),
            };
            if !has_ended {
                running.push(pod);
            }
        }
        if looks_at_all {
            self.node.empty.finish_look(now);
        }
        let uids = running.iter().map(|pod| &pod.uid);
        if !uids.eq(self.node.running.iter().map(|pod| &pod.uid)) {
            self.node.running = running.into_iter().cloned().collect();
        }
    }
}

/// Called at each kill, with the moment of SIGKILL in nanoseconds of CLOCK_MONOTONIC. It must not block.
pub type OnKill = Box<dyn Fn(&Arc<PodEntry>, u64) + Send>;

/// Settings and parts that the manager needs.
pub struct ManagerSetup {
    /// Thresholds, layout and all other settings of the engine.
    pub settings: evictd_engine::PlannerSettings,
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
    /// Components that may do a [`ManagerEvent::Reclaim`]: evictions wait for it, for a while.
    pub reclaims: ReclaimOptions,
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
