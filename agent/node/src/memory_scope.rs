//! The cgroup that counts as the node, or the pods' cgroup below it, and what must stay available in it.

use std::{fs::File, io, os::unix::ffi::OsStrExt as _, path::Path};

use evictd_engine::{
    Signal,
    accounting::{
        Accounting, Amount, MemoryGuard, MemoryGuardSource, MemorySample, MemoryThresholds,
    },
};
use evictd_sys::fs::PathError;

use crate::{
    cgroup::{
        memory::{MemoryCgroup, Version, read_limit},
        swap::SwapHeadroom,
    },
    pods::table::PodEntry,
    proc::{
        machine::{MemAvailable, PcpLists},
        watermarks::DefaultWatermarks,
    },
};

/// A scope with its files held open.
#[derive(Debug)]
pub struct Scope {
    cgroup: MemoryCgroup,
    signal: Signal,
    /// By the limit that the cgroup had when it was read last.
    accounting: Accounting,
    /// Capacity and amounts as they were given. The cgroup may have another limit by now.
    given: (u64, MemoryThresholds),
    /// File of the cgroup's own limit, where that is the capacity.
    limit: Option<File>,
    /// The most that the capacity can be, in bytes, whatever that limit.
    largest: u64,
    /// Reader of what the kernel itself has available, where that guards the machine.
    machine: Option<MemAvailable>,
    /// Beside `machine`, if that is read.
    pcp_lists: Option<PcpLists>,
    counts_pcp_free: bool,
    /// Swap that the scope may use; `None` where there is none.
    swap: Option<SwapHeadroom>,
    /// All pods together can swap out so many bytes more, and may.
    pod_swap: u64,
}

/// Kind of scope that a cgroup is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScopeKind {
    /// The node: its memory limit is the capacity.
    Node,
    /// All pods below the node's scope.
    Pods {
        /// Memory limit in bytes of the cgroup of all pods, the capacity of `allocatableMemory.available` (the
        /// kubelet's `addAllocatableThresholds` and its summary of the container `pods`).
        limit: u64,
    },
    /// The machine: the root of the memory hierarchy as it is mounted. In a container that is a node (kind, k3d) the
    /// root is the container's cgroup, which may have less ([`machine_capacity`]).
    Machine {
        /// The machine's memory, in bytes.
        total: u64,
    },
}

/// Why a cgroup cannot be a scope.
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
    /// An amount that is to be kept available is not below the capacity.
    #[error("{amount:?}: {value}: is not below the capacity of {capacity} bytes")]
    AboveCapacity {
        /// Amount that is not below the capacity.
        amount: Amount,
        /// The amount, in bytes.
        value: u64,
        /// The capacity, in bytes.
        capacity: u64,
    },
}

impl Scope {
    /// Takes a cgroup for what `kind` says; `thresholds` turns its capacity into amounts.
    ///
    /// # Errors
    /// No limit where one is needed, or an amount that is not below the capacity.
    pub fn open(
        cgroup: MemoryCgroup,
        kind: ScopeKind,
        thresholds: impl FnOnce(u64) -> MemoryThresholds,
        counts_active_file: bool,
    ) -> Result<Self, ScopeError> {
        let (signal, capacity, is_limited, largest) = match kind {
            ScopeKind::Node => (Signal::MemoryAvailable, capacity(&cgroup)?, true, u64::MAX),
            ScopeKind::Pods { limit } => {
                (Signal::AllocatableMemoryAvailable, limit, true, u64::MAX)
            }
            ScopeKind::Machine { total } => {
                let capacity = machine_capacity(&cgroup, total)?;
                (Signal::MemoryAvailable, capacity, capacity < total, total)
            }
        };
        // A limited cgroup of v1 runs short of page cache that has to be written, which the machine's word says nothing
        // of.
        let is_machine = matches!(kind, ScopeKind::Machine { .. })
            && (!is_limited || cgroup.version() == Version::V2);
        let thresholds = thresholds(capacity);
        if let Some((amount, value)) = thresholds.above(capacity) {
            return Err(ScopeError::AboveCapacity {
                amount,
                value,
                capacity,
            });
        }
        let is_root = cgroup.is_root();
        Ok(Self {
            swap: SwapHeadroom::open(&cgroup),
            pod_swap: u64::MAX,
            given: (capacity, thresholds),
            limit: is_limited.then(|| cgroup.open_limit()).flatten(),
            largest,
            cgroup: cgroup.with_kernel_counter(),
            signal,
            machine: None,
            pcp_lists: None,
            counts_pcp_free: false,
            accounting: Accounting {
                capacity,
                thresholds,
                is_machine,
                is_limited,
                is_root,
                counts_active_file,
                guard: None,
                protected_cache: 0,
            },
        })
    }

    /// From now on less than so many bytes of what the kernel itself has is less than the hard threshold too, whatever
    /// the kubelet's count says (docs/differences.md): the OOM killer goes by what the kernel has. On the machine that
    /// is `MemAvailable`; in a cgroup it depends on whether the kernel has MGLRU ([`has_mglru`]).
    ///
    /// [`has_mglru`]: crate::proc::machine::has_mglru
    #[must_use]
    pub fn guarded(mut self, amount: u64, machine: Option<MemAvailable>, has_mglru: bool) -> Self {
        let source = match (&machine, self.cgroup.version()) {
            (Some(_), _) => MemoryGuardSource::Machine,
            (None, Version::V2) if !has_mglru => MemoryGuardSource::Counted,
            (None, version) => MemoryGuardSource::Written {
                is_awaited: version == Version::V1 && !has_mglru,
            },
        };
        // Of a limited scope they are no headroom: its own limit may be the nearer one.
        let counts_lists = machine.is_some() && !self.is_limited();
        self.pcp_lists = counts_lists
            .then(|| PcpLists::open(Path::new("/proc")))
            .flatten();
        self.accounting.guard = Some(MemoryGuard { source, amount });
        self.machine = machine;
        self
    }

    /// Whether it is the machine, whose root's page counter has to be compared with the usage before a trigger can be
    /// set on it: it counts the charges of all cgroups, kernel memory too, while the usage is what the kubelet takes
    /// for it.
    pub fn is_machine(&self) -> bool {
        self.accounting.is_machine
    }

    /// Whether the OOM killer acts at this cgroup's own limit. Its counter is exact then; page cache seen in statistics
    /// may already be something else.
    pub fn is_limited(&self) -> bool {
        self.accounting.is_limited
    }

    /// Whether another scope is this one with another capacity, so that what was seen of one is true of the other.
    pub fn is_resized(&self, other: &Self) -> bool {
        let what = |scope: &Self| (scope.cgroup.id(), scope.is_machine(), scope.is_limited());
        what(self) == what(other)
    }

    /// The signal that it stands for.
    pub fn signal(&self) -> Signal {
        self.signal
    }

    /// Whether a pod's memory is counted here. All pods are the node's.
    pub fn holds(&self, pod: &PodEntry) -> bool {
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

    /// Capacity of the scope, in bytes.
    pub fn capacity(&self) -> u64 {
        self.accounting.capacity
    }

    /// The capacity that it was given, in bytes, and the amounts.
    pub fn given(&self) -> (u64, MemoryThresholds) {
        self.given
    }

    /// Reads the limit of its cgroup, where that is the capacity: from the next sample on it counts, before another scope
    /// is handed over for it. Returns whether it is another one than before. Does not allocate.
    pub fn follow_limit(&mut self) -> bool {
        let Some(limit) = self.limit.as_ref().and_then(|file| read_limit(file).ok()) else {
            return false;
        };
        let (capacity, thresholds) = self.given;
        let is_of_pods = self.signal == Signal::AllocatableMemoryAvailable;
        // As for a new scope: less is in force of what the pods' limit cannot keep, and a node keeps its capacity.
        let (capacity, thresholds) = match limit.map(|limit| limit.min(self.largest)) {
            Some(limit) if thresholds.above(limit).is_none() => (limit, thresholds),
            Some(limit) if is_of_pods => (limit, thresholds.within(limit)),
            // Nothing can run short.
            None if is_of_pods => (capacity, MemoryThresholds::default()),
            _ => (capacity, thresholds),
        };
        let accounting = &mut self.accounting;
        let is_other = (accounting.capacity, accounting.thresholds) != (capacity, thresholds);
        (accounting.capacity, accounting.thresholds) = (capacity, thresholds);
        is_other
    }

    /// The amounts.
    pub fn thresholds(&self) -> MemoryThresholds {
        self.accounting.thresholds
    }

    /// The usage in bytes at which `amount` is no longer available ([`Accounting::usage_limit`]).
    pub fn usage_limit(&self, amount: u64, reclaimable_cache: u64) -> u64 {
        self.accounting.usage_limit(amount, reclaimable_cache)
    }

    /// Replaces the amounts, none of which may be [`MemoryThresholds::above`] the capacity.
    pub fn set_thresholds(&mut self, thresholds: MemoryThresholds) {
        self.given.1 = thresholds;
        self.accounting.thresholds = thresholds;
    }

    /// Where there is swap, asks how many bytes more all pods together can swap out and may; `left` is told whether the
    /// OOM killer acts at the scope's own limit.
    pub fn limit_swap(&mut self, left: impl FnOnce(bool) -> u64) {
        if self.swap.is_some() {
            self.pod_swap = left(self.is_limited());
        }
    }

    /// Sets the bytes of page cache below that are protected from now on.
    pub fn set_protected_cache(&mut self, bytes: u64) {
        self.accounting.protected_cache = bytes;
    }

    /// What raised watermarks keep back counts as available from now on, where the machine's memory guards.
    pub fn set_default_watermarks(&mut self, defaults: Option<DefaultWatermarks>) {
        if let Some(machine) = &mut self.machine {
            machine.set_default_watermarks(defaults);
        }
    }

    /// Whether what lies in the CPUs' lists of free pages counts as available on the machine. It takes time to read: a
    /// scope counts it as long as its threshold is met, or would be without it.
    pub fn count_pcp_free(&mut self, counts: bool) {
        self.counts_pcp_free = counts;
    }

    /// What lies in the CPUs' lists of free pages at this moment, in bytes, as far as the last sample has not counted
    /// it.
    pub fn uncounted_pcp_free(&self) -> u64 {
        let lists = self.pcp_lists.as_ref().filter(|_| !self.counts_pcp_free);
        lists.and_then(|lists| lists.read().ok()).unwrap_or(0)
    }

    /// Reads it now. Does not allocate.
    ///
    /// # Errors
    /// ENODEV when the cgroup was removed.
    pub fn sample(&self) -> io::Result<MemorySample> {
        let reading = self.cgroup.read()?;
        let machine = self.machine.as_ref();
        let mut machine = machine.and_then(|machine| machine.read().ok());
        if let (Some(machine), Some(lists), true) =
            (&mut machine, &self.pcp_lists, self.counts_pcp_free)
        {
            machine.pcp_free = lists.read().map_or(0, |bytes| bytes.max(1));
        }
        let read = |swap: &SwapHeadroom| swap.read(self.pod_swap, reading.swap_cached);
        let swap = self.swap.as_ref().map(read).unwrap_or_default();
        Ok(self.accounting.sample(&reading, machine, swap))
    }
}

/// What the machine's root may use, in bytes, of all the memory of the machine: a container that is a node (kind, k3d)
/// may have a limit, at which the OOM killer acts. The kubelet in it does not see that (cadvisor
/// `GetMachineMemoryCapacity`).
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

#[cfg(test)]
mod tests;
