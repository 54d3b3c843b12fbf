//! What the rest of the agent sees of the loop.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use evictd_engine::{NodeCondition, Observations, Signal, SignalForecast, Threshold};
use evictd_node::trigger::counter::Drift;
use evictd_sys::pi_mutex::PiMutex;

/// The last [`Status`] and the heartbeat of the loop. The mutex is held for the exchange of a pointer.
#[derive(Debug, Default)]
pub struct SharedStatus {
    last: PiMutex<Arc<Status>>,
    last_cycle_ns: AtomicU64,
}

impl SharedStatus {
    /// The last status.
    pub fn get(&self) -> Arc<Status> {
        Arc::clone(&self.last.lock())
    }

    pub(crate) fn set(&self, status: Status) {
        let new = Arc::new(status);
        // Freed when the mutex is free again.
        let old = std::mem::replace(&mut *self.last.lock(), new);
        drop(old);
    }

    pub(crate) fn heartbeat(&self, now: u64) {
        self.last_cycle_ns.store(now, Ordering::Relaxed);
    }

    /// Time of the last cycle, in nanoseconds of CLOCK_MONOTONIC; 0: never.
    pub fn last_beat(&self) -> u64 {
        self.last_cycle_ns.load(Ordering::Relaxed)
    }
}

/// State that the last cycle saw, for metrics.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// Observations of the signals.
    pub observations: Observations,
    /// The thresholds in force.
    pub thresholds: Vec<Threshold>,
    /// Forecasts of the signals.
    pub forecasts: Vec<SignalForecast>,
    /// The conditions that hold.
    pub conditions: BTreeSet<NodeCondition>,
    /// Drift of the hooks' counts, by signal.
    pub drift: Vec<(Signal, Drift)>,
    /// Whether nodefs, imagefs and containerfs, in this order, do not answer.
    pub hung: [bool; 3],
    /// Cycles since the start.
    pub cycles: u64,
    /// Pods that came back after an eviction.
    pub recreations: u64,
}
