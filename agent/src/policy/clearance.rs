//! What the fast path reads: numbers that the policy side has left in a pod's entry. No lock, no allocation, no clock
//! of its own.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, AtomicU64, Ordering};

use super::model::MOST_AT_ONCE;

/// Limits that one pod may be under: the node's, its owner's, and two of its rule.
const QUOTAS_OF_A_POD: usize = 4;
/// Limits that one node can have at a time.
pub const QUOTAS: usize = 256;
/// Never counts as past.
const UNBOUNDED: u64 = u64::MAX;
/// Evictions that a quota remembers.
const SLOTS: usize = MOST_AT_ONCE as usize;
/// So many evictions nobody sees.
const NO_CEILING: u32 = u32::MAX;
/// The limits of a pod that are rates, the node's and its owner's, come first; they hold for the last resort too.
const RATES: usize = 2;

/// Whether and in what order one pod may go. It changes in place; who reads it never waits.
#[derive(Debug)]
pub struct Clearance {
    /// It may go until then, in nanoseconds of CLOCK_MONOTONIC.
    until: AtomicU64,
    never: AtomicBool,
    order: AtomicI32,
    /// Positions in [`Restraint::quotas`], 16 bits each; zero is none.
    quotas: AtomicU64,
    /// When a limit was charged for it; zero as long as none was.
    taken: AtomicU64,
}

impl Default for Clearance {
    /// Nobody has a rule for it.
    fn default() -> Self {
        Self {
            until: AtomicU64::new(UNBOUNDED),
            never: AtomicBool::new(false),
            order: AtomicI32::new(0),
            quotas: AtomicU64::new(0),
            taken: AtomicU64::new(0),
        }
    }
}

/// For how long a pod may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// For good: nothing about it can change but the policies.
    Always,
    /// Until this moment (nanoseconds of CLOCK_MONOTONIC), unless it is renewed before.
    Until(u64),
    /// Not now.
    NotNow,
    /// Not for pressure.
    Never,
}

/// Whom the last resort may take when the policies spare everybody.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum LastResort {
    /// Nobody: the kernel's OOM killer decides.
    #[default]
    Nobody = 0,
    /// Pods that a condition, a gate or a limit spares.
    Conditional = 1,
    /// Those of `evict: Never` too.
    Anybody = 2,
}

impl LastResort {
    /// Whom it takes when those of this step are not enough.
    pub fn next(self) -> Self {
        match self {
            Self::Nobody => Self::Conditional,
            Self::Conditional | Self::Anybody => Self::Anybody,
        }
    }

    /// The words of the configuration.
    pub const CHOICES: [(&'static str, Self); 3] = [
        ("Nobody", Self::Nobody),
        ("Conditional", Self::Conditional),
        ("Anybody", Self::Anybody),
    ];
}

impl Clearance {
    /// Sets what the policies say; the order first, so that nobody goes under an old one.
    pub fn set(&self, permission: Permission, order: i16, quotas: &[u16]) {
        self.order.store(order.into(), Ordering::Relaxed);
        let mut packed = 0;
        for (at, quota) in quotas.iter().take(QUOTAS_OF_A_POD).enumerate() {
            packed |= u64::from(*quota) << (16 * at);
        }
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
        self.taken
            .store(before.taken.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// The pod's order number: the lower one goes first where the strategy allows.
    pub fn order(&self) -> i16 {
        // Only ever set from one.
        self.order.load(Ordering::Relaxed) as i16
    }

    /// Whether it was evicted under a limit: it no longer counts as available.
    pub fn is_taken(&self) -> bool {
        self.taken.load(Ordering::Relaxed) != 0
    }

    /// What was set last, as it is at this moment.
    pub fn permission(&self, now: u64) -> Permission {
        match self.until.load(Ordering::Acquire) {
            UNBOUNDED => Permission::Always,
            until if now < until => Permission::Until(until),
            _ if self.never.load(Ordering::Relaxed) => Permission::Never,
            _ => Permission::NotNow,
        }
    }

    fn quotas(&self, count: usize) -> impl Iterator<Item = usize> {
        let packed = self.quotas.load(Ordering::Relaxed);
        (0..count)
            .map(move |at| (packed >> (16 * at)) as usize & 0xffff)
            .filter(|quota| *quota != 0)
    }
}

/// A limit on evictions: so many in a period, and so many pods that must stay.
#[derive(Debug)]
struct Quota {
    /// Zero is no limit.
    most: AtomicU32,
    period: AtomicU64,
    /// Evictions ever, and how many there may ever be, by the last count of who must stay.
    total: AtomicU32,
    ceiling: AtomicU32,
    /// When evictions were charged, in nanoseconds of CLOCK_MONOTONIC.
    charged: [AtomicU64; SLOTS],
}

impl Default for Quota {
    fn default() -> Self {
        Self {
            most: AtomicU32::new(0),
            period: AtomicU64::new(0),
            total: AtomicU32::new(0),
            ceiling: AtomicU32::new(NO_CEILING),
            charged: [const { AtomicU64::new(0) }; SLOTS],
        }
    }
}

impl Quota {
    fn set(&self, most: Option<u32>, period: u64, ceiling: Option<u32>) {
        self.period.store(period, Ordering::Relaxed);
        self.most
            .store(most.unwrap_or(0).min(SLOTS as u32), Ordering::Relaxed);
        self.ceiling
            .store(ceiling.unwrap_or(NO_CEILING), Ordering::Relaxed);
    }

    /// Evictions that still count.
    fn counted(&self, now: u64) -> u32 {
        let period = self.period.load(Ordering::Relaxed);
        let counts = |at: u64| at != 0 && now.saturating_sub(at) < period;
        let charged = self.charged.iter().map(|c| c.load(Ordering::Relaxed));
        charged.filter(|at| counts(*at)).count() as u32
    }

    fn has_room(&self, now: u64) -> bool {
        let most = self.most.load(Ordering::Relaxed);
        (most == 0 || self.counted(now) < most)
            && self.total.load(Ordering::Relaxed) < self.ceiling.load(Ordering::Relaxed)
    }

    fn charge(&self, now: u64) {
        let oldest = self
            .charged
            .iter()
            .min_by_key(|c| c.load(Ordering::Relaxed));
        if let Some(slot) = oldest {
            slot.store(now.max(1), Ordering::Relaxed);
        }
        // After `taken`: whoever counts who is left reads this number first, and then errs towards sparing.
        self.total.fetch_add(1, Ordering::Release);
    }
}

/// What holds for all pods of the node. One thread charges; the policy side sets.
#[derive(Debug)]
pub struct Restraint {
    paused: AtomicBool,
    last_resort: AtomicU8,
    /// The first one is nobody's; positions are given out by the policy side.
    quotas: Box<[Quota]>,
}

impl Default for Restraint {
    /// No limits, no pause.
    fn default() -> Self {
        Self {
            paused: AtomicBool::new(false),
            last_resort: AtomicU8::new(LastResort::Nobody as u8),
            quotas: (0..QUOTAS).map(|_| Quota::default()).collect(),
        }
    }
}

impl Restraint {
    /// Stops all evictions, or lets them go on.
    pub fn pause(&self, paused: bool) {
        self.paused.store(paused, Ordering::Relaxed);
    }

    /// Whether all evictions are stopped.
    pub fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Relaxed)
    }

    /// Says whom the last resort may take.
    pub fn set_last_resort(&self, resort: LastResort) {
        self.last_resort.store(resort as u8, Ordering::Relaxed);
    }

    /// Whom the last resort may take.
    pub fn last_resort(&self) -> LastResort {
        match self.last_resort.load(Ordering::Relaxed) {
            0 => LastResort::Nobody,
            1 => LastResort::Conditional,
            _ => LastResort::Anybody,
        }
    }

    /// Sets a limit: at most so many evictions in a period of nanoseconds, and never more than `ceiling` in total. What
    /// was charged stays charged.
    pub fn set_quota(&self, at: u16, most: Option<u32>, period: u64, ceiling: Option<u32>) {
        if let Some(quota) = self.quotas.get(usize::from(at)) {
            quota.set(most, period, ceiling);
        }
    }

    /// Evictions that a limit was ever charged with: read before counting who is left.
    pub fn charged_in_total(&self, at: u16) -> u32 {
        let quota = self.quotas.get(usize::from(at));
        quota.map_or(0, |q| q.total.load(Ordering::Acquire))
    }

    /// Forgets a limit, so that its place can be another one's.
    pub fn clear_quota(&self, at: u16) {
        if let Some(quota) = self.quotas.get(usize::from(at)) {
            quota.set(None, 0, None);
            quota.total.store(0, Ordering::Relaxed);
            quota
                .charged
                .iter()
                .for_each(|c| c.store(0, Ordering::Relaxed));
        }
    }

    /// Whether a pod may go now, and every limit that it is under has room. `resort` is whom the last resort takes:
    /// [`LastResort::Nobody`] for an ordinary look. Allocates nothing, takes no lock.
    pub fn lets_go(&self, clearance: &Clearance, now: u64, resort: LastResort) -> bool {
        if self.is_paused() {
            return false;
        }
        match clearance.permission(now) {
            Permission::Always | Permission::Until(_) => {}
            Permission::NotNow if resort >= LastResort::Conditional => {}
            Permission::Never if resort >= LastResort::Anybody => {}
            Permission::NotNow | Permission::Never => return false,
        }
        let limits = if resort >= LastResort::Conditional {
            RATES
        } else {
            QUOTAS_OF_A_POD
        };
        self.has_room_in(clearance, now, limits)
    }

    /// Whether the kernel may kill a pod by itself at the floor, where nobody can look whether a permission still
    /// counts: only one that may go for good.
    pub fn lets_the_kernel(&self, clearance: &Clearance, now: u64) -> bool {
        clearance.permission(now) == Permission::Always
            && self.lets_go(clearance, now, LastResort::Nobody)
    }

    /// Whether all limits of a pod have room.
    pub fn has_room(&self, clearance: &Clearance, now: u64) -> bool {
        self.has_room_in(clearance, now, QUOTAS_OF_A_POD)
    }

    fn has_room_in(&self, clearance: &Clearance, now: u64, limits: usize) -> bool {
        let mut quotas = clearance.quotas(limits).filter_map(|q| self.quotas.get(q));
        quotas.all(|q| q.has_room(now))
    }

    /// Charges all limits of a pod that is about to be evicted.
    pub fn charge(&self, clearance: &Clearance, now: u64) {
        clearance.taken.store(now.max(1), Ordering::Relaxed);
        let quotas = clearance.quotas(QUOTAS_OF_A_POD);
        quotas
            .filter_map(|q| self.quotas.get(q))
            .for_each(|q| q.charge(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permission_ends_by_itself() {
        let (restraint, pod) = (Restraint::default(), Clearance::default());
        let lets_go = |now| restraint.lets_go(&pod, now, LastResort::Nobody);
        assert!(lets_go(u64::MAX - 1) && restraint.lets_the_kernel(&pod, 5));
        pod.set(Permission::Until(100), -7, &[]);
        assert!(lets_go(99) && !lets_go(100));
        assert!(
            !restraint.lets_the_kernel(&pod, 99),
            "R41: the kernel reads no clock"
        );
        assert_eq!(pod.order(), -7);
        pod.set(Permission::NotNow, 0, &[]);
        assert!(!lets_go(0));
        assert!(restraint.lets_go(&pod, 0, LastResort::Conditional));
        pod.set(Permission::Never, 0, &[]);
        assert!(!restraint.lets_go(&pod, 0, LastResort::Conditional));
        assert!(restraint.lets_go(&pod, 0, LastResort::Anybody));
        restraint.pause(true);
        assert!(
            !restraint.lets_go(&pod, 0, LastResort::Anybody),
            "a pause is a pause"
        );
    }

    #[test]
    fn limits_count_within_their_period() {
        let restraint = Restraint::default();
        let pods: Vec<Clearance> = (0..4).map(|_| Clearance::default()).collect();
        pods.iter()
            .for_each(|p| p.set(Permission::Always, 0, &[3, 9]));
        restraint.set_quota(3, Some(2), 100, None);
        restraint.set_quota(9, None, 0, Some(3));
        for now in [10, 20] {
            assert!(restraint.lets_go(&pods[0], now, LastResort::Nobody));
            restraint.charge(&pods[0], now);
        }
        assert!(
            !restraint.lets_go(&pods[1], 30, LastResort::Nobody),
            "two are gone"
        );
        assert!(
            restraint.lets_go(&pods[1], 110, LastResort::Nobody),
            "one of them no longer counts"
        );
        restraint.charge(&pods[1], 110);
        assert!(
            !restraint.lets_go(&pods[2], 1000, LastResort::Nobody),
            "three have left, and none is to spare"
        );
        assert_eq!(restraint.charged_in_total(9), 3);
        restraint.set_quota(9, None, 0, Some(4));
        assert!(restraint.lets_go(&pods[2], 1000, LastResort::Nobody));
        assert!(pods[0].is_taken() && !pods[3].is_taken());
        restraint.clear_quota(3);
        restraint.clear_quota(9);
        assert!(restraint.lets_go(&pods[3], 0, LastResort::Nobody));
    }
}
