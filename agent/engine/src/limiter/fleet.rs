//! The fleet brake as the loops read it: what is not urgent goes more slowly, or waits.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use super::{EvictionLimiter, NEVER};
use crate::{
    fleet::{FleetPace, FleetRules},
    units::{nanos, signed},
};

/// Hold of the fleet brake, which ends by itself, in nanoseconds of CLOCK_MONOTONIC.
#[derive(Debug, Default)]
pub(super) struct FleetHold {
    paused_until: AtomicU64,
    slow_until: AtomicU64,
    interval: AtomicU64,
}

impl EvictionLimiter {
    /// Takes the fleet's pace, which ends after `left`; a pause is followed by a window of slow ones. `now` is
    /// nanoseconds of CLOCK_MONOTONIC.
    pub fn set_fleet(&self, pace: FleetPace, left: Duration, rules: &FleetRules, now: u64) {
        let end = now.saturating_add(nanos(left));
        let (paused, slow) = match pace {
            FleetPace::Normal => (0, 0),
            FleetPace::Slow => (0, end),
            FleetPace::Paused => (end, end.saturating_add(nanos(rules.window))),
        };
        let hold = &self.fleet;
        hold.interval
            .store(nanos(rules.slow_interval), Ordering::Relaxed);
        hold.slow_until.store(slow, Ordering::Relaxed);
        hold.paused_until.store(paused, Ordering::Relaxed);
    }

    /// The fleet's pace at this moment.
    pub fn fleet_pace(&self, now: u64) -> FleetPace {
        if now < self.fleet.paused_until.load(Ordering::Relaxed) {
            FleetPace::Paused
        } else if now < self.fleet.slow_until.load(Ordering::Relaxed) {
            FleetPace::Slow
        } else {
            FleetPace::Normal
        }
    }

    /// Whether a pod may go at the kubelet's pace, by the fleet brake and by policies and thresholds that are awaited. What
    /// is urgent does not ask.
    pub fn allows_paced(&self, now: u64) -> bool {
        !self.awaits_rules(now) && self.fleet_allows_paced(now)
    }

    /// Whether a pod may go at the kubelet's pace, by the fleet brake alone.
    pub fn fleet_allows_paced(&self, now: u64) -> bool {
        match self.fleet_pace(now) {
            FleetPace::Normal => true,
            FleetPace::Paused => false,
            FleetPace::Slow => {
                let interval = self.fleet.interval.load(Ordering::Relaxed);
                let in_shadow = self.last_in_shadow.load(Ordering::Relaxed);
                let last = self.last_eviction().unwrap_or(NEVER).max(in_shadow);
                last == NEVER || signed(now) >= last.saturating_add(signed(interval))
            }
        }
    }
}
