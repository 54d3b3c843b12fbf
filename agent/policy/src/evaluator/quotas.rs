//! Gives out the places of limits.

use std::collections::BTreeMap;

use evictd_engine::limiter::EvictionLimiter;

/// What a limit is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum QuotaKey {
    /// All pods of the node.
    Node,
    /// All pods of an owner, by its UID.
    Owner(String),
    /// The pods of a rule that have the same value of a label, in one namespace.
    Group {
        /// `policy/rule`.
        rule: String,
        /// Which of its limits.
        limit: usize,
        /// The namespace.
        namespace: String,
        /// The label's value.
        value: String,
    },
}

/// The places that are taken.
#[derive(Debug, Default)]
pub struct Quotas {
    places: BTreeMap<QuotaKey, Slot>,
    /// Counts the evaluations.
    round: u64,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    at: u8,
    /// The evaluation that has asked for it last.
    asked: u64,
}

impl Quotas {
    /// The place of a limit; `None` when all are taken. `past` are evictions of earlier agents that count for it, the oldest
    /// first; a new place is charged with them.
    pub fn place(
        &mut self,
        limiter: &EvictionLimiter,
        key: QuotaKey,
        past: impl FnOnce(&QuotaKey) -> Vec<i64>,
    ) -> Option<u8> {
        let asked = self.round;
        if let Some(place) = self.places.get_mut(&key) {
            place.asked = asked;
            return Some(place.at);
        }
        let is_free = |at: &u8| !self.places.values().any(|p| p.at == *at);
        let at = (1..=u8::MAX).find(is_free)?;
        limiter.clear_quota(at);
        past(&key)
            .into_iter()
            .for_each(|then| limiter.charge_past(at, then));
        self.places.insert(key, Slot { at, asked });
        Some(at)
    }

    /// Begins an evaluation: gives up the slots that the last one did not ask for, unless an eviction still counts. What was
    /// charged must not be forgotten with the last pod.
    pub fn begin(&mut self, limiter: &EvictionLimiter, now: u64) {
        let last = self.round;
        self.places
            .retain(|_, place| place.asked == last || limiter.is_charged(place.at, now));
        self.round += 1;
    }
}
