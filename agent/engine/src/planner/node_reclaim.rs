//! Which pods do not wait for a node-level reclaim that is under way.

use super::{
    EvictionDecision, NodeReclaim, Observation, Observations, Plan, Planner, Snapshot, Threshold,
    nanos,
};
use crate::{
    reclaim::ReclaimBy,
    units::{MS, SECOND},
};

/// What would be used up this soon is not waited for: an eviction takes as long until the files are gone.
const EXHAUSTED_SOON_NS: u64 = 2 * SECOND;
/// Growth is measured over this time at least.
const BURST_NS: u64 = 200 * MS;

impl Planner {
    /// The pods that go while others remove `what`: for thresholds of a look's plan that this does not help, or that
    /// cannot wait for it. `before` is what was seen when it was asked for. The pace holds as for all others.
    pub fn evict_unhelped(
        &mut self,
        now: i64,
        node: Snapshot<'_>,
        plan: &Plan,
        of: ReclaimBy,
        what: &[NodeReclaim],
        before: &Observations,
    ) -> Vec<EvictionDecision> {
        let layout = self.settings.layout;
        let is_helped = |threshold: &Threshold| {
            let helps = layout.node_reclaim(threshold.signal);
            // The kubelet looks at every threshold.
            of == ReclaimBy::Kubelet || helps.iter().any(|help| what.contains(help))
        };
        let goes = |t: &&Threshold| !is_helped(t) || self.cannot_wait(now, node, t, of, before);
        let due: Vec<Threshold> = plan.pending.iter().filter(goes).cloned().collect();
        self.evictions(now, node, &due)
    }

    /// What a reclaim would bring may come too late for a hard threshold: pods use up all that is left within a moment,
    /// or less than half of it is left while it is not known when the kubelet looks, or nothing at all while the runtime
    /// is at work.
    fn cannot_wait(
        &self,
        now: i64,
        node: Snapshot<'_>,
        threshold: &Threshold,
        of: ReclaimBy,
        before: &Observations,
    ) -> bool {
        let is_too_little = |seen: Observation| {
            let left = u64::try_from(seen.available).unwrap_or(0);
            let amount = threshold.amount(seen.capacity);
            match of {
                ReclaimBy::Runtime => left == 0 && amount > 0,
                ReclaimBy::Kubelet | ReclaimBy::None => left < amount / 2,
            }
        };
        // A burst that has met the threshold and is over by then is no growth.
        let is_exhausted_soon = |since: i64| {
            let decided = self.decide(now, node, threshold);
            decided.is_some_and(|(timing, _)| {
                let inputs = &timing.pace_inputs;
                timing.urgency.is_urgent()
                    && inputs.is_exhausted_within(EXHAUSTED_SOON_NS, nanos(since), BURST_NS)
            })
        };
        let seen = node.observations.get(threshold.signal);
        let before = before.get(threshold.signal);
        threshold.is_hard()
            && (seen.is_some_and(is_too_little)
                || before.and_then(|b| b.time).is_some_and(is_exhausted_soon))
    }
}
