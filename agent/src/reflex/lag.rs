//! Whether a look adds up: the counter is exact at every moment, the statistics beside it may lag.
//!
//! What is charged and is in no line of `memory.stat` changes slowly: it is kernel memory. What is missing there all at once
//! is page cache or anonymous memory that no reader has been told of yet. That happens while somebody else, on another CPU
//! or preempted on this one, is in the middle of adding up the CPUs' shares: from the first share on, the kernel takes the
//! sum for fresh and makes nobody wait for the rest (`memcg_vmstats_needs_flush`; docs/architecture.md). Page cache that is
//! missing there looks like a working set, and a pod would die for it. A root's usage is made of the same statistics, and
//! nothing tells there.

use std::{io, time::Duration};

use super::scope::Look;
use crate::kernel::tripwire::page_size;

/// What lasts longer is no lag: adding up takes microseconds for each CPU and cgroup, and who has been preempted by this thread
/// can go on as soon as it sleeps. A pod that takes kernel memory at 1 GB/s takes 5 MiB meanwhile, and the floor still holds.
const PATIENCE_NS: u64 = 5_000_000;
/// Between two looks.
const PAUSE: Duration = Duration::from_micros(100);
/// Kernel memory that may be new since the last look, in bytes.
const KERNEL_BYTES: u64 = 2 << 20;
/// What each CPU may keep to itself (`MEMCG_CHARGE_BATCH` pages each): charges in advance, changes that it has not announced,
/// and its part of those that are announced and not worth adding up yet.
const PAGES_OF_A_CPU: u64 = 3 * 64;

/// What is known of one scope's unlisted memory.
#[derive(Debug)]
pub(super) struct Lag {
    /// In bytes, when it last added up.
    usual: Option<u64>,
    /// Since when it has not (nanoseconds of CLOCK_MONOTONIC).
    since: Option<u64>,
    /// More than usual by so much, in bytes, may be anything.
    slack: u64,
}

impl Lag {
    /// For a machine with so many CPUs.
    pub fn new(cpus: u64) -> Self {
        Self {
            usual: None,
            since: None,
            slack: KERNEL_BYTES + cpus * PAGES_OF_A_CPU * page_size(),
        }
    }

    /// The scope is another one.
    pub fn forget(&mut self) {
        (self.usual, self.since) = (None, None);
    }

    /// A look that adds up, or one that has been given the time to. `certain` tells of a look, and of the bytes that may be
    /// missing in it, that they make no difference: then nobody waits. `after` waits and tells the time.
    pub fn look(
        &mut self,
        read: impl Fn() -> io::Result<Look>,
        certain: impl Fn(&Look, u64) -> bool,
        after: impl Fn(Duration) -> u64,
    ) -> io::Result<Look> {
        let mut pause = Duration::ZERO;
        loop {
            let now = after(pause);
            let look = read()?;
            match self.missing(look.unlisted, now) {
                Some(missing) if !certain(&look, missing) => pause = PAUSE,
                _ => return Ok(look),
            }
        }
    }

    /// The bytes by which more is unlisted than usual, as long as that may be a lag.
    fn missing(&mut self, unlisted: u64, now: u64) -> Option<u64> {
        let usual = *self.usual.get_or_insert(unlisted);
        let missing = unlisted.saturating_sub(usual);
        if missing > self.slack {
            let since = *self.since.get_or_insert(now);
            if now.saturating_sub(since) < PATIENCE_NS {
                return Some(missing);
            }
        }
        (self.usual, self.since) = (Some(unlisted), None);
        None
    }
}

#[cfg(test)]
mod tests;
