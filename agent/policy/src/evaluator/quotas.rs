//! Assigns the limiter's quotas to limits and rates.

use std::collections::BTreeMap;

use evictd_engine::limiter::EvictionLimiter;

/// Key of a quota: the group whose evictions it counts.
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
        /// The limit's position in the rule.
        limit: usize,
        /// The namespace.
        namespace: String,
        /// The label's value.
        value: String,
    },
}

/// The quotas in use.
#[derive(Debug, Default)]
pub struct Quotas {
    used: BTreeMap<QuotaKey, Assigned>,
    /// Counts the evaluations.
    evaluation: u64,
}

#[derive(Clone, Copy, Debug)]
struct Assigned {
    /// The quota's index in the limiter.
    index: u8,
    /// The last evaluation that needed the quota.
    needed: u64,
}

impl Quotas {
    /// The index of a quota; `None` when all are in use. A new quota is charged with `restored`: the evictions
    /// before that count for it, the oldest first.
    pub fn index(
        &mut self,
        limiter: &EvictionLimiter,
        key: QuotaKey,
        restored: impl FnOnce(&QuotaKey) -> Vec<i64>,
    ) -> Option<u8> {
        let needed = self.evaluation;
        if let Some(assigned) = self.used.get_mut(&key) {
            assigned.needed = needed;
            return Some(assigned.index);
        }
        let is_free = |index: &u8| !self.used.values().any(|used| used.index == *index);
        let index = (1..=u8::MAX).find(is_free)?;
        limiter.clear_quota(index);
        restored(&key)
            .into_iter()
            .for_each(|at| limiter.charge_restored(index, at));
        self.used.insert(key, Assigned { index, needed });
        Some(index)
    }

    /// Begins an evaluation: frees the quotas that the last one did not need. A quota with an eviction that still
    /// counts stays, also when its last pod is gone.
    pub fn begin(&mut self, limiter: &EvictionLimiter, now: u64) {
        let last = self.evaluation;
        self.used
            .retain(|_, used| used.needed == last || limiter.is_charged(used.index, now));
        self.evaluation += 1;
    }
}
