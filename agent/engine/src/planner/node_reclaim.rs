//! Which component is asked for a node-level reclaim, how long evictions wait for it, and which pods do not wait for
//! one that is under way.

use std::time::Duration;

use super::{
    EvictionDecision, NodeReclaim, Observation, Observations, Plan, Planner, Signal, Snapshot,
    Threshold, unsigned_ns, victims::significant,
};
use crate::{
    kubelet_times::MONITORING_INTERVAL_NS,
    model::settings::Mode,
    node_reclaim::ReclaimBy,
    units::{MS, SECOND, nanos, shift_by_gap},
};

/// How long the kubelet may take until pods are evicted in its stead: it looks every 10 s, and needs some time for its
/// images.
const KUBELET_TIMEOUT: Duration = Duration::from_secs(15);
/// A reclaim that brings something is waited for beyond that, for so long in all: the kubelet's own for an answer of the runtime.
const LONGEST: Duration = Duration::from_secs(120);
/// It has brought something where this part of what is missing has come.
const PROGRESS_PART: u64 = 16;
/// How long an answer of the runtime keeps the next one from being asked for: the kubelet's monitoring interval.
const RUNTIME_INTERVAL: Duration = Duration::from_secs(10);
/// The runtime's side keeps to its time by itself; its command needs a moment.
const RUNTIME_GRACE: Duration = Duration::from_millis(500);

/// What would be used up this soon is not waited for: an eviction takes as long until the files are gone.
const EXHAUSTED_SOON_NS: u64 = 2 * SECOND;
/// Growth is measured over this time at least.
const BURST_NS: u64 = 200 * MS;

/// This part of a threshold, and no more than so many bytes, is nothing: a full disk shows some blocks that no writer gets.
const NOTHING_LEFT: u64 = 256;
const MAX_OF_NOTHING: u64 = 16 << 20;

/// Kinds of [`NodeReclaim`].
const KINDS: usize = NodeReclaim::ALL.len();

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
    /// What it was asked to remove; of the kubelet all that pods wait for ([`NodeReclaimers::awaited_of_kubelet`]).
    pub what: &'a [NodeReclaim],
    /// What was seen when it was asked.
    pub before: &'a Observations,
}

/// What the reclaim that pods wait for has brought so far. Times are nanoseconds of one clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReclaimProgress {
    /// The least that was available of each signal before the first progress, and what was at the last one.
    before: [Option<i64>; Signal::ALL.len()],
    risen_at: Option<u64>,
}

impl ReclaimProgress {
    /// Takes in a look, with the thresholds that the reclaim may resolve.
    pub fn note(&mut self, now: u64, helped: &[Threshold], seen: &Observations) {
        for threshold in helped {
            let signal = threshold.signal;
            let (Some(seen), Some(least)) = (seen.get(signal), significant(signal.resource()))
            else {
                continue;
            };
            let before = self.before[signal as usize].get_or_insert(seen.available);
            let least = least.max(threshold.deficit(seen) / PROGRESS_PART);
            if unsigned_ns(seen.available.saturating_sub(*before)) >= least {
                *before = seen.available;
                self.risen_at = Some(now);
            } else if self.risen_at.is_none() {
                *before = seen.available.min(*before);
            }
        }
    }

    /// For so many nanoseconds until `now` no look was taken.
    pub fn exclude_gap(&mut self, late: u64, now: u64) {
        if let Some(risen_at) = &mut self.risen_at {
            shift_by_gap(risen_at, late, now);
        }
    }

    /// Whether something has come within a monitoring interval, of a reclaim that is waited for since a moment.
    pub fn goes_on(&self, now: u64, since: u64) -> bool {
        let is_recent = |at: u64| now.saturating_sub(at) < MONITORING_INTERVAL_NS;
        self.risen_at.is_some_and(is_recent) && now.saturating_sub(since) < nanos(LONGEST)
    }
}

/// The components that may reclaim, and what they have done so far. Times are nanoseconds of one clock.
#[derive(Clone, Copy, Debug)]
pub struct NodeReclaimers {
    options: NodeReclaimOptions,
    /// What the runtime has not answered yet, by [`NodeReclaim`], whether it is waited for or not.
    requested: [bool; KINDS],
    /// Time at which the last answer to a request for each came.
    answered: [Option<u64>; KINDS],
    /// Whether the last answer was that there is no runtime to ask.
    is_away: bool,
    /// What pods have waited for the kubelet to remove during this pressure, by [`NodeReclaim`]. It reclaims whenever it
    /// looks: no pod waits for that again.
    has_waited_for_kubelet: [bool; KINDS],
}

impl NodeReclaimers {
    /// No component was asked yet.
    pub fn new(options: NodeReclaimOptions) -> Self {
        Self {
            options,
            requested: [false; KINDS],
            answered: [None; KINDS],
            is_away: false,
            has_waited_for_kubelet: [false; KINDS],
        }
    }

    /// Chooses the component that is to reclaim this now, and the time that it may take.
    pub fn next(&self, now: u64, what: &[NodeReclaim]) -> (ReclaimBy, Duration) {
        let is_recent = |at| now.saturating_sub(at) < nanos(RUNTIME_INTERVAL);
        let rests = what
            .iter()
            .all(|kind| self.answered[*kind as usize].is_some_and(is_recent));
        let is_requested = self.requested.contains(&true);
        let is_absent = self.options.runtime.is_none() || self.is_away;
        match (self.options.runtime, self.kubelet_timeout(what)) {
            (Some(within), _) if !is_requested && !rests => {
                (ReclaimBy::Runtime, within + RUNTIME_GRACE)
            }
            (_, Some(timeout)) if is_absent => (ReclaimBy::Kubelet, timeout),
            _ => (ReclaimBy::None, Duration::ZERO),
        }
    }

    /// How long pods wait for the kubelet to remove this where the runtime cannot be asked; `None` if they do not.
    pub fn kubelet_timeout(&self, what: &[NodeReclaim]) -> Option<Duration> {
        let awaited = self.awaited_of_kubelet();
        let waits = self.options.kubelet && what.iter().any(|kind| awaited.contains(kind));
        waits.then_some(KUBELET_TIMEOUT)
    }

    /// Lists what pods have not waited for the kubelet to remove during this pressure.
    pub fn awaited_of_kubelet(&self) -> Vec<NodeReclaim> {
        let mut kinds = NodeReclaim::ALL.to_vec();
        kinds.retain(|kind| !self.has_waited_for_kubelet[*kind as usize]);
        kinds
    }

    /// The runtime was asked for this.
    pub fn note_request(&mut self, what: &[NodeReclaim]) {
        for kind in what {
            self.requested[*kind as usize] = true;
        }
    }

    /// The runtime has answered, if only that there is none.
    pub fn note_answer(&mut self, now: u64, is_away: bool) {
        let requested = std::mem::take(&mut self.requested);
        for (answered, _) in self.answered.iter_mut().zip(requested).filter(|(_, r)| *r) {
            *answered = Some(now);
        }
        self.is_away = is_away;
    }

    /// Pods have waited for a component to remove this.
    pub fn note_waited(&mut self, by: ReclaimBy, what: &[NodeReclaim]) {
        for kind in what.iter().filter(|_| by == ReclaimBy::Kubelet) {
            self.has_waited_for_kubelet[*kind as usize] = true;
        }
    }

    /// Takes in which reclaims can help what is short: the next pressure begins anew, that of each disk by itself.
    pub fn note_pressure(&mut self, helps: &[NodeReclaim]) {
        for kind in NodeReclaim::ALL {
            self.has_waited_for_kubelet[kind as usize] &= helps.contains(&kind);
        }
    }
}

impl Planner {
    /// The pods that go during a reclaim: for thresholds of a look's plan that it does not help, or that cannot wait for
    /// it. The pace holds as for all others.
    pub fn evict_without_reclaim(
        &mut self,
        now: i64,
        node: Snapshot<'_>,
        plan: &Plan,
        reclaim: ReclaimUnderWay<'_>,
    ) -> Vec<EvictionDecision> {
        let layout = self.settings.layout;
        let is_helped = |threshold: &Threshold| {
            let helps = layout.node_reclaim(threshold.signal);
            helps.iter().any(|help| reclaim.what.contains(help))
        };
        let goes = |t: &&Threshold| !is_helped(t) || self.cannot_wait(now, node, t, reclaim);
        let due: Vec<Threshold> = plan.awaiting_reclaim.iter().filter(goes).cloned().collect();
        self.evictions(now, node, &due)
    }

    /// What a reclaim would bring may come too late for a hard threshold: pods use up all that is left within a moment,
    /// or less than half of it is left while it is not known when the kubelet looks, or next to nothing while the runtime is
    /// at work, and in the kubelet's mode.
    fn cannot_wait(
        &self,
        now: i64,
        node: Snapshot<'_>,
        threshold: &Threshold,
        reclaim: ReclaimUnderWay<'_>,
    ) -> bool {
        let nothing = match threshold.signal.resource().is_of_bytes() {
            true => MAX_OF_NOTHING,
            false => 0,
        };
        let is_too_little = |seen: Observation| {
            let left = u64::try_from(seen.available).unwrap_or(0);
            let amount = threshold.amount(seen.capacity);
            match reclaim.by {
                ReclaimBy::Kubelet | ReclaimBy::None if self.settings.mode == Mode::Evictd => {
                    left < amount / 2
                }
                _ => amount > 0 && left <= nothing.min(amount / NOTHING_LEFT),
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
    use crate::{ThresholdValue, model::quantity::Quantity};

    const WITHIN: Duration = Duration::from_secs(30);
    const BOTH: [NodeReclaim; KINDS] = NodeReclaim::ALL;

    // R8: it looks every ten seconds as long as a disk is short, and so do the evictions that follow.
    #[test]
    fn the_kubelet_is_waited_for_once() {
        for runtime in [None, Some(WITHIN)] {
            let kubelet = true;
            let mut reclaimers = NodeReclaimers::new(NodeReclaimOptions { runtime, kubelet });
            // No runtime has answered.
            reclaimers.note_request(&BOTH);
            reclaimers.note_answer(SECOND, runtime.is_some());
            assert_eq!(
                reclaimers.next(SECOND, &BOTH),
                (ReclaimBy::Kubelet, KUBELET_TIMEOUT)
            );
            reclaimers.note_waited(ReclaimBy::Kubelet, &BOTH);
            reclaimers.note_pressure(&BOTH);
            assert_eq!(reclaimers.next(SECOND, &BOTH).0, ReclaimBy::None);
            reclaimers.note_pressure(&[]);
            assert_eq!(reclaimers.next(SECOND, &BOTH).0, ReclaimBy::Kubelet);
        }
    }

    /// Ten images of 1 GiB go one after the other, and others write meanwhile.
    // R8, R43
    #[test]
    fn a_reclaim_that_brings_something_goes_on() {
        const GIB: i64 = 1 << 30;
        let signal = Signal::ImageFsAvailable;
        let file = |second: i64, ended: i64| match ended {
            9 => i64::from(second % 6 >= 3) * 2 * GIB,
            _ => second % 2 * (1 << 20),
        };
        let threshold = Threshold {
            signal,
            value: ThresholdValue::Quantity(Quantity::bytes(50 << 30)),
            grace_period: Duration::ZERO,
            min_reclaim: None,
        };
        // It ends, or goes on for longer than is waited. Others write and remove a large file meanwhile, which alone is no progress.
        for (ended, last) in [(50, 58), (200, 119), (9, 12)] {
            let mut progress = ReclaimProgress::default();
            let mut goes_on = Vec::new();
            for second in 0..200 {
                let removed = (second.clamp(9, ended) - 9) * GIB / 4;
                let mut seen = Observations::default();
                let observation = Observation {
                    available: 20 * GIB + removed + file(second, ended),
                    capacity: 100 * GIB,
                    time: None,
                };
                seen.set(signal, observation);
                let now = second.unsigned_abs() * SECOND;
                progress.note(now, std::slice::from_ref(&threshold), &seen);
                goes_on.push(progress.goes_on(now, 0));
            }
            // A sixteenth of 30 GiB has come, or the file has gone for the first time.
            let first = if ended == 9 { 3 } else { 17 };
            let expected = |second: usize| (first..=last).contains(&second);
            assert_eq!(goes_on, Vec::from_iter((0..200).map(expected)), "{ended}");
        }
    }

    /// Images have a disk of their own, which stays short.
    // R8
    #[test]
    fn the_kubelet_is_waited_for_once_for_each_disk() {
        let [containers, images] = BOTH.map(|kind| [kind]);
        let mut reclaimers = NodeReclaimers::new(NodeReclaimOptions {
            runtime: None,
            kubelet: true,
        });
        reclaimers.note_waited(ReclaimBy::Kubelet, &images);
        for _ in 0..2 {
            reclaimers.note_pressure(&BOTH);
            assert_eq!(reclaimers.next(SECOND, &images).0, ReclaimBy::None);
            assert_eq!(reclaimers.next(SECOND, &BOTH).0, ReclaimBy::Kubelet);
            // What was waited for before does not wait once more.
            assert_eq!(reclaimers.awaited_of_kubelet(), containers);
            reclaimers.note_waited(ReclaimBy::Kubelet, &BOTH);
            assert_eq!(reclaimers.next(SECOND, &BOTH).0, ReclaimBy::None);
            reclaimers.note_pressure(&images);
        }
    }

    #[test]
    fn the_runtime_is_asked_once_in_ten_seconds_and_never_twice_at_a_time() {
        let mut reclaimers = NodeReclaimers::new(NodeReclaimOptions {
            runtime: Some(WITHIN),
            kubelet: true,
        });
        let asked = (ReclaimBy::Runtime, WITHIN + RUNTIME_GRACE);
        assert_eq!(reclaimers.next(SECOND, &BOTH), asked);
        reclaimers.note_request(&[NodeReclaim::Images]);
        assert_eq!(reclaimers.next(60 * SECOND, &BOTH).0, ReclaimBy::None);
        reclaimers.note_answer(60 * SECOND, false);
        let next = |now, what: &[NodeReclaim]| reclaimers.next(now, what);
        let images = [NodeReclaim::Images];
        assert_eq!(next(70 * SECOND - 1, &images).0, ReclaimBy::None);
        assert_eq!(next(70 * SECOND, &images), asked);
        // Another disk is short, which the other kind helps.
        assert_eq!(next(61 * SECOND, &[NodeReclaim::Containers]), asked);
        assert_eq!(next(61 * SECOND, &BOTH), asked);
    }

    #[test]
    fn evictions_wait_for_no_component_that_may_not_reclaim() {
        let reclaimers = NodeReclaimers::new(NodeReclaimOptions::default());
        let nothing = (ReclaimBy::None, Duration::ZERO);
        assert_eq!(reclaimers.next(SECOND, &BOTH), nothing);
    }
}
