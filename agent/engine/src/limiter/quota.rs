//! A quota and its charges.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};

use super::NEVER;
use crate::{permit::MAX_EVICTIONS_PER_QUOTA, units::signed};

/// Evictions that a quota remembers.
const SLOTS: usize = MAX_EVICTIONS_PER_QUOTA as usize;
/// Count that no number of evictions reaches.
const UNLIMITED: u32 = u32::MAX;

/// A limit on evictions: so many in a period, and so many pods that must stay.
#[derive(Debug)]
pub(super) struct Quota {
    /// Zero is no limit.
    most: AtomicU32,
    period: AtomicU64,
    /// Evictions ever, and how many there may ever be, by the last count of the pods that must stay.
    pub total: AtomicU32,
    ceiling: AtomicU32,
    pub charged: Charges,
    /// Charges of shadow mode, kept apart so that live mode can forget them.
    in_shadow: Charges,
    /// Whether `in_shadow` has charges; saves reading it in live mode.
    has_shadow: AtomicBool,
}

/// When the last evictions were charged, in nanoseconds of CLOCK_MONOTONIC; below zero those before this boot.
#[derive(Debug)]
pub(super) struct Charges([AtomicI64; SLOTS]);

impl Default for Charges {
    fn default() -> Self {
        Self([const { AtomicI64::new(NEVER) }; SLOTS])
    }
}

impl Charges {
    /// Counts the charges that are less than `period` old at `now`, both in nanoseconds.
    fn counted(&self, now: i64, period: u64) -> u32 {
        // One that is later than now was charged just now.
        let age = |at: i64| u64::try_from(now.saturating_sub(at)).unwrap_or(0);
        let counts = |at: i64| at != NEVER && age(at) < period;
        let charged = self.0.iter().map(|c| c.load(Ordering::Relaxed));
        charged.filter(|at| counts(*at)).count() as u32
    }

    /// Takes the place of the oldest one.
    fn add(&self, at: i64) {
        let at = at.max(NEVER + 1);
        let oldest = || {
            let charges = self.0.iter().map(|c| (c.load(Ordering::Relaxed), c));
            charges.min_by_key(|(at, _)| *at)
        };
        let is_kept = |(before, slot): (i64, &AtomicI64)| {
            slot.compare_exchange(before, at, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        };
        // Fails only where the other thread has charged meanwhile.
        while oldest().is_some_and(|oldest| !is_kept(oldest)) {}
    }

    pub fn clear(&self) {
        self.0
            .iter()
            .for_each(|c| c.store(NEVER, Ordering::Relaxed));
    }
}

impl Default for Quota {
    fn default() -> Self {
        Self {
            most: AtomicU32::new(0),
            period: AtomicU64::new(0),
            total: AtomicU32::new(0),
            ceiling: AtomicU32::new(UNLIMITED),
            charged: Charges::default(),
            in_shadow: Charges::default(),
            has_shadow: AtomicBool::new(false),
        }
    }
}

impl Quota {
    pub fn set(&self, most: Option<u32>, period: u64, ceiling: Option<u32>) {
        self.period.store(period, Ordering::Relaxed);
        self.most
            .store(most.unwrap_or(0).min(SLOTS as u32), Ordering::Relaxed);
        self.ceiling
            .store(ceiling.unwrap_or(UNLIMITED), Ordering::Relaxed);
    }

    /// Evictions that still count.
    pub fn counted(&self, now: u64) -> u32 {
        let period = self.period.load(Ordering::Relaxed);
        let now = signed(now);
        let in_shadow = match self.has_shadow.load(Ordering::Relaxed) {
            true => self.in_shadow.counted(now, period),
            false => 0,
        };
        self.charged.counted(now, period) + in_shadow
    }

    /// Evictions that the rate allows at this moment, [`usize::MAX`] without one.
    pub fn left_of_rate(&self, now: u64) -> usize {
        let (most, period) = (&self.most, &self.period);
        match (most.load(Ordering::Relaxed), period.load(Ordering::Relaxed)) {
            (0, _) | (_, 0) => usize::MAX,
            (most, _) => most.saturating_sub(self.counted(now)) as usize,
        }
    }

    pub fn has_capacity(&self, now: u64) -> bool {
        self.left_of_rate(now) > 0
            && self.total.load(Ordering::Relaxed) < self.ceiling.load(Ordering::Relaxed)
    }

    pub fn charge(&self, at: i64) {
        self.charged.add(at);
        self.count();
    }

    pub fn charge_in_shadow(&self, at: i64) {
        self.has_shadow.store(true, Ordering::Relaxed);
        self.in_shadow.add(at);
        self.count();
    }

    fn count(&self) {
        // After the charge: the policy side reads this number before it counts the pods that are left, and so errs
        // towards denying.
        self.total.fetch_add(1, Ordering::Release);
    }

    /// The total stays: less of it than the policy side has read would be room that was never counted.
    pub fn forget_shadow(&self) {
        if self.has_shadow.swap(false, Ordering::Relaxed) {
            self.in_shadow.clear();
        }
    }
}
