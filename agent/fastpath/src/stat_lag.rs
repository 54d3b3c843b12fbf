//! Whether a look flushes: the counter is exact at every moment, the statistics beside it may lag.
//!
//! What is charged and is in no line of `memory.stat` changes slowly: it is kernel memory. What is missing there all at once
//! is page cache or anonymous memory that the kernel has not flushed, because it did not know that there is something to add
//! up, or because another reader is in the middle of it (docs/decisions/0003-lagging-cgroup-statistics.md). Page cache that is missing there looks like a
//! working set, and a pod would die for it. A root's usage is made of the same statistics, and nothing tells there.

use std::{io, mem, time::Duration};

use evictd_node::{
    memory_scope::MemorySample,
    trigger::memory::{CHARGE_BATCH, page_size},
};

/// What lasts longer is no lag. A pod that takes kernel memory at 1 GB/s takes 5 MiB meanwhile, and the floor still holds.
const FLUSH_DEADLINE_NS: u64 = 5_000_000;
/// Between two looks: who was preempted by this thread in the middle of adding up can go on meanwhile, and who allocates on
/// this CPU too.
const PAUSE: Duration = Duration::from_micros(100);
/// What may be new in no line since the last look, in bytes: kernel memory, and huge pages that are charged before they are
/// filled and counted.
const NEW_BYTES: u64 = 8 << 20;
/// What each CPU may keep to itself, three batches of pages: charges in advance, changes that it has not announced,
/// and its part of those that are announced and not worth adding up yet.
const PAGES_OF_A_CPU: u64 = 3 * CHARGE_BATCH;

/// What is known of one scope's unlisted memory.
#[derive(Debug)]
pub(super) struct StatLag {
    /// In bytes: the least that was seen since more of it turned out to be no lag.
    baseline: Option<u64>,
    /// What was charged, in bytes, when the kernel was first told to flush what is missing now, and when that was (nanoseconds of
    /// CLOCK_MONOTONIC).
    told: Option<(u64, u64)>,
    /// More than usual by so much, in bytes, may be anything.
    slack: u64,
    /// The same by the number of CPUs alone.
    slack_of_cpus: u64,
    /// What is unlisted is free of kernel memory: all of it is behind, however long.
    exact: bool,
    /// What was charged, in bytes, when the whole time was waited in vain: nothing is charged there that would make the kernel
    /// flush.
    given_up: Option<u64>,
}

impl StatLag {
    /// For a machine with so many CPUs. `exact`: kernel memory has a counter of its own and is no part of what is unlisted.
    pub fn new(cpus: u64, exact: bool) -> Self {
        let slack_of_cpus = NEW_BYTES + cpus * PAGES_OF_A_CPU * page_size();
        Self {
            baseline: None,
            told: None,
            slack: slack_of_cpus,
            slack_of_cpus,
            exact,
            given_up: None,
        }
    }

    /// For a scope with this threshold, in bytes. With many CPUs the slack would exceed it, and a lag could take a pod that need not
    /// go: half of the threshold is the most, and more is waited for.
    pub fn bound(&mut self, threshold: u64) {
        self.slack = self.slack_of_cpus.min((threshold / 2).max(NEW_BYTES));
    }

    /// The scope is another one.
    pub fn forget(&mut self) {
        (self.baseline, self.told, self.given_up) = (None, None, None);
    }

    /// A look that flushes, or one that has been given the time to, and the bytes that its statistics lag by all the same.
    /// `is_short` tells of a look, and of the bytes that may be missing in it, that the threshold is met even with these: they
    /// are not waited for then. `add_up` makes the kernel flush, `after` waits and tells the time.
    pub fn sample(
        &mut self,
        read: impl Fn() -> io::Result<MemorySample>,
        is_short: impl Fn(&MemorySample, u64) -> bool,
        mut add_up: impl FnMut(),
        after: impl Fn(Duration) -> u64,
    ) -> io::Result<(MemorySample, u64)> {
        let start = after(Duration::ZERO);
        let mut now = start;
        // At once, the first time: most lags are gone then.
        let mut pause = Duration::ZERO;
        loop {
            let mut look = read()?;
            let missing = self.unaccounted(&look, now);
            let lags = missing > self.slack;
            let is_behind = lags && !is_short(&look, missing);
            let stands = |charged: u64| look.usage.abs_diff(charged) < self.slack;
            let is_over = now.saturating_sub(start) >= FLUSH_DEADLINE_NS;
            let waits = is_behind && !is_over && !self.given_up.is_some_and(stands);
            if !is_behind {
                self.given_up = None;
            } else if is_over {
                self.given_up = Some(look.usage);
            }
            // In good time where that is possible: then it is not waited for at the crossing.
            if waits || missing > self.slack / 4 {
                add_up();
                self.told.get_or_insert((look.usage, now));
            }
            if !waits {
                // What stays missing although the kernel was told to flush is more than counters that are read one after the other.
                look.shortage.unlisted = if self.is_overdue(now) {
                    missing.min(self.slack)
                } else {
                    missing
                };
                return Ok((look, if lags { missing } else { 0 }));
            }
            now = after(mem::replace(&mut pause, PAUSE));
        }
    }

    fn is_overdue(&self, now: u64) -> bool {
        self.told.is_some_and(|(_, since)| is_overdue(since, now))
    }

    /// The bytes by which more is unlisted than usual.
    fn unaccounted(&mut self, look: &MemorySample, now: u64) -> u64 {
        let usual = self.baseline.get_or_insert(look.uncategorized);
        if let Some((charged, since)) = self.told {
            // What was missing then, and still is.
            let missing = (charged + look.uncategorized).saturating_sub(look.usage);
            if missing <= *usual + self.slack / 4 {
                self.told = None;
            } else if is_overdue(since, now) && !self.exact {
                (*usual, self.told) = (missing, None);
            }
        }
        *usual = look.uncategorized.min(*usual);
        look.uncategorized - *usual
    }
}

/// Whether the kernel, told to flush at `since`, would have.
fn is_overdue(since: u64, now: u64) -> bool {
    now.saturating_sub(since) >= FLUSH_DEADLINE_NS
}

#[cfg(test)]
mod tests;
