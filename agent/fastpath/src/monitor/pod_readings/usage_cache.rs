//! The usage of each pod a moment ago: while the loop spins it reads one pod after another, so that a decision has to
//! read only the first ones in the order of eviction.
//!
//! A usage that was read a little earlier, plus what the fastest growth of the machine may have added since, is an
//! upper bound, and the choice needs no more of the pods that it passes over ([`evictd_engine::select`]).

use evictd_engine::units::MS;

use super::PodReadings;

/// Usages that are older are of no use: with a bound that has grown further almost all pods would be read again.
const RECENT_NS: u64 = 2 * MS;
/// How often the loop flushes statistics while it spins: a look takes those that are younger than a millisecond
/// ([`evictd_engine::sampling::MIN_INTERVAL`]).
const FLUSHED_NS: u64 = 600_000;

/// Tracks how old the candidates' usages are.
#[derive(Debug, Default)]
pub(crate) struct UsageCache {
    /// Every pod was read after this, in nanoseconds of CLOCK_MONOTONIC.
    since: Option<u64>,
    /// Time at which the present pass over the pods began.
    pass: Option<u64>,
    /// The position of the pod that is read next.
    next: usize,
    /// Time at which the loop last flushed while it spins, in nanoseconds of CLOCK_MONOTONIC.
    flushed: u64,
}

impl UsageCache {
    /// Forgets all usages.
    pub fn forget(&mut self) {
        *self = Self::default();
    }

    /// The position in a table of `count` pods that is read now.
    fn step(&mut self, now: u64, count: usize) -> usize {
        if self.next >= count {
            (self.since, self.next) = (self.pass, 0);
        }
        if self.next == 0 {
            self.pass = Some(now);
        }
        self.next += 1;
        self.next - 1
    }

    /// Bytes by which each pod may exceed the usage in its candidate; `None` if that is too old. `growth` is the
    /// machine's fastest, in bytes per second, and a counter may `jump`. Good for one decision, because the decision
    /// overwrites the candidates.
    pub fn take(&mut self, now: u64, growth: u64, jump: u64) -> Option<u64> {
        let since = std::mem::take(self).since?;
        let elapsed = now.saturating_sub(since);
        let grown = (growth / 1_000_000).saturating_mul(elapsed) / 1000;
        (elapsed <= RECENT_NS).then_some(grown + jump)
    }
}

impl PodReadings {
    /// Whether the statistics are to be flushed while the loop spins: the last flush is too old for the next look.
    pub fn is_flush_due(&self, now: u64) -> bool {
        now.saturating_sub(self.usage_cache.flushed) >= FLUSHED_NS
    }

    /// Flushes the kernel's statistics, so that the next look need not.
    pub fn flush_statistics(&mut self, now: u64) {
        self.table.flush_statistics();
        self.usage_cache.flushed = now;
    }

    /// Reads one pod, so that the next decision need not.
    pub fn read_next(&mut self, now: u64) {
        let table = &mut *self.table;
        if table.entries.is_empty() {
            return;
        }
        let position = self.usage_cache.step(now, table.entries.len());
        if let (Some(entry), Some(candidate)) = (
            table.entries.get(position),
            table.candidates.get_mut(position),
        ) {
            candidate.state = entry.read_usage(candidate);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROWTH: u64 = 8 << 30;
    const JUMP: u64 = 2 << 20;
    const US: u64 = 1000;

    #[test]
    fn only_a_whole_pass_is_an_answer() {
        let mut recent = UsageCache::default();
        assert_eq!(recent.take(0, GROWTH, JUMP), None);
        for place in 0..3 {
            assert_eq!(recent.step(100 + place as u64, 3), place);
        }
        // All were read, but that is noticed at the next step only.
        assert_eq!(recent.step(110, 3), 0);
        let more = recent.take(100 + 10 * US, GROWTH, JUMP);
        assert_eq!(more, Some(GROWTH / 1_000_000 * 10 + JUMP));
        assert_eq!(recent.take(100 + 10 * US, GROWTH, JUMP), None, "once");
    }

    #[test]
    fn the_bound_is_as_old_as_the_oldest_answer() {
        let mut recent = UsageCache::default();
        for step in 0..8 {
            recent.step(step * 10 * US, 3);
        }
        // The third pass goes on; the second one began at 30 us.
        let more = recent.take(100 * US, GROWTH, JUMP);
        assert_eq!(more, Some(GROWTH / 1_000_000 * 70 + JUMP));
    }

    #[test]
    fn what_is_old_is_not_recent() {
        let mut recent = UsageCache::default();
        for step in 0..4 {
            recent.step(step, 2);
        }
        assert_eq!(recent.take(RECENT_NS + 1, GROWTH, JUMP), None);
    }
}
