//! What other threads may read of the fast path at any time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use evictd_engine::recorder::Recorder;

/// The state of the fast path: heartbeat, hook, take-overs and latest samples.
#[derive(Debug, Default)]
pub struct FastPathStatus {
    take_overs: AtomicU64,
    hook_lost: AtomicBool,
    last_cycle_ns: AtomicU64,
    recorder: Recorder,
}

impl FastPathStatus {
    /// The latest samples; the thread that decides writes to it.
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    pub(super) fn note_take_over(&self) {
        self.take_overs.fetch_add(1, Ordering::Relaxed);
    }

    /// Crossings that were decided in place of the fast path since the start.
    pub fn take_overs(&self) -> u64 {
        self.take_overs.load(Ordering::Relaxed)
    }

    pub(super) fn note_hook(&self, is_lost: bool) {
        self.hook_lost.store(is_lost, Ordering::Relaxed);
    }

    /// Whether the hook could not be attached or detached at the last attempt.
    pub fn is_hook_lost(&self) -> bool {
        self.hook_lost.load(Ordering::Relaxed)
    }

    pub(super) fn heartbeat(&self, now: u64) {
        self.last_cycle_ns.store(now, Ordering::Relaxed);
    }

    /// Time of the last cycle, in nanoseconds of CLOCK_MONOTONIC; 0: never.
    pub fn last_beat(&self) -> u64 {
        self.last_cycle_ns.load(Ordering::Relaxed)
    }
}
