//! When the next pod may go: urgency decides the pace.
//!
//! A pod is evicted at machine speed only when nothing slower can save the node: when what the kernel cannot give back by itself
//! will be used up before the kubelet would have looked again. Everything else goes at the kubelet's pace, one pod in ten
//! seconds. The same rule holds for every signal; who goes is the ranking's ([`super::select`]).

use serde::{Deserialize, Serialize};

use super::growth::{Grown, Growth, Room};

const SECOND: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;

/// The kubelet's monitoring interval (`monitoringInterval`): it looks so often, and evicts one pod then.
pub const MONITORING_INTERVAL_NS: u64 = 10 * SECOND;
/// What the end of a process and the return of its memory may take beside that.
const DEATH_NS: u64 = SECOND / 2;
/// A growth that is seen so soon after a SIGKILL may still be the victim's own: its threads end when they leave the kernel.
const SETTLE_NS: u64 = 2 * MS;
/// By so much at most statistics may be off that were added up, in the signal's unit: bytes that each CPU keeps to itself.
const BLUR: u64 = 16 << 20;
/// Expected to be back earlier than the room is used up, by so much.
const MARGIN_NS: u64 = 5 * MS;

/// What is short, as of one look. Amounts are in the signal's unit, times in nanoseconds of one monotonic clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Shortage {
    /// What is available by the kubelet's count.
    pub available: u64,
    /// Less than this is the threshold.
    pub threshold: u64,
    /// Once met, it stays met until this much is available: the minimum reclaim counts.
    pub resolved: u64,
    /// What is in use and cannot be given back without an eviction.
    pub used: u64,
    /// What can still be used before nothing is left.
    pub room: Room,
    /// Less room than this may be urgent although the kubelet finds the threshold not met; 0 where its count alone holds.
    pub guard: u64,
}

/// What victims that are still terminating are expected to give back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pending {
    /// All of it.
    pub amount: u64,
    /// When the first part of it is due.
    pub due: Option<u64>,
}

impl Pending {
    /// Adds what one victim is expected to give.
    pub fn add(&mut self, amount: u64, due: u64) {
        if amount > 0 {
            self.amount = self.amount.saturating_add(amount);
            self.due = Some(self.due.map_or(due, |first| first.min(due)));
        }
    }
}

/// Why a pod may go at this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Urgency {
    /// The room will be used up before the kubelet would have looked again.
    Urgent {
        /// Nanoseconds until then, at the growth that was seen.
        exhausted_in: u64,
        /// That growth, per second.
        growth: u64,
    },
    /// It goes at the kubelet's pace.
    Paced {
        /// The threshold is met by memory that the kernel could give back, and has been for as long as the kubelet needs to
        /// see it.
        only_cache: bool,
    },
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Decision {
    /// No threshold is met.
    Calm,
    /// Nothing before this time (nanoseconds), unless it becomes urgent.
    Wait {
        /// The earliest time of a paced eviction; `u64::MAX` where only urgency can lead to one.
        until: u64,
    },
    /// One pod, or as many as it takes to give back this amount.
    Evict {
        /// Why now.
        urgency: Urgency,
        /// `None`: the first pod that uses anything of what is short.
        amount: Option<u64>,
    },
}

/// What is known of one signal of one scope between two looks. Allocates nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pace {
    growth: Growth,
    /// Since when the kubelet would find the threshold met, at every look.
    met_since: Option<u64>,
    /// Since when that is so by memory which the kernel cannot give back.
    short_since: Option<u64>,
    last_eviction: Option<u64>,
    /// Evictions since the threshold was met.
    evictions: u32,
    /// Growth is not judged before this time.
    settled_at: u64,
}

impl Pace {
    /// Takes a look: the growth follows, and whether the threshold is met. `now` never goes back.
    pub fn observe(&mut self, now: u64, seen: &Shortage) {
        if now < self.settled_at {
            self.growth.forget();
        }
        self.growth.observe(now, seen.used);
        let is_met = seen.is_met(self.met_since.is_some());
        self.met_since = is_met.then(|| self.met_since.unwrap_or(now));
        let is_short = is_met && seen.is_short(self.short_since.is_some());
        self.short_since = is_short.then(|| self.short_since.unwrap_or(now));
        if !is_met {
            self.evictions = 0;
        }
    }

    /// Whether the kubelet would find the threshold met.
    pub fn is_met(&self) -> bool {
        self.met_since.is_some()
    }

    /// What to do about the look that was taken last. `pending` is what victims of before are expected to give back.
    pub fn decide(&self, now: u64, seen: &Shortage, pending: Pending) -> Decision {
        let urgent = self.urgency(seen);
        if let Some((exhausted_in, grown)) = urgent {
            let urgency = Urgency::Urgent {
                exhausted_in,
                growth: grown.per_second(),
            };
            return match pending.due {
                None => Decision::Evict {
                    urgency,
                    amount: None,
                },
                Some(_) if now < self.settled_at => Decision::Wait { until: u64::MAX },
                Some(due) => {
                    let wait = due.saturating_sub(now).saturating_add(MARGIN_NS);
                    if exhausted_in > wait {
                        return Decision::Wait { until: u64::MAX };
                    }
                    // As much as it takes to be there still when the first of it is due, or when what goes now is back.
                    let lasts = wait.min(DEATH_NS / 2);
                    let needed =
                        u128::from(grown.per_second()) * u128::from(lasts) / u128::from(SECOND);
                    let needed = u64::try_from(needed).unwrap_or(u64::MAX);
                    let amount = needed.saturating_sub(seen.room.at_once).max(1);
                    Decision::Evict {
                        urgency,
                        amount: Some(amount),
                    }
                }
            };
        }
        self.decide_paced(now, seen, pending)
    }

    /// The same where nothing is urgent: for soft thresholds, below which there is a hard one.
    pub fn decide_paced(&self, now: u64, seen: &Shortage, pending: Pending) -> Decision {
        let Some(met_since) = self.met_since else {
            return Decision::Calm;
        };
        let deficit = seen
            .resolved
            .max(seen.threshold)
            .saturating_sub(seen.available);
        if pending.amount >= deficit.max(1) {
            return Decision::Wait { until: u64::MAX };
        }
        // A shortage that the kernel could end by itself has to last as long as the kubelet needs to see it for certain.
        let only_cache = self.short_since.is_none();
        let ripe = match self.short_since {
            Some(since) => since,
            None => met_since.saturating_add(MONITORING_INTERVAL_NS),
        };
        let after_last = self
            .last_eviction
            .map_or(0, |last| last.saturating_add(MONITORING_INTERVAL_NS));
        let until = ripe.max(after_last);
        if now < until {
            return Decision::Wait { until };
        }
        Decision::Evict {
            urgency: Urgency::Paced { only_cache },
            amount: None,
        }
    }

    /// Whether pods that could give back `attainable` together may go for this, beside what is pending: at the kubelet's pace a
    /// shortage that all of them cannot end takes one pod, and no other one in vain.
    pub fn is_worth_it(
        &self,
        seen: &Shortage,
        urgency: Urgency,
        attainable: u64,
        pending: Pending,
    ) -> bool {
        let deficit = seen.threshold.saturating_sub(seen.available);
        matches!(urgency, Urgency::Urgent { .. })
            || self.evictions == 0
            || attainable.saturating_add(pending.amount) >= deficit
    }

    /// A pod was evicted for this, or for something else that it gives back to this as well.
    pub fn evicted(&mut self, now: u64) {
        self.last_eviction = Some(now);
        self.evictions = self.evictions.saturating_add(1);
        self.settled_at = now.saturating_add(SETTLE_NS);
        self.growth.forget();
    }

    /// The scope or its threshold is another one; when a pod was last evicted stays known.
    pub fn reset(&mut self) {
        *self = Self {
            last_eviction: self.last_eviction,
            ..Self::default()
        };
    }

    /// The growth that uses up the room before the kubelet would have looked again, if one does.
    fn urgency(&self, seen: &Shortage) -> Option<(u64, Grown)> {
        if !seen.is_close(self.is_met()) {
            return None;
        }
        let (end, grown) = self.growth.exhausts(seen.room, seen.noise(self.is_met()))?;
        (end < MONITORING_INTERVAL_NS + DEATH_NS).then_some((end, grown))
    }
}

/// All that one decision was made from, so that it can be made again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Judged {
    /// When, in nanoseconds of CLOCK_MONOTONIC.
    pub now: u64,
    /// What was known from the looks before.
    pub pace: Pace,
    /// What was seen.
    pub seen: Shortage,
    /// What victims of before were expected to give back.
    pub pending: Pending,
}

impl Judged {
    /// Makes the decision.
    pub fn decide(&self) -> Decision {
        self.pace.decide(self.now, &self.seen, self.pending)
    }
}

impl Shortage {
    /// Whether the kubelet finds the threshold met; `was_met`: it did at the look before.
    pub fn is_met(&self, was_met: bool) -> bool {
        self.available < self.threshold || (was_met && self.available < self.resolved)
    }

    /// The threshold, and a little more: closer than this statistics do not tell what is short.
    fn level(&self) -> u64 {
        self.threshold
            .saturating_add((self.threshold / 8).min(BLUR))
    }

    /// Whether so little is left that its end may be urgent.
    fn is_close(&self, is_met: bool) -> bool {
        let level = if is_met { self.level() } else { self.guard };
        self.room.at_once < level
    }

    /// Whether less can be used than the threshold asks for: the kernel cannot end this shortage by itself.
    fn is_short(&self, was_short: bool) -> bool {
        let room = self.room.at_once.saturating_add(self.room.slowly);
        room < self.level() || (was_short && room < self.resolved)
    }

    /// A growth that is smaller says nothing. Where only the guard's amount is short, page cache waits for a disk: what the
    /// kernel needs to keep track of it grows with it.
    fn noise(&self, is_met: bool) -> u64 {
        let room = self.room.at_once.saturating_add(self.room.slowly);
        let share = if is_met { 16 } else { 4 };
        (self.threshold / share)
            .min(BLUR * 16 / share)
            .min(room / 8)
    }
}

#[cfg(test)]
mod tests;
