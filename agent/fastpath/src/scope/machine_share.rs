//! What the machine's own counters tell of a cgroup's memory where the cgroup's statistics do not.
//!
//! The statistics of a cgroup may be behind its counter. What is missing in them is page cache, as far as the machine's anonymous and
//! shared memory have not grown since nothing was missing: all that may be anonymous is taken to be.
//!
//! v1 counts a cgroup's kernel memory and has no line for the slab in it: dentries and inodes of many files. What its kernel memory
//! and the machine's reclaimable slab both have grown by since the least of each was seen is taken for the cgroup's reclaimable slab.

use std::path::Path;

use evictd_node::proc::machine::{MemoryUse, MemoryUses};

/// Kernel memory that has grown by less is not worth a look at the machine's, in bytes.
const NEW_BYTES: u64 = 1 << 20;

/// What is known of it.
#[derive(Debug, Default)]
pub struct MachineShare {
    machine: Option<MemoryUse>,
    /// The machine's anonymous and shared memory when nothing was missing.
    anonymous: Option<u64>,
    /// The least that was seen, of the cgroup's kernel memory and of the machine's reclaimable slab.
    least: Option<(u64, u64)>,
}

impl MachineShare {
    /// Opens what it reads.
    pub fn open() -> Self {
        Self {
            machine: MemoryUse::open(Path::new("/proc")).ok(),
            ..Self::default()
        }
    }

    /// The cgroup is another one.
    pub fn forget(&mut self) {
        (self.anonymous, self.least) = (None, None);
    }

    fn read(&self) -> Option<MemoryUses> {
        self.machine.as_ref()?.read().ok()
    }

    /// Nothing is missing in the statistics at this look.
    pub fn settle(&mut self) {
        self.anonymous = self.read().map(|uses| uses.anonymous);
    }

    /// The page cache in `missing` bytes that are charged and not in the statistics.
    pub fn cache_in(&self, missing: u64) -> u64 {
        let grown = self
            .read()
            .zip(self.anonymous)
            .map(|(now, before)| now.anonymous.saturating_sub(before));
        missing.saturating_sub(grown.unwrap_or(missing))
    }

    /// The reclaimable slab of a v1 cgroup that has so much kernel memory, in bytes.
    pub fn slab_in(&mut self, kernel: u64) -> u64 {
        if let Some((own, _)) = self.least
            && (own..=own.saturating_add(NEW_BYTES)).contains(&kernel)
        {
            return 0;
        }
        let Some(slab) = self.read().map(|uses| uses.reclaimable_slab) else {
            return 0;
        };
        let (own, machine) = self.least.unwrap_or((kernel, slab));
        let (own, machine) = (own.min(kernel), machine.min(slab));
        self.least = Some((own, machine));
        (kernel - own).min(slab - machine)
    }
}
