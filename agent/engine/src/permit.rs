//! What the fast path reads: numbers that the policy side has left in a pod's entry. No lock, no allocation, no clock
//! of its own.

use std::{
    ops::Range,
    sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering},
};

use crate::units::SECOND;

/// Quotas that one pod may have: the node's, its owner's, and those of its rules' limits.
pub const MAX_QUOTAS_PER_POD: usize = 8;
/// Evictions that one limit may allow at once: as many as are remembered without allocating.
pub const MAX_EVICTIONS_PER_QUOTA: u64 = 16;
/// Never counts as past.
const UNBOUNDED: u64 = u64::MAX;
/// Nanoseconds after which a kill by the manager counts as done even if the fast path has not heard of it.
const KILL_NS: u64 = SECOND;

/// Whether and in what order one pod may be evicted. It changes in place, and its readers never wait.
#[derive(Debug)]
pub struct EvictionPermit {
    /// Time until which the pod may go, in nanoseconds of CLOCK_MONOTONIC.
    until: AtomicU64,
    never: AtomicBool,
    order: AtomicI32,
    /// Indexes of the pod's quotas in the [`crate::limiter::EvictionLimiter`], 8 bits each; zero is none. One word, so
    /// that a reader never misses a quota while they change.
    quotas: AtomicU64,
    /// Time at which a limit was charged for the pod, in nanoseconds of CLOCK_MONOTONIC; zero as long as none was.
    evicted_at: AtomicU64,
    /// Whether the pod was asked to go, and its limits are charged for that.
    asked: AtomicBool,
    /// The pressure for which shadow mode has chosen it last, as the limiter numbers them; zero as long as it has not.
    in_shadow: AtomicU64,
    /// Whether the pod was killed (by an earlier agent, or it is stuck) and has processes or memory left: it is not
    /// evicted again.
    ending: AtomicBool,
    /// Time since which the manager kills the pod, in nanoseconds of CLOCK_MONOTONIC; zero if it does not.
    killing: AtomicU64,
}

impl Default for EvictionPermit {
    /// No rule is about it.
    fn default() -> Self {
        Self {
            until: AtomicU64::new(UNBOUNDED),
            never: AtomicBool::new(false),
            order: AtomicI32::new(0),
            quotas: AtomicU64::new(0),
            evicted_at: AtomicU64::new(0),
            asked: AtomicBool::new(false),
            in_shadow: AtomicU64::new(0),
            ending: AtomicBool::new(false),
            killing: AtomicU64::new(0),
        }
    }
}

/// Permission of a pod to go, and how long it lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// Permission without end: nothing about it can change but the policies.
    Always,
    /// Permission until this moment (nanoseconds of CLOCK_MONOTONIC), unless it is renewed before.
    Until(u64),
    /// No permission at this moment.
    NotNow,
    /// No permission for pressure, at any time.
    Never,
}

/// Pods that the last resort may take when the policies deny all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum LastResort {
    /// None: the kubelet evicts at its own thresholds, and then the OOM killer kills.
    #[default]
    None = 0,
    /// Pods that a condition, a gate or a limit spares.
    Conditional = 1,
    /// Pods of `evict: Never` too.
    Any = 2,
}

impl LastResort {
    /// The next step, for when the pods of this one are not enough.
    pub fn next(self) -> Self {
        match self {
            Self::None => Self::Conditional,
            Self::Conditional | Self::Any => Self::Any,
        }
    }

    /// The words of the configuration.
    pub const CHOICES: [(&'static str, Self); 3] = [
        ("Nobody", Self::None),
        ("Conditional", Self::Conditional),
        ("Anybody", Self::Any),
    ];
}

impl EvictionPermit {
    /// Sets what the policies say, with at most [`MAX_QUOTAS_PER_POD`] quotas; the order first, so that no pod goes under
    /// an old one.
    pub fn set(&self, permission: Permission, order: i16, quotas: &[u8]) {
        self.order.store(order.into(), Ordering::Relaxed);
        let packed = quotas.iter().take(MAX_QUOTAS_PER_POD).rev();
        let packed = packed.fold(0, |packed, quota| packed << 8 | u64::from(*quota));
        self.quotas.store(packed, Ordering::Relaxed);
        self.never
            .store(permission == Permission::Never, Ordering::Relaxed);
        let until = match permission {
            Permission::Always => UNBOUNDED,
            Permission::Until(until) => until.min(UNBOUNDED - 1),
            Permission::NotNow | Permission::Never => 0,
        };
        self.until.store(until, Ordering::Release);
    }

    /// Takes over that a limit was charged for the same pod before its entry was made anew.
    pub fn inherit(&self, before: &Self) {
        self.evicted_at
            .store(before.evicted_at.load(Ordering::Relaxed), Ordering::Relaxed);
        self.set_asked(before.is_asked());
        self.set_ending(before.is_ending());
        self.mark_in_shadow(before.shadow_mark());
    }

    /// The pod's order number: the lower one goes first where the strategy allows.
    pub fn order(&self) -> i16 {
        // Only ever set from one.
        self.order.load(Ordering::Relaxed) as i16
    }

    /// Whether it was evicted under a limit. What counts as available asks the limiter, which knows of shadow mode too.
    pub fn is_evicted(&self) -> bool {
        self.evicted_at.load(Ordering::Relaxed) != 0
    }

    /// Time at which the pod was evicted last, in nanoseconds of CLOCK_MONOTONIC; zero if it was not.
    pub fn evicted_at(&self) -> u64 {
        self.evicted_at.load(Ordering::Relaxed)
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

    /// Whether it was killed and something is left of it, as an earlier agent or the fast path has said: it is not evicted
    /// a second time.
    pub fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }

    /// Sets whether a pod that was killed has processes or memory left.
    pub fn set_ending(&self, ending: bool) {
        self.ending.store(ending, Ordering::Relaxed);
    }

    /// Whether it was asked to go and was not killed since: its limits are charged for it already.
    pub fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// Sets whether the limits are charged for a pod that was asked to go.
    pub fn set_asked(&self, asked: bool) {
        self.asked.store(asked, Ordering::Relaxed);
    }

    /// Takes note that shadow mode has chosen it for this pressure.
    pub(crate) fn mark_in_shadow(&self, pressure: u64) {
        self.in_shadow.store(pressure, Ordering::Relaxed);
    }

    /// The pressure for which shadow mode has chosen it last.
    pub(crate) fn shadow_mark(&self) -> u64 {
        self.in_shadow.load(Ordering::Relaxed)
    }

    /// Takes note that it is being killed, or that a limit is charged for it.
    pub fn mark_evicted(&self, now: u64) {
        self.evicted_at.store(now.max(1), Ordering::Relaxed);
    }

    /// Takes an eviction back because the pod was not killed after all; `before` is what [`EvictionPermit::evicted_at`]
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
            self.set_asked(false);
            self.set_ending(false);
        }
    }

    /// Returns the permission that was set last, as it is at `now`.
    pub fn permission(&self, now: u64) -> Permission {
        match self.until.load(Ordering::Acquire) {
            UNBOUNDED => Permission::Always,
            until if now < until => Permission::Until(until),
            _ if self.never.load(Ordering::Relaxed) => Permission::Never,
            _ => Permission::NotNow,
        }
    }

    /// The indexes of its quotas in these places.
    pub fn quotas(&self, places: Range<usize>) -> impl Iterator<Item = usize> {
        let quotas = self.quotas.load(Ordering::Relaxed).to_le_bytes();
        let quotas = quotas.into_iter().enumerate();
        let quotas = quotas.filter(move |(place, quota)| places.contains(place) && *quota != 0);
        quotas.map(|(_, quota)| usize::from(quota))
    }
}
