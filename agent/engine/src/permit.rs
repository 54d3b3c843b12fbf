//! What policies decided about one pod. The evaluator writes, both loops read; no reader waits.

use std::{
    ops::Range,
    sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering},
};

/// Quotas that one pod may have: the node's, its owner's, and those of its rules' limits.
pub const MAX_QUOTAS_PER_POD: usize = 8;
/// Evictions that one limit may allow at once: as many as are remembered without allocating.
pub const MAX_EVICTIONS_PER_QUOTA: u64 = 16;
/// Never counts as past.
const UNBOUNDED: u64 = u64::MAX;

/// Whether and in what order one pod may be evicted. It changes in place.
#[derive(Debug)]
pub struct EvictionPermit {
    /// Time until which the pod may go, in nanoseconds of CLOCK_MONOTONIC.
    until: AtomicU64,
    never: AtomicBool,
    order: AtomicI32,
    /// Indexes of the pod's quotas in the [`crate::limiter::EvictionLimiter`], 8 bits each; zero is none. One word, so
    /// that a reader never misses a quota while they change.
    quotas: AtomicU64,
}

impl Default for EvictionPermit {
    /// No rule is about it.
    fn default() -> Self {
        Self {
            until: AtomicU64::new(UNBOUNDED),
            never: AtomicBool::new(false),
            order: AtomicI32::new(0),
            quotas: AtomicU64::new(0),
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
    Denied,
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
            Permission::Denied | Permission::Never => 0,
        };
        self.until.store(until, Ordering::Release);
    }

    /// The pod's order number: the lower one goes first where the strategy allows.
    pub fn order(&self) -> i16 {
        // Only ever set from one.
        self.order.load(Ordering::Relaxed) as i16
    }

    /// Returns the permission that was set last, as it is at `now`.
    pub fn permission(&self, now: u64) -> Permission {
        match self.until.load(Ordering::Acquire) {
            UNBOUNDED => Permission::Always,
            until if now < until => Permission::Until(until),
            _ if self.never.load(Ordering::Relaxed) => Permission::Never,
            _ => Permission::Denied,
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

/// What the node's rate of evictions allows at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeRate {
    /// Number of further evictions; [`usize::MAX`] without a rate.
    pub left: usize,
    /// Where that is none, urgent evictions of the pods that make the growth go on.
    pub exempts_growers: bool,
}

impl NodeRate {
    /// Whether it is used up but for the pods that make an urgent growth.
    pub fn is_for_growers_only(self) -> bool {
        self.left == 0 && self.exempts_growers
    }
}

impl Default for NodeRate {
    /// No rate.
    fn default() -> Self {
        Self {
            left: usize::MAX,
            exempts_growers: false,
        }
    }
}
