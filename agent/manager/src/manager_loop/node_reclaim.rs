//! Pods wait while the node gives back what is no longer needed, but not for ever.

use std::time::Duration;

use evictd_engine::{
    NodeReclaim, NodeReclaimOptions, NodeReclaimers, Observations, Plan, ReclaimProgress,
    ReclaimUnderWay, Signal, Threshold,
    model::settings::Mode,
    node_reclaim::{ReclaimBy, Removed},
    units::{nanos, shift_by_gap, signed},
};
use evictd_sys::clock::monotonic_ns;

use crate::{
    ManagerEvent, NodeReclaimOutcome, NodeReclaimRequest,
    manager_loop::{ManagerLoop, Wake},
};

/// The reclaim that evictions wait for.
#[derive(Debug)]
struct Waiting {
    plan: Plan,
    before: Observations,
    /// Thresholds that the reclaim may resolve.
    helped: Vec<Threshold>,
    progress: ReclaimProgress,
    /// At some look none of them was under pressure: no pod goes for the plan.
    is_over: bool,
    /// Time of the request, and time since which it is waited for: the same but for gaps without looks.
    began: u64,
    since: u64,
    by: ReclaimBy,
    timeout: Duration,
    /// Pods did not wait for it.
    had_evictions: bool,
}

/// Reclaims so far.
#[derive(Debug)]
pub(crate) struct NodeReclaimState {
    reclaimers: NodeReclaimers,
    waiting: Option<Waiting>,
    /// Shadow mode has spoken of this pressure.
    shadow_reported: bool,
}

impl NodeReclaimState {
    pub fn new(options: NodeReclaimOptions) -> Self {
        Self {
            reclaimers: NodeReclaimers::new(options),
            waiting: None,
            shadow_reported: false,
        }
    }

    /// For so many nanoseconds until `now` no look was taken, and the other side stood still perhaps: they do not count as
    /// waiting.
    pub(super) fn exclude_gap(&mut self, late: u64, now: u64) {
        if let Some(waiting) = &mut self.waiting {
            shift_by_gap(&mut waiting.since, late, now);
            waiting.progress.exclude_gap(late, now);
        }
    }
}

impl ManagerLoop {
    /// Requests what a plan wants reclaimed, and bounds how long evictions wait for it.
    pub(super) fn reclaim_node(&mut self, plan: &Plan, seen: &Observations) {
        let layout = self.sources.layout();
        let thresholds = self.planner.thresholds();
        let helps: Vec<NodeReclaim> = thresholds
            .filter(|t| self.planner.is_under_pressure(t))
            .flat_map(|t| layout.node_reclaim(t.signal))
            .copied()
            .collect();
        self.node_reclaim.reclaimers.note_pressure(&helps);
        self.node_reclaim.shadow_reported &= !helps.is_empty();
        if let Some(waiting) = &mut self.node_reclaim.waiting {
            let mut helped = waiting.helped.iter();
            waiting.is_over |= !helped.any(|t| self.planner.is_under_pressure(t));
            waiting.progress.note(monotonic_ns(), &waiting.helped, seen);
        }
        // The next shortage has all of the kubelet's time; the runtime answers what it was asked.
        let is_over = |w: &mut Waiting| w.is_over && w.by == ReclaimBy::Kubelet;
        self.node_reclaim.waiting.take_if(is_over);
        if !plan.node_reclaim.is_empty() && self.node_reclaim.waiting.is_none() {
            self.begin_reclaim(plan, seen);
        }
        let Some(waiting) = &self.node_reclaim.waiting else {
            return;
        };
        let now = monotonic_ns();
        let is_over = now.saturating_sub(waiting.since) > nanos(waiting.timeout);
        let goes_on =
            waiting.by == ReclaimBy::Kubelet && waiting.progress.goes_on(now, waiting.since);
        if is_over && !goes_on {
            self.finish_waiting(seen);
            return;
        }
        // The kubelet looks at every threshold.
        let awaited = self.node_reclaim.reclaimers.awaited_of_kubelet();
        let reclaim = ReclaimUnderWay {
            by: waiting.by,
            what: match waiting.by {
                ReclaimBy::Kubelet => &awaited,
                _ => &waiting.plan.node_reclaim,
            },
            before: &waiting.before,
        };
        let node = self.node.snapshot(seen);
        let unhelped = self
            .planner
            .evict_without_reclaim(signed(now), node, plan, reclaim);
        if !unhelped.is_empty()
            && let Some(waiting) = &mut self.node_reclaim.waiting
        {
            waiting.had_evictions = true;
            self.execute(unhelped, seen, Wake::at(now));
        }
    }

    fn begin_reclaim(&mut self, plan: &Plan, seen: &Observations) {
        let now = monotonic_ns();
        let reclaimers = &self.node_reclaim.reclaimers;
        let (by, timeout) = match self.shadow.on || self.limiter.is_paused() {
            true => (ReclaimBy::None, Duration::ZERO),
            false => reclaimers.next(now, &plan.node_reclaim),
        };
        self.node_reclaim.waiting = Some(Waiting {
            plan: plan.clone(),
            before: *seen,
            helped: self.helped(plan, seen),
            progress: ReclaimProgress::default(),
            is_over: false,
            began: now,
            since: now,
            by,
            timeout,
            had_evictions: false,
        });
        let speaks = match by {
            ReclaimBy::None => self.shadow.on && !self.node_reclaim.shadow_reported,
            ReclaimBy::Runtime | ReclaimBy::Kubelet => true,
        };
        let what = plan.node_reclaim.clone();
        if speaks {
            self.node_reclaim.shadow_reported = self.shadow.on;
            let is_sent = self
                .reporter
                .emit(ManagerEvent::NodeReclaim(NodeReclaimRequest { what, by }));
            if is_sent && by == ReclaimBy::Runtime {
                let what = &plan.node_reclaim;
                self.node_reclaim.reclaimers.note_request(what);
            }
        }
        if by == ReclaimBy::None {
            self.finish_waiting(seen);
        }
    }

    /// The thresholds that the reclaim of a plan may resolve: those that wait for it, and in the kubelet's mode, which evicts
    /// for one and asks all of them after the reclaim, each that it helps.
    fn helped(&self, plan: &Plan, seen: &Observations) -> Vec<Threshold> {
        let layout = self.sources.layout();
        let is_helped = |t: &Threshold| match self.planner.mode() {
            Mode::Kubelet => {
                let helps = layout.node_reclaim(t.signal);
                helps.iter().any(|help| plan.node_reclaim.contains(help))
            }
            Mode::Evictd => plan.awaiting_reclaim.contains(t),
        };
        let helped = self.planner.thresholds();
        let helped = helped.filter(|t| is_helped(t) && t.is_unresolved(seen));
        helped.cloned().collect()
    }

    /// The runtime has answered.
    pub(super) fn node_reclaim_done(&mut self, removed: Option<Removed>) {
        let now = monotonic_ns();
        self.node_reclaim
            .reclaimers
            .note_answer(now, removed.is_none());
        let is_waiting = |w: &mut Waiting| w.by == ReclaimBy::Runtime;
        let Some(waiting) = self.node_reclaim.waiting.take_if(is_waiting) else {
            return;
        };
        let what = &waiting.plan.node_reclaim;
        let kubelet_timeout = self.node_reclaim.reclaimers.kubelet_timeout(what);
        let seen = self.sample();
        let node = self.node.snapshot(&seen);
        self.planner.take_look(signed(now), node);
        let is_enough = removed.is_some_and(|removed| {
            let took = Duration::from_nanos(now.saturating_sub(waiting.began));
            let is_left = removed.left_to_kubelet > 0;
            let is_short = self.report_reclaimed(&waiting, removed, &seen, took);
            !(is_left && is_short)
        });
        // There may be a kubelet that removes the rest, or all.
        match kubelet_timeout.filter(|_| !is_enough && !waiting.is_over) {
            Some(timeout) => {
                self.node_reclaim.waiting = Some(Waiting {
                    by: ReclaimBy::Kubelet,
                    timeout,
                    ..waiting
                });
            }
            None => self.evict_after(&waiting, &seen),
        }
    }

    /// Returns whether a threshold that has waited for the reclaim is short still, or not observed now.
    fn report_reclaimed(
        &mut self,
        waiting: &Waiting,
        removed: Removed,
        seen: &Observations,
        took: Duration,
    ) -> bool {
        let before = &waiting.before;
        let is_short = |t: &Threshold| seen.get(t.signal).is_none() || t.is_unresolved(seen);
        let is_short = waiting.helped.iter().any(is_short);
        let mut freed: Vec<(Signal, i64)> = waiting
            .helped
            .iter()
            .filter_map(|t| {
                let (then, now) = (before.get(t.signal)?, seen.get(t.signal)?);
                Some((t.signal, now.available.saturating_sub(then.available)))
            })
            .collect();
        freed.dedup();
        let reclaimed = NodeReclaimOutcome {
            what: waiting.plan.node_reclaim.clone(),
            removed,
            freed,
            is_enough: !waiting.had_evictions && !is_short,
            took,
        };
        self.reporter
            .emit(ManagerEvent::NodeReclaimed(Box::new(reclaimed)));
        is_short
    }

    /// The waiting is over. A second sample within this look would lack each filesystem that answers late.
    fn finish_waiting(&mut self, seen: &Observations) {
        if let Some(waiting) = self.node_reclaim.waiting.take() {
            self.evict_after(&waiting, seen);
        }
    }

    /// A sample from after a reclaim decides which pods must go.
    fn evict_after(&mut self, waiting: &Waiting, seen: &Observations) {
        if waiting.is_over {
            return;
        }
        let what = &waiting.plan.node_reclaim;
        self.node_reclaim.reclaimers.note_waited(waiting.by, what);
        let snapshot = |observations| self.node.snapshot(observations);
        let evictions = self.planner.after_reclaim(
            signed(monotonic_ns()),
            &waiting.plan,
            snapshot(&waiting.before),
            snapshot(seen),
        );
        self.execute(evictions, seen, Wake::at(monotonic_ns()));
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::Path;

    use evictd_engine::{Cause, Observation, ThresholdValue, model::quantity::Quantity};

    use super::*;
    use crate::{
        ManagerSetup, PodSet,
        tests::{MIB, manager_loop, pod, setup},
    };

    const BYTES: Signal = Signal::NodeFsAvailable;
    const INODES: Signal = Signal::NodeFsInodesFree;
    const KUBELET: NodeReclaimOptions = NodeReclaimOptions {
        runtime: None,
        kubelet: true,
    };
    const RUNTIME: NodeReclaimOptions = NodeReclaimOptions {
        runtime: Some(Duration::from_secs(30)),
        kubelet: true,
    };
    /// Longer than evictions wait for the kubelet.
    const LONG: u64 = 16_000_000_000;

    /// The manager of a node with one pod. Memory is short by its soft threshold, whose grace period goes on.
    fn manager(dir: &Path, mode: Mode, node_reclaim: NodeReclaimOptions) -> ManagerLoop {
        let threshold = |signal, mib, grace| Threshold {
            signal,
            value: ThresholdValue::Quantity(Quantity::bytes(mib * MIB)),
            grace_period: Duration::from_secs(grace),
            min_reclaim: None,
        };
        let thresholds = vec![
            threshold(BYTES, 50, 0),
            threshold(INODES, 50, 0),
            threshold(Signal::MemoryAvailable, 100, 90),
        ];
        let mut setup = setup(dir, thresholds);
        setup.settings.mode = mode;
        manager_loop(ManagerSetup {
            pods: PodSet::new(&[pod(dir, "a", false)]),
            node_reclaim,
            ..setup
        })
    }

    /// What is seen where so much room is on a disk of 100 MiB, and as many inodes.
    fn seen(manager: &mut ManagerLoop, room: u64, inodes: u64) -> Observations {
        let mut seen = manager.sources.sample(0);
        for (signal, mib) in [(BYTES, room), (INODES, inodes)] {
            let observation = Observation {
                available: signed(mib * MIB),
                capacity: signed(100 * MIB),
                time: None,
            };
            seen.set(signal, observation);
        }
        seen
    }

    fn look(manager: &mut ManagerLoop, room: u64, inodes: u64) {
        let seen = seen(manager, room, inodes);
        let now = signed(monotonic_ns());
        let plan = manager.planner.plan(now, manager.node.snapshot(&seen));
        manager.reclaim_node(&plan, &seen);
    }

    /// The manager of a node whose disk is short, and whose runtime reclaims.
    pub(in crate::manager_loop) fn awaiting_the_runtime(dir: &Path) -> ManagerLoop {
        let mut manager = manager(dir, Mode::Evictd, RUNTIME);
        look(&mut manager, 40, 60);
        manager
    }

    /// So much time passes. From now on pods are chosen and not killed.
    fn pass(manager: &mut ManagerLoop, ns: u64) {
        if let Some(waiting) = &mut manager.node_reclaim.waiting {
            waiting.since -= ns;
        }
        manager.shadow.on = true;
    }

    /// Which reclaims were asked for, and how many pods have gone for the disk.
    fn told(manager: &ManagerLoop) -> (Vec<ReclaimBy>, usize) {
        let (mut reclaims, mut gone) = (Vec::new(), 0);
        for event in std::iter::from_fn(|| manager.reporter.events.next()) {
            match event {
                ManagerEvent::NodeReclaim(request) => reclaims.push(request.by),
                ManagerEvent::Evicted(e) if e.eviction.cause == Cause::Pressure(BYTES) => gone += 1,
                _ => {}
            }
        }
        (reclaims, gone)
    }

    // R8, R43: a disk that had room meanwhile is short anew, and the kubelet has all of its time.
    #[test]
    fn each_shortage_waits_for_the_kubelet_by_itself() {
        for mode in [Mode::Kubelet, Mode::Evictd] {
            let dir = tempfile::tempdir().unwrap();
            let mut manager = manager(dir.path(), mode, KUBELET);
            look(&mut manager, 40, 60);
            look(&mut manager, 60, 60);
            pass(&mut manager, LONG);
            manager.shadow.on = false;
            look(&mut manager, 40, 60);
            assert_eq!(told(&manager), (vec![ReclaimBy::Kubelet; 2], 0), "{mode:?}");
            pass(&mut manager, LONG);
            look(&mut manager, 40, 60);
            assert!(manager.node_reclaim.waiting.is_none());
        }
    }

    // R8, R43
    #[test]
    fn a_reclaim_that_brings_something_is_waited_for() {
        for (node_reclaim, waits) in [(KUBELET, true), (RUNTIME, false)] {
            let dir = tempfile::tempdir().unwrap();
            let mut manager = manager(dir.path(), Mode::Evictd, node_reclaim);
            for room in [10, 10, 30] {
                look(&mut manager, room, 60);
            }
            pass(&mut manager, 2 * LONG);
            look(&mut manager, 30, 60);
            assert_eq!(
                manager.node_reclaim.waiting.is_some(),
                waits,
                "{node_reclaim:?}"
            );
            pass(&mut manager, 6 * LONG);
            look(&mut manager, 30, 60);
            assert!(manager.node_reclaim.waiting.is_none());
        }
    }

    /// The kubelet evicts for what was short before a reclaim whatever else is short after it.
    // R8, R43
    #[test]
    fn no_pod_goes_for_a_disk_that_has_had_room_since() {
        let dir = tempfile::tempdir().unwrap();
        let mut manager = manager(dir.path(), Mode::Kubelet, KUBELET);
        look(&mut manager, 40, 60);
        look(&mut manager, 60, 60);
        pass(&mut manager, LONG);
        look(&mut manager, 60, 60);
        assert_eq!(told(&manager), (vec![ReclaimBy::Kubelet], 0));
    }

    // R8, R43
    #[test]
    fn no_pod_goes_for_a_disk_that_had_room_before_the_runtime_answers() {
        for answer in [None, Some(Removed::default())] {
            let dir = tempfile::tempdir().unwrap();
            let mut manager = manager(dir.path(), Mode::Kubelet, RUNTIME);
            look(&mut manager, 40, 60);
            look(&mut manager, 60, 60);
            pass(&mut manager, 0);
            look(&mut manager, 40, 60);
            manager.node_reclaim_done(answer);
            assert_eq!(told(&manager), (vec![ReclaimBy::Runtime], 0));
            assert!(manager.node_reclaim.waiting.is_none());
        }
    }

    /// It evicts for one threshold and asks all of them after the reclaim.
    // R8, R43
    #[test]
    fn in_the_kubelets_mode_a_reclaim_is_over_once_all_that_it_helps_is_resolved() {
        let dir = tempfile::tempdir().unwrap();
        let mut manager = manager(dir.path(), Mode::Kubelet, RUNTIME);
        look(&mut manager, 40, 40);
        let waiting = manager.node_reclaim.waiting.take().unwrap();
        assert_eq!(waiting.plan.awaiting_reclaim.len(), 1);
        for inodes in [40, 60] {
            let seen = seen(&mut manager, 60, inodes);
            let is_short =
                manager.report_reclaimed(&waiting, Removed::default(), &seen, Duration::default());
            assert_eq!(is_short, inodes < 50);
        }
        // The kubelet's time is not over because the first of them is resolved.
        manager.node_reclaim.waiting = Some(Waiting {
            by: ReclaimBy::Kubelet,
            ..waiting
        });
        look(&mut manager, 60, 40);
        assert!(manager.node_reclaim.waiting.is_some());
        look(&mut manager, 60, 60);
        assert!(manager.node_reclaim.waiting.is_none());
    }
}
