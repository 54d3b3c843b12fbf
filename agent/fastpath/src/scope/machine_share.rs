//! What the machine's own counters tell of a cgroup's memory where the cgroup's statistics do not.
//!
//! The statistics of a cgroup may be behind its counter. What is missing in them is page cache, as far as the machine's anonymous and
//! shared memory have not grown since nothing was missing: all that may be anonymous is taken to be.
//!
//! v1 counts a cgroup's kernel memory and has no line for the slab in it: dentries and inodes of many files. What its kernel memory
//! and the machine's reclaimable slab both have grown by since memory was last far from short, or since the least of each was seen
//! after that, is taken for the cgroup's reclaimable slab.

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
    /// The least that was seen since memory was far from short, of the cgroup's kernel memory and of the machine's reclaimable slab.
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

    /// Nothing is missing in the statistics at this look. `kernel`: what a v1 cgroup has of kernel memory, where memory is far from
    /// short.
    pub fn settle(&mut self, kernel: Option<u64>) {
        let uses = self.read();
        self.anonymous = uses.map(|uses| uses.anonymous);
        if let (Some(kernel), Some(uses)) = (kernel, uses) {
            self.begin(kernel, uses.reclaimable_slab);
        }
    }

    /// What has come by now may be in use: days after the start the machine's slab has grown by more than any kernel memory, and all
    /// of it would be taken for slab that can be given back.
    fn begin(&mut self, kernel: u64, slab: u64) {
        self.least = Some((kernel, slab));
    }

    /// The page cache in `missing` bytes that are charged and not in the statistics.
    pub fn cache_in(&self, missing: u64) -> u64 {
        self.cache_given(missing, self.read().map(|uses| uses.anonymous))
    }

    fn cache_given(&self, missing: u64, anonymous: Option<u64>) -> u64 {
        let grown = anonymous.zip(self.anonymous);
        let grown = grown.map(|(now, before)| now.saturating_sub(before));
        missing.saturating_sub(grown.unwrap_or(missing))
    }

    /// The reclaimable slab of a v1 cgroup that has so much kernel memory, in bytes.
    pub fn slab_in(&mut self, kernel: u64) -> u64 {
        if let Some((own, _)) = self.least
            && (own..=own.saturating_add(NEW_BYTES)).contains(&kernel)
        {
            return 0;
        }
        match self.read() {
            Some(uses) => self.slab_given(kernel, uses.reclaimable_slab),
            None => 0,
        }
    }

    fn slab_given(&mut self, kernel: u64, slab: u64) -> u64 {
        let (own, machine) = self.least.unwrap_or((kernel, slab));
        let (own, machine) = (own.min(kernel), machine.min(slab));
        self.least = Some((own, machine));
        (kernel - own).min(slab - machine)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn what_is_missing_is_cache_as_far_as_anonymous_memory_has_not_grown() {
        let mut share = MachineShare::default();
        assert_eq!(
            share.cache_given(100, Some(5)),
            0,
            "nothing to compare with"
        );
        share.anonymous = Some(500);
        assert_eq!(share.cache_given(100, Some(500)), 100);
        assert_eq!(share.cache_given(100, Some(530)), 70);
        assert_eq!(share.cache_given(100, Some(900)), 0);
        assert_eq!(share.cache_given(100, Some(400)), 100, "it has shrunk");
        assert_eq!(share.cache_given(100, None), 0, "the machine does not say");
        share.forget();
        assert_eq!(share.cache_given(100, Some(500)), 0);
    }

    #[test]
    fn slab_is_what_both_have_grown_by_since_the_least_of_each() {
        let mut share = MachineShare::default();
        assert_eq!(share.slab_given(50 * MIB, 300 * MIB), 0);
        // Kernel memory alone is no slab that can be given back, and the machine's slab alone is not the cgroup's.
        assert_eq!(share.slab_given(90 * MIB, 300 * MIB), 0);
        assert_eq!(share.slab_given(50 * MIB, 400 * MIB), 0);
        assert_eq!(share.slab_given(90 * MIB, 330 * MIB), 30 * MIB);
        assert_eq!(share.slab_given(90 * MIB, 400 * MIB), 40 * MIB);
        // Less of each than ever is where the next growth begins.
        assert_eq!(share.slab_given(20 * MIB, 250 * MIB), 0);
        assert_eq!(share.slab_given(60 * MIB, 350 * MIB), 40 * MIB);
        // Too little for a look at the machine.
        assert_eq!(share.slab_in(20 * MIB + NEW_BYTES), 0);
    }

    // R40
    #[test]
    fn what_was_there_while_memory_was_far_from_short_is_no_slab() {
        let mut share = MachineShare::default();
        assert_eq!(share.slab_given(50 * MIB, 150 * MIB), 0);
        share.begin(600 * MIB, 2000 * MIB);
        assert_eq!(share.slab_given(640 * MIB, 2010 * MIB), 10 * MIB);
        assert_eq!(share.slab_given(640 * MIB, 2100 * MIB), 40 * MIB);
    }
}
