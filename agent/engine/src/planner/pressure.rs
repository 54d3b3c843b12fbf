//! Which thresholds are met, since when, and what the node says about it: the part of the kubelet's `synchronize` that
//! remembers.

use std::time::Duration;

use crate::{
    NodeCondition, Observations, Signal, Threshold, model::threshold::first_met,
    units::shift_by_gap_signed,
};

/// The state of all thresholds. Time is nanoseconds of any one clock, and only differences count.
#[derive(Clone, Debug)]
pub struct Pressure {
    thresholds: Vec<Tracked>,
    /// Time for which a condition stays after the last sign of pressure.
    transition_period: Duration,
    /// Time at which each condition was last seen to be true.
    seen: [Option<i64>; NodeCondition::ALL.len()],
    /// Observations of the last look.
    last: Observations,
    /// Thresholds that were met when they came into force, and are not reported yet.
    met_in_force: Vec<Threshold>,
}

/// A threshold with its history.
#[derive(Clone, Debug)]
struct Tracked {
    threshold: Threshold,
    /// Time since which the threshold has been met without a break; `None` while it is not met.
    since: Option<i64>,
    /// Whether its grace period was over the last time: its minimum reclaim may count then.
    was_due: bool,
    /// Whether the signal was observed since the threshold came into force.
    is_seen: bool,
    /// Time of the first look since the last observation that had none.
    unseen_since: Option<i64>,
}

impl Tracked {
    fn new(threshold: Threshold) -> Self {
        Self {
            threshold,
            since: None,
            was_due: false,
            is_seen: false,
            unseen_since: None,
        }
    }
}

/// Time without an observation after which a threshold counts as not met: a disk that answers late changes nothing
/// until it counts as hung. It begins with the first look that has none: without a look nothing could answer.
const UNSEEN: Duration = Duration::from_secs(5);

impl Pressure {
    /// No threshold has been met yet.
    pub fn new(thresholds: Vec<Threshold>, transition_period: Duration) -> Self {
        Self {
            thresholds: thresholds.into_iter().map(Tracked::new).collect(),
            transition_period,
            seen: [None; NodeCondition::ALL.len()],
            last: Observations::default(),
            met_in_force: Vec::new(),
        }
    }

    /// Takes note of so many nanoseconds until `now` in which no look was taken although one was due: no grace period goes on
    /// meanwhile.
    pub(super) fn exclude_gap(&mut self, late: i64, now: i64) {
        for tracked in &mut self.thresholds {
            let times = [&mut tracked.since, &mut tracked.unseen_since];
            for since in times.into_iter().flatten() {
                shift_by_gap_signed(since, late, now);
            }
        }
    }

    /// Replaces the thresholds. Those that were there before keep their history, also with another minimum reclaim.
    pub fn set_thresholds(&mut self, thresholds: Vec<Threshold>, transition_period: Duration) {
        let before = std::mem::take(&mut self.thresholds);
        let track = |threshold: Threshold| {
            let known = |tracked: &&Tracked| tracked.threshold.bound() == threshold.bound();
            match before.iter().find(known) {
                Some(known) => Tracked {
                    threshold,
                    ..known.clone()
                },
                None => Tracked::new(threshold),
            }
        };
        self.thresholds = thresholds.into_iter().map(track).collect();
        self.transition_period = transition_period;
    }

    /// Takes in new observations and returns the thresholds that call for action, the most important first: met for
    /// as long as their grace period, and by a measurement that is newer than the last one. `resolves` says whether the
    /// minimum reclaim of a threshold counts.
    ///
    /// The kubelet puts memory first and leaves the rest to the order of a Go map. Here hard thresholds come before
    /// soft ones, and then they go by name.
    pub fn update(
        &mut self,
        now: i64,
        observations: &Observations,
        resolves: impl Fn(&Threshold) -> bool,
    ) -> Vec<Threshold> {
        let mut due: Vec<Threshold> = Vec::new();
        for tracked in &mut self.thresholds {
            if observations.get(tracked.threshold.signal).is_none() {
                let unseen_since = *tracked.unseen_since.get_or_insert(now);
                if has_passed(UNSEEN, unseen_since, now) {
                    (tracked.since, tracked.was_due) = (None, false);
                }
                continue;
            }
            tracked.unseen_since = None;
            let counts = tracked.was_due && resolves(&tracked.threshold);
            let is_met = tracked.threshold.is_met(observations, counts);
            tracked.since = is_met.then(|| tracked.since.unwrap_or(now));
            if !std::mem::replace(&mut tracked.is_seen, true) && is_met {
                self.met_in_force.push(tracked.threshold.clone());
            }
            let condition = tracked.threshold.signal.node_condition();
            if is_met {
                self.seen[condition as usize] = Some(now);
            }
            tracked.was_due = tracked
                .since
                .is_some_and(|since| has_passed(tracked.threshold.grace_period, since, now));
            if tracked.was_due && is_new(tracked.threshold.signal, observations, &self.last) {
                due.push(tracked.threshold.clone());
            }
        }
        self.last = *observations;
        due.sort_by_key(importance);
        due
    }

    /// A condition is true now, whatever the observations say.
    pub(super) fn note_condition(&mut self, condition: NodeCondition, now: i64) {
        self.seen[condition as usize] = Some(now);
    }

    /// The thresholds that were met at the first look since they came into force; each once.
    pub fn take_met_in_force(&mut self) -> Vec<Threshold> {
        std::mem::take(&mut self.met_in_force)
    }

    /// The conditions that hold: seen within the transition period.
    pub fn conditions(&self, now: i64) -> Vec<NodeCondition> {
        let holds = |condition: &NodeCondition| {
            let seen = self.seen[*condition as usize];
            seen.is_some_and(|seen| !has_passed(self.transition_period, seen, now))
        };
        NodeCondition::ALL.into_iter().filter(holds).collect()
    }

    /// Whether a threshold was met at the last look, or had been met for its grace period and is not resolved.
    pub fn is_under_pressure(&self, threshold: &Threshold) -> bool {
        self.met_since(threshold).is_some()
    }

    /// Since when it is, in nanoseconds.
    pub(super) fn met_since(&self, threshold: &Threshold) -> Option<i64> {
        let mut tracked = self.thresholds.iter();
        tracked.find_map(|t| t.since.filter(|_| t.threshold.bound() == threshold.bound()))
    }

    /// Whether a threshold had been met for its grace period at the last look.
    pub(super) fn is_due(&self, threshold: &Threshold) -> bool {
        let mut tracked = self.thresholds.iter();
        tracked.any(|t| t.threshold.bound() == threshold.bound() && t.was_due)
    }

    /// The hard or the soft threshold of a signal, of several the one that is met first.
    pub(super) fn threshold(
        &self,
        signal: Signal,
        is_hard: bool,
        capacity: i64,
    ) -> Option<&Threshold> {
        first_met(self.thresholds(), signal, is_hard, capacity)
    }

    /// All thresholds.
    pub fn thresholds(&self) -> impl DoubleEndedIterator<Item = &Threshold> {
        self.thresholds.iter().map(|tracked| &tracked.threshold)
    }

    /// The highest threshold of a signal, in its unit; `None` if it has none.
    pub fn highest(&self, signal: Signal, capacity: i64) -> Option<u64> {
        let own = self.thresholds().filter(|t| t.signal == signal);
        own.map(|threshold| threshold.amount(capacity)).max()
    }

    /// The thresholds that are met, whatever their history; `resolves` says whether the minimum reclaim of one counts.
    pub fn unresolved(
        &self,
        observations: &Observations,
        resolves: impl Fn(&Threshold) -> bool,
    ) -> impl Iterator<Item = &Threshold> {
        self.thresholds()
            .filter(move |t| t.is_met(observations, resolves(t)))
    }
}

/// Memory first, the node's own before that of its pods; containerfs last, whose thresholds are copies of others'; hard
/// before soft; then by name.
fn importance(threshold: &Threshold) -> (u8, bool, Signal) {
    let class = match threshold.signal {
        Signal::MemoryAvailable => 0,
        Signal::AllocatableMemoryAvailable => 1,
        Signal::ContainerFsAvailable | Signal::ContainerFsInodesFree => 3,
        _ => 2,
    };
    (class, !threshold.is_hard(), threshold.signal)
}

/// Whether a period has passed since an instant. A clock that goes back or stands still lets nothing pass, except for
/// a period of zero.
pub(super) fn has_passed(period: Duration, since: i64, now: i64) -> bool {
    i128::from(now) - i128::from(since) >= i128::try_from(period.as_nanos()).unwrap_or(i128::MAX)
}

/// Whether a signal was measured after the last time; without a time it always counts as if.
fn is_new(signal: Signal, observations: &Observations, last: &Observations) -> bool {
    let Some(seen) = observations.get(signal) else {
        return false;
    };
    match (seen.time, last.get(signal).and_then(|last| last.time)) {
        (Some(time), Some(last)) => time > last,
        _ => true,
    }
}
