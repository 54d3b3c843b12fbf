//! When a cgroup's statistics are flushed for a look.

use crate::{accounting::MemorySample, sampling::sample_interval};

/// When the kernel is made to flush a cgroup's statistics for a look: page cache that they still show may have become
/// something else.
#[derive(Clone, Copy, Debug, Default)]
pub struct FlushDeadline {
    /// Time of the last flush, and the bytes that could still be used before memory was short then.
    flushed: Option<(u64, u64)>,
}

impl FlushDeadline {
    /// Whether it is due at `now` (nanoseconds), by the last sample of a cgroup with this capacity: what is free does not
    /// suffice for the threshold by itself, and the fastest `growth` per second could have used up since the last time
    /// what was left then.
    pub fn is_due(&mut self, now: u64, last: &MemorySample, capacity: u64, growth: u64) -> bool {
        let shortage = &last.shortage;
        let threshold = shortage.threshold;
        let free = capacity.saturating_sub(last.usage);
        if free >= threshold.saturating_mul(2) {
            self.forget();
            return false;
        }
        let is_due = self.flushed.is_none_or(|(since, left)| {
            let lasts = sample_interval(left, growth).as_nanos();
            u128::from(now.saturating_sub(since)) >= lasts
        });
        if is_due {
            let left = shortage.headroom.immediate.saturating_sub(threshold);
            self.flushed = Some((now, left));
        }
        is_due
    }

    /// The statistics were flushed at `now` without a sample: the next flush is due after the shortest interval.
    pub fn was_flushed(&mut self, now: u64) {
        if self.flushed.is_some() {
            self.flushed = Some((now, 0));
        }
    }

    /// Forgets the last flush.
    pub fn forget(&mut self) {
        self.flushed = None;
    }
}
