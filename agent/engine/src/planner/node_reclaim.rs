//! Which component is asked for a node-level reclaim, how long evictions wait for it, and which pods do not wait for
//! one that is under way.

use std::time::Duration;

use super::{
    EvictionDecision, NodeReclaim, Observation, Observations, Plan, Planner, Snapshot, Threshold,
    unsigned_ns,
};
use crate::{
    node_reclaim::ReclaimBy,
    units::{MS, SECOND, nanos},
};

/// How long the kubelet may take until pods are evicted in its stead: it looks every 10 s, and needs some time for its
/// images.
const KUBELET_TIMEOUT: Duration = Duration::from_secs(15);
/// How long an answer of the runtime keeps the next one from being asked for: the kubelet's monitoring interval.
const RUNTIME_INTERVAL: Duration = Duration::from_secs(10);
/// The runtime's side keeps to its time by itself; its command needs a moment.
const RUNTIME_GRACE: Duration = Duration::from_millis(500);

/// What would be used up this soon is not waited for: an eviction takes as long until the files are gone.
const EXHAUSTED_SOON_NS: u64 = 2 * SECOND;
/// Growth is measured over this time at least.
const BURST_NS: u64 = 200 * MS;

/// Components that may remove what is not in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct NodeReclaimOptions {
    /// The container runtime, within this time.
    pub runtime: Option<Duration>,
    /// A kubelet beside this agent, where there is no runtime to ask.
    pub kubelet: bool,
}

/// A node-level reclaim that is under way.
#[derive(Clone, Copy, Debug)]
pub struct ReclaimUnderWay<'a> {
    /// The component that reclaims.
    pub by: ReclaimBy,
    /// What it was asked to remove.
    pub what: &'a [NodeReclaim],
    /// What was seen when it was asked.
    pub before: &'a Observations,
}

/// The components that may reclaim, and what they have done so far. Times are nanoseconds of one clock.
#[derive(Clone, Copy, Debug)]
pub struct NodeReclaimers {
    options: NodeReclaimOptions,
    /// The runtime has not answered the last request yet, whether it is waited for or not.
    is_requested: bool,
    /// Time at which the last answer came.
    answered: Option<u64>,
    /// Whether the last answer was that there is no runtime to ask.
    is_away: bool,
    /// Pods have waited for the kubelet during this pressure. It reclaims whenever it looks: no pod waits for that
    /// again.
    has_waited_for_kubelet: bool,
}

impl NodeReclaimers {
    /// No component was asked yet.
    pub fn new(options: NodeReclaimOptions) -> Self {
        Self {
            options,
            is_requested: false,
            answered: None,
            is_away: false,
            has_waited_for_kubelet: false,
        }
    }

    /// Chooses the component that is to reclaim now, and the time that it may take.
    pub fn next(&self, now: u64) -> (ReclaimBy, Duration) {
        let rests = self
            .answered
            .is_some_and(|at| now.saturating_sub(at) < nanos(RUNTIME_INTERVAL));
        let is_absent = self.options.runtime.is_none() || self.is_away;
        match (self.options.runtime, self.kubelet_timeout()) {
            (Some(within), _) if !self.is_requested && !rests => {
                (ReclaimBy::Runtime, within + RUNTIME_GRACE)
            }
            (_, Some(timeout)) if is_absent => (ReclaimBy::Kubelet, timeout),
            _ => (ReclaimBy::None, Duration::ZERO),
        }
    }

    /// How long pods wait for the kubelet where the runtime cannot be asked; `None` if they do not.
    pub fn kubelet_timeout(&self) -> Option<Duration> {
        let waits = self.options.kubelet && !self.has_waited_for_kubelet;
        waits.then_some(KUBELET_TIMEOUT)
    }

    /// The runtime was asked.
    pub fn note_request(&mut self) {
        self.is_requested = true;
    }

    /// The runtime has answered, if only that there is none.
    pub fn note_answer(&mut self, now: u64, is_away: bool) {
        self.is_requested = false;
        self.answered = Some(now);
        self.is_away = is_away;
    }

    /// Pods have waited for a component.
    pub fn note_waited(&mut self, by: ReclaimBy) {
        self.has_waited_for_kubelet |= by == ReclaimBy::Kubelet;
    }

    /// Takes in whether something is short that a reclaim can help: the next pressure begins anew.
    pub fn note_pressure(&mut self, is_pressed: bool) {
        self.has_waited_for_kubelet &= is_pressed;
    }
}

impl Planner {
    /// The pods that go during a reclaim: for thresholds of a look's plan that it does not help, or that cannot wait for
    /// it. The pace holds as for all others.
    pub fn evict_unhelped(
        &mut self,
        now: i64,
        node: Snapshot<'_>,
        plan: &Plan,
        reclaim: ReclaimUnderWay<'_>,
    ) -> Vec<EvictionDecision> {
        let layout = self.settings.layout;
        let is_helped = |threshold: &Threshold| {
            let helps = layout.node_reclaim(threshold.signal);
            // The kubelet looks at every threshold.
            reclaim.by == ReclaimBy::Kubelet || helps.iter().any(|help| reclaim.what.contains(help))
        };
        let goes = |t: &&Threshold| !is_helped(t) || self.cannot_wait(now, node, t, reclaim);
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
        reclaim: ReclaimUnderWay<'_>,
    ) -> bool {
        let is_too_little = |seen: Observation| {
            let left = u64::try_from(seen.available).unwrap_or(0);
            let amount = threshold.amount(seen.capacity);
            match reclaim.by {
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
                    && inputs.is_exhausted_within(EXHAUSTED_SOON_NS, unsigned_ns(since), BURST_NS)
            })
        };
        let seen = node.observations.get(threshold.signal);
        let before = reclaim.before.get(threshold.signal);
        threshold.is_hard()
            && (seen.is_some_and(is_too_little)
                || before.and_then(|b| b.time).is_some_and(is_exhausted_soon))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WITHIN: Duration = Duration::from_secs(30);

    // R8: it looks every ten seconds as long as a disk is short, and so do the evictions that follow.
    #[test]
    fn the_kubelet_is_waited_for_once() {
        for runtime in [None, Some(WITHIN)] {
            let kubelet = true;
            let mut reclaimers = NodeReclaimers::new(NodeReclaimOptions { runtime, kubelet });
            // No runtime has answered.
            reclaimers.note_answer(SECOND, runtime.is_some());
            assert_eq!(
                reclaimers.next(SECOND),
                (ReclaimBy::Kubelet, KUBELET_TIMEOUT)
            );
            reclaimers.note_waited(ReclaimBy::Kubelet);
            reclaimers.note_pressure(true);
            assert_eq!(reclaimers.next(SECOND).0, ReclaimBy::None);
            reclaimers.note_pressure(false);
            assert_eq!(reclaimers.next(SECOND).0, ReclaimBy::Kubelet);
        }
    }

    #[test]
    fn the_runtime_is_asked_once_in_ten_seconds_and_never_twice_at_a_time() {
        let mut reclaimers = NodeReclaimers::new(NodeReclaimOptions {
            runtime: Some(WITHIN),
            kubelet: true,
        });
        let asked = (ReclaimBy::Runtime, WITHIN + RUNTIME_GRACE);
        assert_eq!(reclaimers.next(SECOND), asked);
        reclaimers.note_request();
        assert_eq!(reclaimers.next(60 * SECOND).0, ReclaimBy::None);
        reclaimers.note_answer(60 * SECOND, false);
        assert_eq!(reclaimers.next(70 * SECOND - 1).0, ReclaimBy::None);
        assert_eq!(reclaimers.next(70 * SECOND), asked);
    }

    #[test]
    fn evictions_wait_for_no_component_that_may_not_reclaim() {
        let reclaimers = NodeReclaimers::new(NodeReclaimOptions::default());
        assert_eq!(reclaimers.next(SECOND), (ReclaimBy::None, Duration::ZERO));
    }
}
