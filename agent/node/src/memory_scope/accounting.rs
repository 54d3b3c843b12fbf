//! What is short of a scope, by its numbers alone: the same for a scope of the node and for one of the judge's.

use evictd_engine::{
    growth::Room,
    model::usage::MemoryReading,
    pace::{Bounded, Shortage},
};

use super::Limits;
use crate::{cgroup::swap::FreeSwap, proc::machine::MachineMemory};

/// The kernel needs so much less memory to keep track of page cache than the page cache is: a buffer head for each page.
const KERNEL_OF_CACHE: u64 = 32;
/// How fast page cache is taken to be written and memory to be swapped out, in bytes per second: a slow disk.
const WRITES_PER_SECOND: u64 = 32 << 20;

/// Another word on what is left of a scope's memory, beside the kubelet's: the last bytes before the OOM killer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guard {
    /// Whose.
    pub source: GuardSource,
    /// Less than this is less than the threshold, whatever the kubelet's count says, in bytes.
    pub amount: u64,
}

/// Whose count a guard goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuardSource {
    /// The kernel's `MemAvailable`.
    Machine,
    /// What the kernel can take in a cgroup of v1 without waiting for a disk: v1 does not make a group's writers wait
    /// (`balance_dirty_pages` knows groups on v2 only), and where reclaim finds nothing but dirty pages (`shrink_folio_list` leaves
    /// them to the flusher) the OOM killer comes.
    CgroupV1,
    /// In a cgroup of v2, where a writer that writes more than the disk can take waits, the kubelet's count without page cache that
    /// `memory.min` protects.
    CgroupV2,
}

/// How a scope's memory is counted.
#[derive(Clone, Copy, Debug)]
pub struct Accounting {
    /// In bytes.
    pub capacity: u64,
    /// What must stay available.
    pub limits: Limits,
    /// The machine's usage is not what the root's page counter counts.
    pub is_machine: bool,
    /// The OOM killer acts at its own limit, if not before.
    pub is_limited: bool,
    /// The usage is that of a root: anonymous memory and page cache.
    pub is_root: bool,
    /// Page cache on the active list counts as available too.
    pub reclaimable_cache: bool,
    /// From when on the kernel's own count matters.
    pub guard: Option<Guard>,
    /// So many bytes of pods' page cache the kernel will not take back (`memory.min`).
    pub protected: u64,
}

/// What a guard knows to be left.
#[derive(Clone, Copy)]
struct Left {
    /// So much.
    bytes: u64,
    /// The rest of the machine's memory, which was read with it: memory that is plugged in or taken by a balloon changes nothing in it.
    used: Option<u64>,
    /// And so much should be.
    amount: u64,
}

impl Left {
    /// As an amount of the signal: the threshold itself when the guard's amount is left. More than the threshold is never asked
    /// for, or a generous threshold would mean something else than to the kubelet.
    fn as_signal_amount(self, threshold: u64) -> u64 {
        self.bytes
            .saturating_add(threshold.saturating_sub(self.amount))
    }
}

/// The scope at one moment, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemorySample {
    /// All that is charged, and what the guard adds.
    pub usage: u64,
    /// The part of it that counts as available.
    pub reclaimable_cache: u64,
    /// capacity - usage + reclaimable_cache.
    pub available: u64,
    /// What is charged and is in no line of `memory.stat` ([`MemoryReading::uncategorized`]).
    pub uncategorized: u64,
    /// Kernel memory, where it has a counter of its own ([`MemoryReading::kernel`]), without what is counted as reclaimable.
    pub kernel: u64,
    /// What the kernel could take back ([`MemoryReading::reclaimable`]); of a cgroup without slab, of which a part may be in use.
    pub reclaimable: u64,
    /// What is short of it.
    pub shortage: Shortage,
}

impl MemorySample {
    /// So much of what no statistics list turned out to be page cache, in bytes.
    pub fn count_unlisted_as_cache(&mut self, bytes: u64) {
        let bytes = self.add_reclaimable(bytes);
        self.shortage.room.at_once += bytes;
        self.shortage.unlisted = self.shortage.unlisted.saturating_sub(bytes);
    }

    /// So much of its kernel memory turned out to be reclaimable slab, in bytes. It may be in use, as on v2: inodes of open files.
    pub fn count_slab_as_reclaimable(&mut self, bytes: u64) {
        let bytes = self.add_reclaimable(bytes);
        self.shortage.room.slowly += bytes;
        self.shortage.kernel = self.shortage.kernel.saturating_sub(bytes);
    }

    fn add_reclaimable(&mut self, bytes: u64) -> u64 {
        let bytes = bytes.min(self.shortage.used);
        self.reclaimable += bytes;
        self.shortage.used -= bytes;
        bytes
    }
}

impl Accounting {
    /// What these numbers show; `machine` is read where the guard is the machine's. Does not allocate.
    pub fn sample(
        &self,
        reading: &MemoryReading,
        machine: Option<MachineMemory>,
        swap: FreeSwap,
    ) -> MemorySample {
        let discounted = self.discounted(reading);
        let counted = self
            .capacity
            .saturating_sub(reading.usage.saturating_sub(discounted));
        let free = self.capacity.saturating_sub(reading.usage);
        let written = discounted.saturating_sub(reading.dirty_or_writeback);
        let word = self.left(free, written, machine);
        let cache = reading.reclaimable();
        // On v1 kernel memory is not told apart; the part that keeps track of page cache goes with it.
        let of_cache = reading.kernel.min(cache / KERNEL_OF_CACHE);
        let reclaimable = match self.is_machine {
            // A root's usage is made of anonymous memory and page cache.
            true if self.is_root => cache.saturating_sub(reading.slab_reclaimable),
            true => cache,
            false => cache.saturating_add(of_cache),
        };
        let shortage = self.shortage(reading, swap, reclaimable, counted, word);
        let left = word.map(|word| word.as_signal_amount(self.limits.threshold));
        let left = left.into_iter().chain(self.left_unprotected(&shortage));
        let available = left.fold(counted, u64::min);
        let lacking = counted - available;
        // The triggers follow: what the machine lacks besides is as if it were in use; what a cgroup has to write before it can
        // give it back is as if it did not count as available. That cannot be more than does.
        let (used, withheld) = if self.is_machine {
            (lacking, 0)
        } else {
            (0, lacking)
        };
        MemorySample {
            usage: reading.usage.saturating_add(used),
            reclaimable_cache: discounted.saturating_sub(withheld),
            available,
            uncategorized: reading.uncategorized,
            kernel: reading.kernel - of_cache,
            reclaimable: match self.is_machine {
                true => reclaimable,
                false => reclaimable.saturating_sub(reading.slab_reclaimable),
            },
            shortage,
        }
    }

    /// What the guard knows to be left. `free` is not charged, `written` is page cache that counts as available and can be taken at
    /// once; all in bytes.
    fn left(&self, free: u64, written: u64, machine: Option<MachineMemory>) -> Option<Left> {
        let Guard { source, amount } = self.guard?;
        let (bytes, used) = match source {
            // A file that cannot be read says nothing; the kubelet's count remains.
            GuardSource::Machine => {
                let MachineMemory { total, available } = machine?;
                (available, Some(total.saturating_sub(available)))
            }
            GuardSource::CgroupV1 => (free.saturating_add(written), None),
            GuardSource::CgroupV2 => return None,
        };
        Some(Left {
            bytes,
            used,
            amount,
        })
    }

    /// What is short, as the pace of evictions is decided by it.
    fn shortage(
        &self,
        reading: &MemoryReading,
        FreeSwap { free, usable }: FreeSwap,
        reclaimable: u64,
        counted: u64,
        word: Option<Left>,
    ) -> Shortage {
        let Limits {
            threshold,
            resolved,
            ..
        } = self.limits;
        // The kernel's own word on the machine is the better one.
        let machine = word.filter(|_| self.is_machine);
        let own = reading.usage.saturating_sub(reclaimable);
        let (used, left) = match machine {
            Some(Left {
                bytes,
                used: Some(used),
                ..
            }) if !self.is_limited => (used, bytes),
            word => {
                // Below its own limit there may be less than on the machine.
                let lacking = word.map(|word| self.capacity.saturating_sub(word.bytes));
                let used = own.max(lacking.unwrap_or(0));
                (used, self.capacity.saturating_sub(used))
            }
        };
        // v1 does not make a group's writers wait.
        let unwritten = match word {
            Some(_) if !self.is_machine => reading.dirty_or_writeback.min(reclaimable).min(left),
            _ => 0,
        };
        // The kernel does not tell slab that it can give back from slab in use: inodes of open sockets and pipes, files on tmpfs.
        let slab = match machine {
            Some(_) => 0,
            None => reading.slab_reclaimable.min(reclaimable),
        };
        let slowly = unwritten.saturating_add(slab).min(left);
        let protected = self.protected.min(reading.reclaimable());
        let protected = protected.min(left - slowly);
        // The kernel's view counts where it is another one: memory that grows is urgent although the kubelet finds enough.
        let amount = match (word, self.guard) {
            (Some(word), _) => word.amount,
            (None, Some(guard)) if protected > 0 => guard.amount,
            _ => 0,
        };
        let on_scale = machine.map(|word| word.as_signal_amount(threshold));
        Shortage {
            available: on_scale.map_or(counted, |left| left.min(counted)),
            threshold,
            resolved,
            used,
            dying: 0,
            skew: 0,
            kernel: reading.kernel.min(used),
            unlisted: 0,
            room: Room {
                at_once: left - slowly - protected,
                slowly,
                per_second: WRITES_PER_SECOND,
                swap: usable,
            },
            swap_free: free,
            guard: amount.min(threshold),
            bounded: Bounded::default(),
            in_lists: 0,
        }
    }

    /// What is left beside page cache that is protected, as an amount of the signal: the threshold itself when the guard's amount
    /// is left. The triggers follow it; a pod that is not urgent goes by the kubelet's count alone.
    fn left_unprotected(&self, shortage: &Shortage) -> Option<u64> {
        let room = shortage.room;
        let left = room.at_once.saturating_add(room.slowly);
        let is_seen = self.protected > 0 && shortage.guard > 0;
        is_seen.then(|| left.saturating_add(shortage.threshold - shortage.guard))
    }

    /// What counts as available although it is charged.
    fn discounted(&self, reading: &MemoryReading) -> u64 {
        let active = if self.reclaimable_cache {
            reading.active_file
        } else {
            0
        };
        reading.inactive_file.saturating_add(active)
    }

    /// The usage at which `amount` is no longer available, as the kubelet's notifier computes it
    /// (`threshold_notifier_linux.go`): capacity - amount + inactive_file. The comparison is "less than", so the trigger
    /// is one byte further.
    pub fn usage_limit(&self, amount: u64, discounted: u64) -> u64 {
        self.capacity
            .saturating_sub(amount)
            .saturating_add(discounted)
            .saturating_add(1)
    }
}
