//! When a taint comes and goes: later than its condition, and perhaps longer.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use evictd_engine::{NodeCondition, NodeState};
use tokio::time::Instant;

/// Which conditions have their taint. A pressure that is over before its time is up sets none; one that comes back
/// while its condition holds does.
#[derive(Debug)]
pub struct Taints {
    set_after: Duration,
    remove_after: Duration,
    /// Since when each condition holds.
    since: BTreeMap<NodeCondition, Instant>,
    /// Conditions with a taint on the node; once the condition has ended, with the time at which the taint goes.
    set: BTreeMap<NodeCondition, Option<Instant>>,
}

impl Taints {
    /// Creates the state in which no condition holds and the taints of `there` are set already.
    pub fn new(
        set_after: Duration,
        remove_after: Duration,
        there: &BTreeSet<NodeCondition>,
    ) -> Self {
        Self {
            set_after,
            remove_after,
            since: BTreeMap::new(),
            set: there.iter().map(|condition| (*condition, None)).collect(),
        }
    }

    /// The conditions whose taint the node should have, and when that changes by itself.
    pub fn update(
        &mut self,
        now: Instant,
        desired: &NodeState,
    ) -> (BTreeSet<NodeCondition>, Option<Instant>) {
        let mut next: Option<Instant> = None;
        let mut due = |at: Instant| next = Some(next.map_or(at, |first| first.min(at)));
        self.since
            .retain(|condition, _| desired.conditions.contains(condition));
        for condition in &desired.conditions {
            let ripe = *self.since.entry(*condition).or_insert(now) + self.set_after;
            if let Some(end) = self.set.get_mut(condition) {
                *end = None;
            } else if desired.under_pressure.contains(condition) {
                if now >= ripe {
                    self.set.insert(*condition, None);
                } else {
                    due(ripe);
                }
            }
        }
        self.set.retain(|condition, end| {
            if desired.conditions.contains(condition) {
                return true;
            }
            let end = *end.get_or_insert(now + self.remove_after);
            if now < end {
                due(end);
            }
            now < end
        });
        (self.set.keys().copied().collect(), next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: NodeCondition = NodeCondition::MemoryPressure;
    const S: Duration = Duration::from_secs(1);

    fn wanted(holds: bool, under_pressure: bool) -> NodeState {
        let set = |is_in: bool| is_in.then_some(MEMORY).into_iter().collect();
        NodeState {
            conditions: set(holds),
            under_pressure: set(under_pressure),
            message: String::new(),
        }
    }

    #[test]
    fn a_short_pressure_sets_none_and_one_that_lasts_or_comes_back_does() {
        let start = Instant::now();
        let mut taints = Taints::new(10 * S, 30 * S, &BTreeSet::new());
        let mut at = |seconds: u32, holds, under_pressure| {
            let (set, next) = taints.update(start + seconds * S, &wanted(holds, under_pressure));
            let next = next.map(|next| (next - start).as_secs());
            (!set.is_empty(), next)
        };
        assert_eq!(at(0, true, true), (false, Some(10)));
        assert_eq!(at(1, true, false), (false, None), "its condition holds on");
        assert_eq!(at(60, true, false), (false, None));
        assert_eq!(at(61, true, true), (true, None), "it is back");
        assert_eq!(
            at(62, true, false),
            (true, None),
            "as long as the condition"
        );
        assert_eq!(at(100, false, false), (true, Some(130)));
        assert_eq!(at(110, true, true), (true, None), "again before its time");
        assert_eq!(at(120, false, false), (true, Some(150)));
        assert_eq!(at(150, false, false), (false, None));
        assert_eq!(at(200, true, true), (false, Some(210)), "a new condition");
        assert_eq!(at(210, true, true), (true, None), "it has lasted");
    }

    #[test]
    fn what_is_there_stays_with_its_condition() {
        let start = Instant::now();
        let mut taints = Taints::new(10 * S, Duration::ZERO, &BTreeSet::from([MEMORY]));
        assert_eq!(taints.update(start, &wanted(true, false)).0.len(), 1);
        assert_eq!(taints.update(start + S, &wanted(false, false)).0.len(), 0);
    }
}
