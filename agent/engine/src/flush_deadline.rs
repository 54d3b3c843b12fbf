//! When a cgroup's statistics are flushed for a look.

use crate::{accounting::MemorySample, sampling::sample_interval};

/// Amounts by which a flush of statistics is decided, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct FlushInputs {
    /// Bytes that are not charged.
    pub free: u64,
    /// The threshold.
    pub threshold: u64,
    /// Amount that could still be used before memory is short.
    pub left: u64,
    /// The fastest growth, per second.
    pub growth: u64,
}

impl FlushInputs {
    /// What the last sample of a cgroup with this capacity tells, for the fastest growth.
    pub fn of(last: &MemorySample, capacity: u64, growth: u64) -> Self {
        let shortage = &last.shortage;
        Self {
            free: capacity.saturating_sub(last.usage),
            threshold: shortage.threshold,
            left: shortage
                .headroom
                .immediate
                .saturating_sub(shortage.threshold),
            growth,
        }
    }
}

/// When the kernel is made to flush a cgroup's statistics for a look: page cache that they still show may have become
/// something else.
#[derive(Clone, Copy, Debug, Default)]
pub struct FlushDeadline {
    /// Time of the last flush, and [`FlushInputs::left`] then.
    flushed: Option<(u64, u64)>,
}

impl FlushDeadline {
    /// Whether it is due at `now` (nanoseconds): what is free does not suffice for the threshold by itself, and the
    /// fastest growth could have used up since the last time what was left then.
    pub fn is_due(&mut self, now: u64, inputs: FlushInputs) -> bool {
        let FlushInputs {
            free,
            threshold,
            left,
            growth,
        } = inputs;
        if free >= threshold.saturating_mul(2) {
            self.forget();
            return false;
        }
        let is_due = self.flushed.is_none_or(|(since, left)| {
            let lasts = sample_interval(left, growth).as_nanos();
            u128::from(now.saturating_sub(since)) >= lasts
        });
        if is_due {
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
