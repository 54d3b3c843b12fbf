//! Another word on what is left of a scope's memory, beside the kubelet's.

use crate::proc::machine::{MachineMemory, MemAvailable};

/// A reserve by another count than the kubelet's: the last bytes before the OOM killer.
#[derive(Debug)]
pub struct MemoryGuard {
    source: GuardSource,
    /// Less than this is less than the threshold, in bytes.
    amount: u64,
}

/// Whose count.
#[derive(Debug)]
enum GuardSource {
    /// The machine's own.
    Machine(MemAvailable),
    /// What the kernel can take in a cgroup without waiting for a disk.
    CgroupV1,
    /// The kubelet's, but for what is protected in a cgroup of v2.
    CgroupV2,
}

impl MemoryGuard {
    /// For the machine: the kernel's `MemAvailable`.
    pub fn machine(memory: MemAvailable, amount: u64) -> Self {
        let word = GuardSource::Machine(memory);
        Self {
            source: word,
            amount,
        }
    }

    /// For a cgroup of v1, whose page cache is no memory that is left as long as it has to be written: v1 does not make a group's
    /// writers wait there (`balance_dirty_pages` knows groups on v2 only), and where reclaim finds nothing but dirty pages
    /// (`shrink_folio_list` leaves them to the flusher) the OOM killer comes.
    pub fn cgroup_v1(amount: u64) -> Self {
        let word = GuardSource::CgroupV1;
        Self {
            source: word,
            amount,
        }
    }

    /// For a cgroup of v2, where a writer that writes more than the disk can take waits: only page cache that `memory.min` protects
    /// is no memory that is left.
    pub fn cgroup_v2(amount: u64) -> Self {
        let word = GuardSource::CgroupV2;
        Self {
            source: word,
            amount,
        }
    }

    /// So much should be left.
    pub(super) fn amount(&self) -> u64 {
        self.amount
    }

    /// What it knows to be left. `free` is not charged, `written` is page cache that counts as available and can be taken at
    /// once; all in bytes.
    pub(super) fn left(&self, free: u64, written: u64) -> Option<Left> {
        let (bytes, used) = match &self.source {
            // A file that cannot be read says nothing; the kubelet's count remains.
            GuardSource::Machine(memory) => {
                let MachineMemory { total, available } = memory.read().ok()?;
                (available, Some(total.saturating_sub(available)))
            }
            GuardSource::CgroupV1 => (free.saturating_add(written), None),
            GuardSource::CgroupV2 => return None,
        };
        Some(Left {
            bytes,
            used,
            amount: self.amount,
        })
    }
}

/// What a guard knows to be left.
#[derive(Clone, Copy, Debug)]
pub(super) struct Left {
    /// So much.
    pub bytes: u64,
    /// The rest of the machine's memory, which was read with it: memory that is plugged in or taken by a balloon changes nothing in it.
    pub used: Option<u64>,
    /// And so much should be.
    pub amount: u64,
}

impl Left {
    /// As an amount of the signal: the threshold itself when the guard's amount is left. More than the threshold is never asked
    /// for, or a generous threshold would mean something else than to the kubelet.
    pub fn on_the_scale_of(self, threshold: u64) -> u64 {
        self.bytes
            .saturating_add(threshold.saturating_sub(self.amount))
    }
}
