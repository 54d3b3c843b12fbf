//! What a pod uses: the numbers of the kubelet's summary API that decisions rest on.

use super::signal::Resource;

/// The use of one pod. A number that is missing counts as zero, as in the kubelet; a pod without any numbers at all
/// is one that has no `PodUsage`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodUsage {
    /// The working set of the pod's cgroup, in bytes.
    pub memory_working_set: Option<u64>,
    /// The part of it that outlives the processes, in bytes: tmpfs of memory-backed volumes, shared memory.
    pub memory_shared: u64,
    /// Number of processes that run in the pod.
    pub processes: Option<u64>,
    /// Bytes of local disk that the pod uses in all; `None` as long as its files were not walked, or not all of them
    /// could be looked at.
    pub ephemeral_storage: Option<u64>,
    /// When the walk of its files began, in nanoseconds of CLOCK_MONOTONIC; `None` for numbers of the present moment.
    pub walk_began: Option<u64>,
    /// Whether that walk has rested for long: what it has found may never have existed together, and no limit of the pod's own is
    /// exceeded by it.
    pub is_uncertain: bool,
    /// Whether hooks count the inodes that the pod makes, so that those are of the present moment.
    pub counts_inodes: bool,
    /// The containers that have numbers.
    pub containers: Vec<ContainerUsage>,
    /// The volumes that have numbers.
    pub volumes: Vec<VolumeUsage>,
}

impl PodUsage {
    /// When the walk began that has found what the pod uses of a resource, in nanoseconds of CLOCK_MONOTONIC; `None` for
    /// numbers of the present moment.
    pub fn walk_of(&self, resource: Resource) -> Option<u64> {
        let is_walked = match resource {
            Resource::EphemeralStorage => true,
            Resource::Inodes => !self.counts_inodes,
            Resource::Memory | Resource::Pids => false,
        };
        self.walk_began.filter(|_| is_walked)
    }

    /// Bytes of all files that have numbers.
    pub fn bytes_of_files(&self) -> u64 {
        let containers = self.containers.iter().flat_map(|c| [c.rootfs, c.logs]);
        let volumes = self.volumes.iter().map(|v| v.fs);
        let each = containers.chain(volumes).map(|fs| fs.bytes.unwrap_or(0));
        each.fold(0, u64::saturating_add)
    }
}

/// The use of one container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerUsage {
    /// Name within the pod.
    pub name: String,
    /// Working set of the container, in bytes; `None` where it was not measured.
    pub memory_working_set: Option<u64>,
    /// Usage of the container's writable layer.
    pub rootfs: FsUsage,
    /// Usage of the container's logs.
    pub logs: FsUsage,
}

/// The use of one volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeUsage {
    /// Name within the pod.
    pub name: String,
    /// Use of the volume's files.
    pub fs: FsUsage,
}

/// Use of a filesystem.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FsUsage {
    /// Bytes.
    pub bytes: Option<u64>,
    /// Inodes.
    pub inodes: Option<u64>,
}

impl FsUsage {
    /// Adds the use of other files; a number that is missing counts as zero.
    pub fn add(&mut self, other: Self) {
        let sum = |one: Option<u64>, other: Option<u64>| {
            Some(one.unwrap_or(0).saturating_add(other.unwrap_or(0)))
        };
        self.bytes = sum(self.bytes, other.bytes);
        self.inodes = sum(self.inodes, other.inodes);
    }
}

/// One reading, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryReading {
    /// Bytes charged to the cgroup and to those below it.
    pub usage: u64,
    /// Page cache on the inactive list, which the kubelet does not count as used.
    pub inactive_file: u64,
    /// Page cache on the active list, which the kubelet counts as used.
    pub active_file: u64,
    /// Page cache that has to be written, or is being written, before the kernel can take it back.
    pub dirty_or_writeback: u64,
    /// Shared memory and tmpfs: it outlives the processes that filled it.
    pub shmem: u64,
    /// Huge pages of hugetlbfs, where the cgroup is charged for them (v2's mount option `memory_hugetlb_accounting`, told
    /// since 6.13): part of `usage`. 0 elsewhere.
    pub hugetlb: u64,
    /// What of `usage` is no memory of the scope that it is read for ([`of_scope`](Self::of_scope)).
    pub left_out: u64,
    /// Slab that the kernel can reclaim: dentries and inodes. 0 on v1, which has no line for it.
    pub slab_reclaimable: u64,
    /// Memory that holds what counts as swapped out, too: the swap cache, which is being written or was read back, and what
    /// zswap keeps compressed. 0 where the kernel does not tell.
    pub swap_cached: u64,
    /// Kernel memory on v1, where its counter is read (`MemoryCgroup::with_kernel_counter`); 0 elsewhere.
    pub kernel: u64,
    /// What is charged and is in no line of `memory.stat`: kernel memory where it has no line (v1), what CPUs have
    /// charged in advance, and what the statistics are behind the counter
    /// (docs/decisions/0022-how-old-a-number-can-be.md). 0 for a root, whose usage is made of the statistics.
    pub uncategorized: u64,
}

impl MemoryReading {
    /// usage - inactive_file, at least 0 (cadvisor `setMemoryStats`).
    pub fn working_set(&self) -> u64 {
        self.usage.saturating_sub(self.inactive_file)
    }

    /// What the kernel can take back without swapping: page cache on both lists, to be written or not, and slab. Page
    /// cache that is locked in memory, or is shared memory, is on neither list.
    pub fn reclaimable(&self) -> u64 {
        let cache = self.inactive_file.saturating_add(self.active_file);
        cache.saturating_add(self.slab_reclaimable).min(self.usage)
    }

    /// What only the end of its processes gives back to the scope, in bytes: all that is not
    /// [`reclaimable`](Self::reclaimable).
    pub fn unreclaimable(&self) -> u64 {
        let all = self.usage - self.reclaimable();
        all.saturating_sub(self.left_out)
    }

    /// A pod's memory as it counts for a scope: huge pages only `at_limit`, for a cgroup with one. The machine is counted
    /// without them ([`MachineMemory`]).
    #[must_use]
    pub fn of_scope(self, at_limit: bool) -> Self {
        let left_out = match at_limit {
            true => 0,
            false => self.hugetlb,
        };
        Self { left_out, ..self }
    }
}

/// The machine's memory at one moment, in bytes. What a balloon takes, hot-plugged memory and huge pages that are set
/// aside change both by the same amount, or, for a balloon that is given back, none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineMemory {
    /// `MemTotal` without huge pages of hugetlbfs and what the host has taken.
    pub total: u64,
    /// `MemAvailable`, with what raised watermarks keep back.
    pub available: u64,
    /// What is neither free nor page cache nor reclaimable slab. `MemAvailable` leaves a part of these out, which grows with
    /// page cache as long as there is little of it: its fall is no growth.
    pub unreclaimable: u64,
    /// Available as well, in the CPUs' lists of free pages; 0 where these were not read.
    pub pcp_free: u64,
}

/// Swap of a scope, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwapUse {
    /// What the scope has swapped out and is not in its memory as well; the machine, where it does not tell.
    pub swapped: u64,
    /// Memory that further swapping can free, as far as the pods may.
    pub usable: u64,
}
