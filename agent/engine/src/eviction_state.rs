//! What has happened to one pod. Both loops, the limiter and the restore write; no reader waits.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::units::SECOND;

/// Nanoseconds after which a kill by the manager counts as done even if the fast path has not heard of it.
const KILL_NS: u64 = SECOND;
/// Nanoseconds for which a pod is not chosen again after the kernel has refused SIGKILL for it.
pub(crate) const REFUSED_NS: u64 = 60 * SECOND;

/// What has happened to one pod since it runs. All entries of a pod share one, so that nothing is lost when its entry
/// is made anew.
#[derive(Debug, Default)]
pub struct EvictionState {
    /// Time at which a limit was charged for the pod, in nanoseconds of CLOCK_MONOTONIC; zero as long as none was.
    evicted_at: AtomicU64,
    /// Whether the pod was requested to end, and its limits are charged for that.
    requested: AtomicBool,
    /// The pressure for which shadow mode has chosen it last, as the limiter numbers them; zero as long as it has not.
    in_shadow: AtomicU64,
    /// Whether the pod was killed (by an earlier agent, or it is stuck) and has processes or memory left: it is not
    /// evicted again.
    ending: AtomicBool,
    /// Time since which the manager kills the pod, in nanoseconds of CLOCK_MONOTONIC; zero if it does not.
    killing: AtomicU64,
    /// Time at which the kernel refused SIGKILL for the pod last, in nanoseconds of CLOCK_MONOTONIC; zero if it has not.
    refused_at: AtomicU64,
}

impl EvictionState {
    /// Whether it was evicted under a limit. What counts as available asks the limiter, which knows of shadow mode too.
    pub fn is_evicted(&self) -> bool {
        self.evicted_at() != 0
    }

    /// Time at which the pod was evicted last, in nanoseconds of CLOCK_MONOTONIC; zero if it was not.
    pub fn evicted_at(&self) -> u64 {
        self.evicted_at.load(Ordering::Relaxed)
    }

    /// Takes note that it is being killed, or that a limit is charged for it.
    pub fn mark_evicted(&self, now: u64) {
        self.evicted_at.store(now.max(1), Ordering::Relaxed);
    }

    /// Takes an eviction back because the pod was not killed after all; `before` is what [`EvictionState::evicted_at`]
    /// was.
    pub fn restore_evicted_at(&self, before: u64) {
        self.evicted_at.store(before, Ordering::Relaxed);
    }

    /// Forgets the eviction at `at` of a pod that runs anew.
    pub fn forget_eviction(&self, at: u64) {
        // Where it was evicted again meanwhile, that stays.
        let forgotten =
            self.evicted_at
                .compare_exchange(at, 0, Ordering::Relaxed, Ordering::Relaxed);
        if forgotten.is_ok() {
            self.set_requested(false);
            self.set_ending(false);
        }
    }

    /// Whether it was asked to go and was not killed since: its limits are charged for it already.
    pub fn is_requested(&self) -> bool {
        self.requested.load(Ordering::Relaxed)
    }

    /// Sets whether the limits are charged for a pod that was asked to go.
    pub fn set_requested(&self, requested: bool) {
        self.requested.store(requested, Ordering::Relaxed);
    }

    /// The manager kills it from now on (nanoseconds of CLOCK_MONOTONIC); the fast path has not heard of that yet.
    pub fn begin_kill(&self, now: u64) {
        self.killing.store(now.max(1), Ordering::Relaxed);
    }

    /// The fast path has heard of it, or it was not killed after all.
    pub fn end_kill(&self) {
        self.killing.store(0, Ordering::Relaxed);
    }

    /// Whether the manager kills it at this moment.
    pub fn is_being_killed(&self, now: u64) -> bool {
        let since = self.killing.load(Ordering::Relaxed);
        since > 0 && now.saturating_sub(since) < KILL_NS
    }

    /// Takes note that the kernel has refused SIGKILL for it.
    pub fn mark_refused(&self, now: u64) {
        self.refused_at.store(now.max(1), Ordering::Relaxed);
    }

    /// Whether the kernel has refused SIGKILL for it, in the last minute.
    pub fn is_refused(&self, now: u64) -> bool {
        let at = self.refused_at.load(Ordering::Relaxed);
        at > 0 && now.saturating_sub(at) < REFUSED_NS
    }

    /// Whether it was killed and something is left of it, as an earlier agent or the fast path has said: it is not evicted
    /// a second time.
    pub fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }

    /// Sets whether a pod that was killed has processes or memory left.
    pub fn set_ending(&self, ending: bool) {
        self.ending.store(ending, Ordering::Relaxed);
    }

    /// Takes note that shadow mode has chosen it for this pressure.
    pub(crate) fn mark_in_shadow(&self, pressure: u64) {
        self.in_shadow.store(pressure, Ordering::Relaxed);
    }

    /// The pressure for which shadow mode has chosen it last.
    pub(crate) fn shadow_mark(&self) -> u64 {
        self.in_shadow.load(Ordering::Relaxed)
    }
}
