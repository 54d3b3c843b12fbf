//! What is short of a resource, as of one look: the amounts from which [`crate::pace`] decides.

use serde::{Deserialize, Serialize};

use crate::{
    growth::{Headroom, grown_in},
    kubelet_times::{KUBELET_TURN_NS, MONITORING_INTERVAL_NS},
    units::{MS, SECOND, is_zero},
};

/// A growth that uses up the headroom within this time is urgent: the kubelet looks again, and the end of a pod and the
/// return of its memory take their time as well.
pub(crate) const URGENT_WITHIN_NS: u64 = MONITORING_INTERVAL_NS + 400 * MS;
/// Time after which the memory of a pod that is killed now is back, if its end takes long.
pub(crate) const SLOW_RETURN_NS: u64 = SECOND / 4;
/// Bytes by which flushed statistics may be wrong: each CPU keeps some to itself.
pub(crate) const STATISTICS_ERROR: u64 = 16 << 20;

/// Reclaim that waits for the writeback has met the OOM killer where less page cache than this was left, in bytes, all of it
/// to be written (docs/decisions/0009-memory-guard.md).
const AWAITED: u64 = 200 << 20;

/// What is short, as of one look. Amounts are in the signal's unit, times in nanoseconds of one monotonic clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Shortage {
    /// Amount that is available by the kubelet's count; on the machine no more than the memory guard leaves.
    pub available: u64,
    /// How much more the kubelet's count finds than `available`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub beyond_guard: u64,
    /// Threshold: it is met while less than this is available.
    pub threshold: u64,
    /// Amount that must be available for a threshold that was met to be met no longer: the minimum reclaim counts.
    pub resolved: u64,
    /// Amount in use that cannot be given back without an eviction.
    pub used: u64,
    /// The part of it that belongs to victims which were sent SIGKILL: how it changes is no growth of others.
    #[serde(default)]
    pub dying: u64,
    /// Amount by which `dying` has changed between the beginning of the look and its end: counters are read one after
    /// the other.
    #[serde(default)]
    pub skew: u64,
    /// The part of `used` that is kernel memory of which the kernel does not tell whether it can be given back (cgroup
    /// v1).
    #[serde(default)]
    pub kernel: u64,
    /// The part of `used` that is new and in no statistics yet: what it is, the next look tells.
    #[serde(default)]
    #[serde(rename = "unlisted")]
    pub stat_lag: u64,
    /// Bytes that only an estimate counts as reclaimable. `used` is without them, and a new estimate is no growth.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub estimated: u64,
    /// Amounts that can still be used before nothing is left.
    #[serde(rename = "room")]
    pub headroom: Headroom,
    /// The part of the headroom that is page cache and has to be written first.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[serde(rename = "unwritten")]
    pub dirty_or_writeback: u64,
    /// Whether what grows waits until that is written, instead of an OOM kill.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub awaits_writeback: bool,
    /// What the scope has swapped out, whether pods may do so or not: it has grown all the same.
    #[serde(default)]
    pub swapped: u64,
    /// The same as an older agent has written it: free swap.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub swap_free: u64,
    /// Headroom below which a growth may be urgent although the kubelet's threshold is not met (memory guard); 0
    /// without a guard.
    #[serde(rename = "guard")]
    pub guard_amount: u64,
    /// The growth that limits of the pods' own will end.
    #[serde(default)]
    #[serde(rename = "bounded")]
    pub limited_growth: LimitedGrowth,
    /// The part of what is available that lies in the CPUs' lists of free pages, which `MemAvailable` does not count; 0
    /// where they were not read.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[serde(rename = "inLists")]
    pub pcp_free: u64,
    /// The threshold is the kubelet's own: it acts at the same amount.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_kubelets: bool,
}

impl Shortage {
    /// Counts bytes of the CPUs' lists of free pages that were not read with the rest. They are available too where it was the
    /// guard that found less than the kubelet's count.
    pub fn count_pcp_free(&mut self, bytes: u64) {
        let above_guard = self.threshold.saturating_sub(self.guard_amount);
        let by_guard = self.headroom.total().saturating_add(above_guard);
        self.headroom.immediate = self.headroom.immediate.saturating_add(bytes);
        if self.guard_amount > 0 && self.available >= by_guard {
            self.available = self.available.saturating_add(bytes);
            self.beyond_guard = self.beyond_guard.saturating_sub(bytes);
        }
    }

    /// Amount that must be available for the threshold not to be met; `resolves`: the minimum reclaim counts.
    pub(crate) fn needed(&self, resolves: bool) -> u64 {
        match resolves {
            true => self.resolved.max(self.threshold),
            false => self.threshold,
        }
    }

    /// Whether the threshold is met; `resolves`: the minimum reclaim counts.
    pub fn is_met(&self, resolves: bool) -> bool {
        self.deficit(resolves) > 0
    }

    /// Whether the threshold is met by the kubelet's own count, whatever the memory guard leaves.
    pub fn is_met_by_kubelet(&self, resolves: bool) -> bool {
        self.counted_deficit(resolves) > 0
    }

    /// How much longer, in nanoseconds, a pod waits that is not urgent, so that the kubelet's eviction is seen first: it makes
    /// none for what the memory guard alone finds short.
    pub(crate) fn kubelets_turn(&self, resolves: bool) -> u64 {
        match self.is_kubelets && self.is_met_by_kubelet(resolves) {
            true => KUBELET_TURN_NS,
            false => 0,
        }
    }

    /// Amount that is missing for the threshold not to be met. The minimum reclaim is the kubelet's.
    pub(crate) fn deficit(&self, resolves: bool) -> u64 {
        let by_guard = self.threshold.saturating_sub(self.available);
        by_guard.max(self.counted_deficit(resolves))
    }

    fn counted_deficit(&self, resolves: bool) -> u64 {
        let counted = self.available.saturating_add(self.beyond_guard);
        self.needed(resolves).saturating_sub(counted)
    }

    /// The headroom, with no more swap than there is to be swapped out.
    pub fn usable(&self) -> Headroom {
        Headroom {
            swap: self.headroom.swap.min(self.used),
            ..self.headroom
        }
    }

    /// Whether so little is left that its end may be urgent. Where what grows waits for the writeback it is not while what
    /// is left once the page cache is written is the threshold, twice the memory guard's amount and [`AWAITED`]: on the active list
    /// that page cache meets the threshold by itself.
    pub(crate) fn is_nearly_exhausted(&self, is_met: bool) -> bool {
        let (least, swap) = match is_met {
            true => (self.threshold, 0),
            // The machine, where nothing is to be written first: the OOM killer does not come before swap is used up.
            false if self.dirty_or_writeback == 0 => (self.guard_amount, self.usable().swap),
            false => (self.guard_amount, 0),
        };
        let enough = (2 * self.guard_amount).max(AWAITED).max(least);
        let is_awaited = self.awaits_writeback && self.written() >= enough;
        self.headroom.immediate.saturating_add(swap) < least && !is_awaited
    }

    /// Whether so little is left because page cache has to be written first: the kubelet finds enough, and so does the kernel
    /// once that is written.
    pub(crate) fn is_nearly_exhausted_but_for_dirty_cache(&self, is_met: bool) -> bool {
        !is_met && self.is_nearly_exhausted(is_met) && self.written() >= self.guard_amount
    }

    /// What can be used at once when the page cache is written.
    fn written(&self) -> u64 {
        self.headroom
            .immediate
            .saturating_add(self.dirty_or_writeback)
    }

    /// Whether less can be used than the threshold asks for: the kernel cannot end this shortage by itself.
    pub(crate) fn is_short(&self, was_short: bool) -> bool {
        let headroom = self.usable().total();
        headroom < self.threshold || (was_short && headroom < self.resolved)
    }

    /// Growth below this is noise. When only the memory guard is short the limit is higher (1/4 of the threshold, not
    /// 1/16), because kernel memory grows with dirty page cache.
    pub(crate) fn noise(&self, is_met: bool) -> u64 {
        let headroom = self.usable().total();
        let share = if is_met { 16 } else { 4 };
        // The less is left, the less may be missed.
        (self.threshold / share)
            .min(STATISTICS_ERROR)
            .min(headroom / 8)
            .min((self.headroom.immediate / 4).max(STATISTICS_ERROR / 2))
    }
}

/// The growth of cgroups that have limits of their own: there the kernel ends it, by an OOM kill within the pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LimitedGrowth {
    /// Amount by which the cgroups have grown since [`steady_since`](crate::pace::Pace::steady_since).
    pub grown: u64,
    /// Amount by which the cgroups grow per second, over the last quarter of a second.
    pub growth: u64,
    /// Amount that the cgroups may use together until their limits end the growth, or the kubelet looks again.
    pub left: u64,
}

impl LimitedGrowth {
    /// Builds the growth of a cgroup that has `left` bytes below its limit. A sidecar that grows slowly does not use
    /// them before the kubelet looks.
    pub fn new(grown: u64, growth: u64, left: u64) -> Self {
        let left = match (grown, growth) {
            (0, 0) => 0,
            (_, 0) => left,
            (_, growth) => left.min(grown_in(growth, URGENT_WITHIN_NS)),
        };
        Self {
            grown,
            growth,
            left,
        }
    }

    /// Chooses between the growth of a cgroup that has a limit and that of the cgroups with limits `below` it. Where most
    /// of it is not theirs, what grows is new or has no limit, and the cgroup's own limit ends it. Together they use no more
    /// than the `room` below that: containers without limits of their own have the pod's each.
    pub fn or_of_those_below(self, below: Self, room: u64) -> Self {
        let is_theirs = |theirs: u64, all: u64| theirs.saturating_add(theirs / 3) >= all;
        let are_known = is_theirs(below.grown, self.grown) && is_theirs(below.growth, self.growth);
        if !are_known {
            return self;
        }
        Self {
            left: below.left.min(room),
            ..below
        }
    }

    /// Adds that of others.
    pub fn merged(self, other: Self) -> Self {
        Self {
            grown: self.grown.saturating_add(other.grown),
            growth: self.growth.saturating_add(other.growth),
            left: self.left.saturating_add(other.left),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // R43
    #[test]
    fn what_is_left_below_a_limit_is_there_once() {
        let container = LimitedGrowth::new(30, 120, 300);
        let both = container.merged(container);
        let pod = LimitedGrowth::new(60, 240, 300);
        assert_eq!(pod.or_of_those_below(both, 300).left, 300);
        let unknown = LimitedGrowth::default();
        assert_eq!(unknown.or_of_those_below(both, u64::MAX), both);
        // A third container gives back nearly as much.
        let net = LimitedGrowth::new(2, 10, 300);
        assert_eq!(net.or_of_those_below(both, 300).left, 300);
    }

    #[test]
    fn free_pages_of_the_cpus_are_available_where_the_guard_finds_less() {
        let counted = |available| {
            let mut seen = Shortage {
                available,
                threshold: 1262,
                guard_amount: 100,
                headroom: Headroom {
                    immediate: 90,
                    ..Headroom::default()
                },
                ..Shortage::default()
            };
            assert!(seen.is_met(false));
            seen.count_pcp_free(207);
            (seen.headroom.immediate, seen.available)
        };
        assert_eq!(counted(90 + 1262 - 100), (297, 1252 + 207));
        // The kubelet's count does not know them.
        assert_eq!(counted(1200), (297, 1200));
    }
}
