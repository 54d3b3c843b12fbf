//! The cgroup that counts as the node, or the pods' cgroup below it, and what must stay available in it.

mod guard;

use std::{io, os::unix::ffi::OsStrExt as _, path::Path};

use evictd_engine::{
    Signal,
    growth::Room,
    model::usage::MemoryReading,
    pace::{Bounded, Shortage},
};
use evictd_sys::fs::PathError;

use crate::{
    cgroup::{
        memory::{MemoryCgroup, Version},
        swap::{FreeSwap, SwapRoom},
    },
    pods::table::Entry,
};
use guard::Left;

pub use guard::MemoryGuard;

/// The kernel needs so much less memory to keep track of page cache than the page cache is: a buffer head for each page.
const KERNEL_OF_CACHE: u64 = 32;
/// How fast page cache is taken to be written and memory to be swapped out, in bytes per second: a slow disk.
const WRITES_PER_SECOND: u64 = 32 << 20;

/// Amounts of the scope's signal, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Less than this available is the hard threshold.
    pub threshold: u64,
    /// Once met, it stays met until this much is available; at least `threshold`.
    pub resolved: u64,
    /// Less than this available, and the kernel itself kills.
    pub floor: Option<u64>,
}

impl Limits {
    /// Whether all of them can be kept with this capacity, in bytes.
    ///
    /// # Errors
    /// An amount that is not below the capacity.
    pub fn check(&self, capacity: u64) -> Result<(), ScopeError> {
        let checks = [
            ("evictionHard[memory.available]", Some(self.threshold)),
            (
                "evictionMinimumReclaim[memory.available]",
                Some(self.resolved),
            ),
            ("kernelFloor.memory.available", self.floor),
        ];
        for (field, value) in checks {
            if let Some(value) = value.filter(|v| *v >= capacity) {
                return Err(ScopeError::AboveCapacity {
                    field,
                    value,
                    capacity,
                });
            }
        }
        Ok(())
    }
}

/// A scope with its capacity.
#[derive(Debug)]
pub struct Scope {
    cgroup: MemoryCgroup,
    signal: Signal,
    capacity: u64,
    limits: Limits,
    /// The machine's usage is not what the root's page counter counts.
    is_machine: bool,
    /// The OOM killer acts at its own limit, if not before.
    is_limited: bool,
    /// Page cache on the active list counts as available too.
    reclaimable_cache: bool,
    guard: Option<MemoryGuard>,
    /// Where it may be swapped out to.
    swap: Option<SwapRoom>,
    /// All pods together can swap out so many bytes more, and may.
    pod_swap: u64,
    /// So many bytes of pods' page cache the kernel will not take back (`memory.min`).
    protected: u64,
}

/// A threshold that can never be kept.
#[derive(Debug, thiserror::Error)]
pub enum ScopeError {
    /// A file of the cgroup.
    #[error("scope.cgroup: {0}")]
    Cgroup(#[from] PathError),
    /// The cgroup has no limit, so that nothing can run short in it.
    #[error("scope.cgroup: {path}: has no memory limit, so that its capacity is not known")]
    NoLimit {
        /// The directory.
        path: String,
    },
    /// More is to be kept available than there is.
    #[error("{field}: {value}: is not below the capacity of {capacity} bytes")]
    AboveCapacity {
        /// The configuration's field.
        field: &'static str,
        /// The amount, in bytes.
        value: u64,
        /// The capacity, in bytes.
        capacity: u64,
    },
}

impl Scope {
    /// Takes a cgroup with a memory limit, which is its capacity. `limits` turns that into amounts.
    ///
    /// # Errors
    /// No limit, or an amount that is not below the capacity.
    pub fn new(
        cgroup: MemoryCgroup,
        limits: impl FnOnce(u64) -> Limits,
        reclaimable_cache: bool,
    ) -> Result<Self, ScopeError> {
        let capacity = capacity(&cgroup)?;
        let signal = Signal::MemoryAvailable;
        Self::with_capacity(cgroup, signal, capacity, limits, reclaimable_cache)
    }

    /// Takes the cgroup of all pods below the node's scope. Its memory limit is the capacity of
    /// `allocatableMemory.available` (the kubelet's `addAllocatableThresholds` and its summary of the container `pods`).
    ///
    /// # Errors
    /// As [`Scope::new`].
    pub fn of_pods(
        cgroup: MemoryCgroup,
        limits: impl FnOnce(u64) -> Limits,
        reclaimable_cache: bool,
    ) -> Result<Self, ScopeError> {
        let capacity = capacity(&cgroup)?;
        let signal = Signal::AllocatableMemoryAvailable;
        Self::with_capacity(cgroup, signal, capacity, limits, reclaimable_cache)
    }

    /// Takes the machine: the root of the memory hierarchy as it is mounted, with the machine's memory in bytes. In a container that
    /// plays a node the root is the container's cgroup, which may have less ([`machine_capacity`]).
    ///
    /// # Errors
    /// The limit cannot be read, or an amount is not below the capacity.
    pub fn machine(
        root: MemoryCgroup,
        total: u64,
        limits: impl FnOnce(u64) -> Limits,
        reclaimable_cache: bool,
    ) -> Result<Self, ScopeError> {
        let signal = Signal::MemoryAvailable;
        let capacity = machine_capacity(&root, total)?;
        let mut scope = Self::with_capacity(root, signal, capacity, limits, reclaimable_cache)?;
        scope.is_limited = capacity < total;
        // A limited cgroup of v1 runs short of page cache that has to be written, which the machine's word says nothing of.
        scope.is_machine = !scope.is_limited || scope.cgroup.version() == Version::V2;
        Ok(scope)
    }

    fn with_capacity(
        cgroup: MemoryCgroup,
        signal: Signal,
        capacity: u64,
        limits: impl FnOnce(u64) -> Limits,
        reclaimable_cache: bool,
    ) -> Result<Self, ScopeError> {
        let limits = limits(capacity);
        limits.check(capacity)?;
        Ok(Self {
            swap: SwapRoom::open(&cgroup),
            pod_swap: u64::MAX,
            protected: 0,
            cgroup: cgroup.with_kernel_counter(),
            signal,
            capacity,
            limits,
            is_machine: false,
            is_limited: true,
            reclaimable_cache,
            guard: None,
        })
    }

    /// From now on less than the guard's amount of what it knows is less than the hard threshold too, whatever the kubelet's
    /// count says (docs/differences.md): the OOM killer goes by what the kernel has.
    #[must_use]
    pub fn guarded(mut self, guard: MemoryGuard) -> Self {
        self.guard = Some(guard);
        self
    }

    /// Whether it is the machine, whose root's page counter has to be compared with the usage before a trigger can be set on it:
    /// it counts the charges of all cgroups, kernel memory too, while the usage is what the kubelet takes for it.
    pub fn is_machine(&self) -> bool {
        self.is_machine
    }

    /// Whether the OOM killer acts at a limit of its own: what its counter counts is exact then, and page cache that only statistics
    /// show may be something else by now.
    pub fn is_limited(&self) -> bool {
        self.is_limited
    }

    /// Whether another scope is this one with another capacity, so that what was seen of one is true of the other.
    pub fn is_resized(&self, other: &Self) -> bool {
        let what = |scope: &Self| (scope.cgroup.id(), scope.is_machine, scope.is_limited);
        what(self) == what(other)
    }

    /// The signal that it stands for.
    pub fn signal(&self) -> Signal {
        self.signal
    }

    /// Whether a pod's memory is counted here. All pods are the node's.
    pub fn holds(&self, pod: &Entry) -> bool {
        if self.signal == Signal::MemoryAvailable {
            return true;
        }
        // As bytes: this is asked for every pod on the fast path.
        fn bytes(cgroup: &MemoryCgroup) -> &[u8] {
            cgroup.path().as_os_str().as_bytes()
        }
        let rest = bytes(&pod.memory).strip_prefix(bytes(&self.cgroup));
        rest.is_some_and(|rest| rest.first() == Some(&b'/'))
    }

    /// The cgroup.
    pub fn cgroup(&self) -> &MemoryCgroup {
        &self.cgroup
    }

    /// A directory of cgroup v1's memory hierarchy, where one of these is in it.
    pub fn memory_v1(scopes: &[Self]) -> Option<&Path> {
        let mut cgroups = scopes.iter().map(Self::cgroup);
        let v1 = cgroups.find(|cgroup| cgroup.version() == Version::V1);
        v1.map(MemoryCgroup::path)
    }

    /// Its capacity in bytes.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// The amounts.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Other amounts from now on, which [`Limits::check`] has found to be possible.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Where there is swap, asks how many bytes more all pods together can swap out and may.
    pub fn limit_swap(&mut self, left: impl FnOnce() -> u64) {
        if self.swap.is_some() {
            self.pod_swap = left();
        }
    }

    /// So many bytes of page cache below are protected from now on.
    pub fn protect(&mut self, bytes: u64) {
        self.protected = bytes;
    }

    /// Reads it now. Does not allocate.
    ///
    /// # Errors
    /// ENODEV when the cgroup was removed.
    pub fn sample(&self) -> io::Result<MemorySample> {
        let reading = self.cgroup.read()?;
        let discounted = self.reclaimable_cache(&reading);
        let counted = self
            .capacity
            .saturating_sub(reading.usage.saturating_sub(discounted));
        let free = self.capacity.saturating_sub(reading.usage);
        let guard = self.guard.as_ref();
        let written = discounted.saturating_sub(reading.dirty_or_writeback);
        let word = guard.and_then(|guard| guard.left(free, written));
        let cache = reading.reclaimable();
        // On v1 kernel memory is not told apart; the part that keeps track of page cache goes with it.
        let of_cache = reading.kernel.min(cache / KERNEL_OF_CACHE);
        let reclaimable = match self.is_machine {
            // A root's usage is made of anonymous memory and page cache.
            true if self.cgroup.is_root() => cache.saturating_sub(reading.slab_reclaimable),
            true => cache,
            false => cache.saturating_add(of_cache),
        };
        let shortage = self.shortage(&reading, reclaimable, counted, word);
        let left = word.map(|word| word.on_the_scale_of(self.limits.threshold));
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
        Ok(MemorySample {
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
        })
    }

    /// What is short, as the pace of evictions is decided by it.
    fn shortage(
        &self,
        reading: &MemoryReading,
        reclaimable: u64,
        counted: u64,
        word: Option<Left>,
    ) -> Shortage {
        let Limits {
            threshold,
            resolved,
            ..
        } = self.limits;
        let swap = self.swap.as_ref().map(|swap| swap.read(self.pod_swap));
        let FreeSwap { free, usable } = swap.unwrap_or_default();
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
        let amount = match (word, &self.guard) {
            (Some(word), _) => word.amount,
            (None, Some(guard)) if protected > 0 => guard.amount(),
            _ => 0,
        };
        let on_scale = machine.map(|word| word.on_the_scale_of(threshold));
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
    fn reclaimable_cache(&self, reading: &MemoryReading) -> u64 {
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

/// What the machine's root may use, in bytes, of all the memory of the machine: a container that plays a node may have a limit, at which the
/// OOM killer acts. The kubelet in it does not see that (cadvisor `GetMachineMemoryCapacity`).
///
/// # Errors
/// The limit cannot be read.
pub fn machine_capacity(root: &MemoryCgroup, total: u64) -> Result<u64, PathError> {
    let limit = root.limit()?;
    Ok(limit.map_or(total, |limit| limit.min(total)))
}

/// The limit of a cgroup, which is its capacity, in bytes.
///
/// # Errors
/// It cannot be read, or there is none.
pub fn capacity(cgroup: &MemoryCgroup) -> Result<u64, ScopeError> {
    cgroup.limit()?.ok_or_else(|| ScopeError::NoLimit {
        path: cgroup.path().display().to_string(),
    })
}

/// The scope at one moment, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemorySample {
    /// All that is charged, and what the guard adds.
    pub usage: u64,
    /// The part of it that counts as available.
    pub reclaimable_cache: u64,
    /// capacity - usage + discounted.
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
    pub fn has_unlisted_cache(&mut self, bytes: u64) {
        self.has_reclaimable(bytes);
        self.shortage.unlisted = self.shortage.unlisted.saturating_sub(bytes);
    }

    /// So much of its kernel memory turned out to be reclaimable, in bytes.
    pub fn has_reclaimable_slab(&mut self, bytes: u64) {
        self.has_reclaimable(bytes);
        self.shortage.kernel = self.shortage.kernel.saturating_sub(bytes);
    }

    fn has_reclaimable(&mut self, bytes: u64) {
        let bytes = bytes.min(self.shortage.used);
        self.reclaimable += bytes;
        self.shortage.used -= bytes;
        self.shortage.room.at_once += bytes;
    }
}

#[cfg(test)]
mod tests;
