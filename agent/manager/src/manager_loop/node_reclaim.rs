//! Pods wait while the node gives back what is no longer needed, but not for ever.

use std::time::Duration;

use evictd_engine::{
    NodeReclaim, NodeReclaimOptions, NodeReclaimers, Observations, Plan, ReclaimUnderWay, Signal,
    Threshold,
    node_reclaim::{ReclaimBy, Removed},
    units::{nanos, shift_by_gap, signed},
};
use evictd_sys::clock::monotonic_ns;

use crate::{
    ManagerEvent, NodeReclaimOutcome, NodeReclaimRequest,
    manager_loop::{ManagerLoop, Wake, execute::is_unresolved},
};

/// The reclaim that evictions wait for.
#[derive(Debug)]
struct Waiting {
    plan: Plan,
    before: Observations,
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
        if !plan.node_reclaim.is_empty() && self.node_reclaim.waiting.is_none() {
            self.begin_reclaim(plan, seen);
        }
        let Some(waiting) = &self.node_reclaim.waiting else {
            return;
        };
        let now = monotonic_ns();
        if now.saturating_sub(waiting.since) > nanos(waiting.timeout) {
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
        let is_over = removed.is_some_and(|removed| {
            let took = Duration::from_nanos(now.saturating_sub(waiting.began));
            let is_left = removed.left_to_kubelet > 0;
            let is_short = self.report_reclaimed(&waiting, removed, &seen, took);
            !(is_left && is_short)
        });
        // There may be a kubelet that removes the rest, or all.
        match kubelet_timeout.filter(|_| !is_over) {
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
        let helped = waiting.plan.awaiting_reclaim.iter();
        let helped: Vec<_> = helped.filter(|t| is_unresolved(t, before)).collect();
        let is_short = |t: &&Threshold| seen.get(t.signal).is_none() || is_unresolved(t, seen);
        let is_short = helped.iter().any(is_short);
        let mut freed: Vec<(Signal, i64)> = helped
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
