//! Whether a sample needs a flush: the usage counter is exact at every moment, the statistics beside it may lag.
//!
//! Memory is *uncategorized* if the counter has it and no line of `memory.stat` does. That changes slowly as far as it
//! is kernel memory. What is suddenly more than usual is the *lag*: page cache or anonymous memory that the kernel has
//! not flushed, because it does not know that there is something to flush, or because another reader is flushing
//! (docs/decisions/0003-lagging-cgroup-statistics.md). Page cache in the lag looks like a working set, and a pod would
//! be killed for it. The usage of a root cgroup is the sum of the same statistics, so that it has no lag to be seen.

use std::{io, mem, time::Duration};

use evictd_engine::{
    accounting::MemorySample,
    units::{MS, SECOND},
};
use evictd_node::trigger::memory::CHARGE_BATCH;
use evictd_sys::page::page_size;

/// What stays uncategorized for longer is no lag. A pod that takes kernel memory at 1 GB/s takes 5 MiB meanwhile, and
/// the floor still holds.
const FLUSH_DEADLINE_NS: u64 = 5 * MS;
/// The same where kernel memory has a counter of its own: the kernel flushes everything every two seconds (`FLUSH_TIME`), and
/// what no line has for longer is in none for good, as parts of huge pages that nothing maps any more.
const COUNTED_DEADLINE_NS: u64 = 4 * SECOND;
/// Between two samples: a reader that this thread has preempted in the middle of a flush can go on, and the allocating
/// task as well.
const PAUSE: Duration = Duration::from_micros(100);
/// Bytes that may be newly uncategorized at a sample and are no lag: kernel memory, and huge pages that are charged
/// before they are filled and counted.
const NEW_BYTES: u64 = 8 << 20;
/// Pages that each CPU may keep to itself, in three batches: charges in advance, changes that are not announced, and
/// the CPU's part of those that are announced and too few for a flush.
const PAGES_OF_A_CPU: u64 = 3 * CHARGE_BATCH;

/// State that is kept of one scope's uncategorized memory.
#[derive(Debug)]
pub(super) struct StatLag {
    /// The usual uncategorized bytes: the least that was seen since more turned out to be no lag.
    baseline: Option<u64>,
    /// The usage in bytes when the kernel was first asked to flush the present lag, and when that was (nanoseconds of
    /// CLOCK_MONOTONIC).
    flush_asked: Option<(u64, u64)>,
    /// A smaller lag, in bytes, is none.
    slack: u64,
    /// Value of `slack` by the number of CPUs alone, in bytes.
    slack_of_cpus: u64,
    /// What is uncategorized for so long is no lag, in nanoseconds.
    usual_after: u64,
    /// The usage in bytes when the whole deadline was waited in vain: nothing is charged there that would make the
    /// kernel flush.
    given_up: Option<u64>,
}

impl StatLag {
    /// Creates the state for a machine with `cpus` CPUs. `kernel_is_counted`: kernel memory has a counter of its own
    /// and is never uncategorized.
    pub fn new(cpus: u64, kernel_is_counted: bool) -> Self {
        let slack_of_cpus = NEW_BYTES + cpus * PAGES_OF_A_CPU * page_size();
        Self {
            baseline: None,
            flush_asked: None,
            slack: slack_of_cpus,
            slack_of_cpus,
            usual_after: match kernel_is_counted {
                true => COUNTED_DEADLINE_NS,
                false => FLUSH_DEADLINE_NS,
            },
            given_up: None,
        }
    }

    /// Bounds the slack for a scope with this threshold, in bytes. With many CPUs the slack would exceed it, and a lag
    /// could evict a pod in vain: half of the threshold is the most, and a flush is waited for beyond that.
    pub fn bound(&mut self, threshold: u64) {
        self.slack = self.slack_of_cpus.min((threshold / 2).max(NEW_BYTES));
    }

    /// The scope is another one.
    pub fn forget(&mut self) {
        (self.baseline, self.flush_asked, self.given_up) = (None, None, None);
    }

    /// A sample whose statistics are flushed, as far as that comes within the deadline, and the bytes by which they lag
    /// all the same. `is_short`: the threshold is met although the lag may be page cache, so that no flush is waited
    /// for. `flush` makes the kernel flush; `after` sleeps and returns the time.
    pub fn sample(
        &mut self,
        read: impl Fn() -> io::Result<MemorySample>,
        is_short: impl Fn(&MemorySample, u64) -> bool,
        mut flush: impl FnMut(),
        after: impl Fn(Duration) -> u64,
    ) -> io::Result<(MemorySample, u64)> {
        let start = after(Duration::ZERO);
        let mut now = start;
        // At once, the first time: most lags are gone then.
        let mut pause = Duration::ZERO;
        loop {
            let mut sample = read()?;
            let lag = self.lag(&sample, now);
            let lags = lag > self.slack;
            let is_behind = lags && !is_short(&sample, lag);
            let stands = |charged: u64| sample.usage.abs_diff(charged) < self.slack;
            let is_over = is_overdue(start, now);
            let waits = is_behind && !is_over && !self.given_up.is_some_and(stands);
            if !is_behind {
                self.given_up = None;
            } else if is_over {
                self.given_up = Some(sample.usage);
            }
            // Early, where possible: then no flush is waited for at the crossing.
            if waits || lag > self.slack / 4 {
                flush();
                self.flush_asked.get_or_insert((sample.usage, now));
            }
            if !waits {
                // What stays after a flush is more than counters that are read one after the other.
                let flushed = |(_, since)| is_overdue(since, now);
                sample.shortage.stat_lag = match self.flush_asked.is_some_and(flushed) {
                    true => lag.min(self.slack),
                    false => lag,
                };
                return Ok((sample, if lags { lag } else { 0 }));
            }
            now = after(mem::replace(&mut pause, PAUSE));
        }
    }

    /// The bytes by which more is uncategorized than usual.
    fn lag(&mut self, sample: &MemorySample, now: u64) -> u64 {
        let usual = self.baseline.get_or_insert(sample.uncategorized);
        if let Some((charged, since)) = self.flush_asked {
            // What was uncategorized when the flush was asked for, and still is.
            let left = (charged + sample.uncategorized).saturating_sub(sample.usage);
            if left <= *usual + self.slack / 4 {
                self.flush_asked = None;
            } else if now.saturating_sub(since) >= self.usual_after {
                (*usual, self.flush_asked) = (left, None);
            }
        }
        *usual = sample.uncategorized.min(*usual);
        sample.uncategorized - *usual
    }
}

/// Whether a flush that was asked for at `since` is done.
fn is_overdue(since: u64, now: u64) -> bool {
    now.saturating_sub(since) >= FLUSH_DEADLINE_NS
}

#[cfg(test)]
mod tests;
