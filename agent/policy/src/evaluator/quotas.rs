//! Gives out the places of limits.

use std::collections::BTreeMap;

use evictd_engine::limiter::{EvictionLimiter, QUOTAS};

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
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    at: u16,
    /// It is kept until then, used or not: what was charged must not be forgotten with the last pod.
    until: u64,
}

impl Quotas {
    /// The place of a limit whose evictions count for `period` nanoseconds; `None` when all are taken. `past` are
    /// evictions of earlier agents that count for it, the oldest first; a new place is charged with them.
    pub fn place(
        &mut self,
        limiter: &EvictionLimiter,
        key: QuotaKey,
        now: u64,
        period: u64,
        past: impl FnOnce(&QuotaKey) -> Vec<i64>,
    ) -> Option<u16> {
        let until = now.saturating_add(period);
        if let Some(place) = self.places.get_mut(&key) {
            place.until = place.until.max(until);
            return Some(place.at);
        }
        let is_free = |at: &u16| !self.places.values().any(|p| p.at == *at);
        let at = (1..QUOTAS as u16).find(is_free)?;
        limiter.clear_quota(at);
        past(&key)
            .into_iter()
            .for_each(|then| limiter.charge_past(at, then));
        self.places.insert(key, Slot { at, until });
        Some(at)
    }

    /// Gives up the slots that were not asked for since their evictions stopped counting.
    pub fn expire(&mut self, now: u64) {
        self.places.retain(|_, place| now <= place.until);
    }
}
