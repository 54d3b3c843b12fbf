//! The fleet brake: when many nodes evict within minutes, all of them slow down, and then pause.
//!
//! A bad threshold, rollout or image makes every node evict at once, and each of them is right by its own measure. So
//! each tells that it has evicted, and counts the others. Evictions at the kubelet's pace then come one at a time with
//! long gaps, or stop; what is urgent is never held back: its alternative is the OOM killer.

use std::time::Duration;

use crate::units::signed;

/// Rules for when the fleet brake is pulled, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FleetRules {
    /// A node that has evicted within so long counts.
    pub window: Duration,
    /// Number of nodes that have evicted within `window` from which on all nodes are slow.
    pub slow_nodes: u32,
    /// Number of nodes that have evicted within `window` from which on all nodes pause.
    pub pause_nodes: u32,
    /// A pause lasts so long; after it nodes are slow for a window.
    pub pause: Duration,
    /// Least time between two evictions of a node at the kubelet's pace while nodes are slow.
    pub slow_interval: Duration,
}

/// Degree to which the fleet brake holds back evictions at the kubelet's pace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum FleetPace {
    /// Evictions at the kubelet's pace, which the brake does not delay.
    #[default]
    Normal,
    /// One at a time, with long gaps.
    Slow,
    /// No evictions at the kubelet's pace.
    Paused,
}

impl FleetPace {
    /// All of them, the mildest first.
    pub const ALL: [Self; 3] = [Self::Normal, Self::Slow, Self::Paused];

    /// Name of the pace in logs, metrics and the cluster.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Slow => "slow",
            Self::Paused => "paused",
        }
    }
}

/// State of the fleet brake that all nodes are told, with times in seconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FleetState {
    /// The pace.
    pub pace: FleetPace,
    /// End of that pace, in seconds since 1970.
    pub until: i64,
}

impl FleetRules {
    /// Whether an eviction at one moment still counts at another. Clocks of nodes differ: one from the near future
    /// counts too.
    pub fn counts(&self, evicted: i64, now: i64) -> bool {
        now.abs_diff(evicted) < self.window.as_secs()
    }

    /// Whether an eviction of that moment lies further ahead than clocks differ.
    pub fn is_ahead(&self, evicted: i64, now: i64) -> bool {
        evicted > now && !self.counts(evicted, now)
    }

    /// What a state of before means now: a pause is followed by a slow window. No state holds for longer than it can
    /// last from now, whatever time it names.
    pub fn in_force(&self, state: FleetState, now: i64) -> FleetState {
        let (window, pause) = (seconds(self.window), seconds(self.pause));
        let longest = |duration: i64| state.until.min(now.saturating_add(duration));
        match state.pace {
            FleetPace::Paused if now < state.until => FleetState {
                until: longest(pause),
                ..state
            },
            FleetPace::Paused if now < state.until.saturating_add(window) => FleetState {
                pace: FleetPace::Slow,
                until: state.until.saturating_add(window),
            },
            FleetPace::Slow if now < state.until => FleetState {
                until: longest(window),
                ..state
            },
            _ => FleetState::default(),
        }
    }

    /// The state to publish when `nodes` nodes have evicted within the window. `None`: the published state is as strict
    /// and still in force. A state ends by itself.
    pub fn next_state(&self, published: FleetState, nodes: u32, now: i64) -> Option<FleetState> {
        let in_force = self.in_force(published, now);
        let (pace, lasts) = if nodes >= self.pause_nodes {
            (FleetPace::Paused, self.pause)
        } else if nodes >= self.slow_nodes {
            (FleetPace::Slow, self.window)
        } else {
            return None;
        };
        let until = now.saturating_add(seconds(lasts));
        let is_stricter = pace > in_force.pace;
        // The same brake is pulled on for as long as the reason lasts, and published no more than twice a window.
        let is_longer = pace == FleetPace::Slow
            && in_force.pace == pace
            && until - in_force.until > seconds(self.window) / 2;
        (is_stricter || is_longer).then_some(FleetState { pace, until })
    }
}

fn seconds(duration: Duration) -> i64 {
    signed(duration.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: FleetRules = FleetRules {
        window: Duration::from_secs(600),
        slow_nodes: 10,
        pause_nodes: 20,
        pause: Duration::from_secs(1800),
        slow_interval: Duration::from_secs(300),
    };

    fn state(pace: FleetPace, until: i64) -> FleetState {
        FleetState { pace, until }
    }

    #[test]
    fn many_nodes_slow_down_and_more_pause() {
        let calm = FleetState::default();
        assert_eq!(RULES.next_state(calm, 9, 1000), None);
        let slow = state(FleetPace::Slow, 1600);
        assert_eq!(RULES.next_state(calm, 10, 1000), Some(slow));
        assert_eq!(RULES.next_state(slow, 19, 1200), None, "published already");
        let again = state(FleetPace::Slow, 1910);
        assert_eq!(RULES.next_state(slow, 11, 1310), Some(again), "it goes on");
        let paused = state(FleetPace::Paused, 3100);
        assert_eq!(RULES.next_state(slow, 20, 1300), Some(paused));
        assert_eq!(
            RULES.next_state(paused, 4000, 1400),
            None,
            "a pause is not drawn out"
        );
        assert_eq!(RULES.next_state(paused, 10, 1400), None, "nor weakened");
    }

    #[test]
    fn a_pause_ends_by_itself_and_slowly() {
        let paused = state(FleetPace::Paused, 3100);
        assert_eq!(RULES.in_force(paused, 3099), paused);
        assert_eq!(RULES.in_force(paused, 3100), state(FleetPace::Slow, 3700));
        assert_eq!(RULES.in_force(paused, 3700), FleetState::default());
        // While they are slow, too many pause again.
        assert_eq!(
            RULES.next_state(paused, 20, 3200),
            Some(state(FleetPace::Paused, 5000))
        );
        let slow = state(FleetPace::Slow, 1600);
        assert_eq!(RULES.in_force(slow, 1600), FleetState::default());
    }

    #[test]
    fn no_state_lasts_longer_than_it_may() {
        let forged = state(FleetPace::Paused, i64::MAX);
        assert_eq!(RULES.in_force(forged, 1000), state(FleetPace::Paused, 2800));
        assert!(RULES.counts(1000, 1599) && !RULES.counts(1000, 1600));
        assert!(RULES.counts(1300, 1000) && !RULES.counts(9000, 1000));
    }
}
