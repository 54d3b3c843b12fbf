//! Estimates from the machine's own counters what a cgroup's statistics do not show.
//!
//! The statistics of a cgroup may lag behind its counter. The lag is page cache, as far as the machine's anonymous and
//! shared memory have not grown since there was no lag: all that may be anonymous counts as anonymous.
//!
//! v1 counts a cgroup's kernel memory and has no line for the slab in it: dentries and inodes of many files. The growth
//! that the cgroup's kernel memory and the machine's reclaimable slab have in common counts as the cgroup's reclaimable
//! slab. It is the growth since memory was last far from short, or since the least of each that was seen after that.

use std::path::Path;

use evictd_node::proc::machine::{MemoryUse, MemoryUses};

/// If kernel memory has grown by less, in bytes, the machine's slab is not read.
const NEW_BYTES: u64 = 1 << 20;

/// The machine's counters, and their values at the beginnings of these growths.
#[derive(Debug, Default)]
pub struct MachineEstimate {
    machine: Option<MemoryUse>,
    /// The machine's anonymous and shared memory when there was no lag, in bytes.
    anonymous: Option<u64>,
    /// The least that was seen since memory was far from short, of the cgroup's kernel memory and of the machine's
    /// reclaimable slab.
    least: Option<(u64, u64)>,
}

impl MachineEstimate {
    /// Opens the machine's counters.
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

    /// The statistics do not lag. `kernel`: the kernel memory of a v1 cgroup in bytes, if memory is far from short.
    pub fn set_baseline(&mut self, kernel: Option<u64>) {
        let uses = self.read();
        self.anonymous = uses.map(|uses| uses.anonymous);
        if let (Some(kernel), Some(uses)) = (kernel, uses) {
            self.begin(kernel, uses.reclaimable_slab);
        }
    }

    /// The statistics do not lag, while memory is short: what was given back since is growth once it is taken again.
    pub fn lower_baseline(&mut self) {
        let now = self.read().map(|uses| uses.anonymous);
        self.anonymous = self.anonymous.zip(now).map(|(before, now)| before.min(now));
    }

    /// Begins to count here: days after the start the machine's slab has grown by more than any kernel memory, and all
    /// of that would count as reclaimable.
    fn begin(&mut self, kernel: u64, slab: u64) {
        self.least = Some((kernel, slab));
    }

    /// The page cache in a lag, both in bytes.
    pub fn cache_in(&self, lag: u64) -> u64 {
        self.cache_given(lag, self.read().map(|uses| uses.anonymous))
    }

    fn cache_given(&self, lag: u64, anonymous: Option<u64>) -> u64 {
        let grown = anonymous.zip(self.anonymous);
        let grown = grown.map(|(now, before)| now.saturating_sub(before));
        lag.saturating_sub(grown.unwrap_or(lag))
    }

    /// The reclaimable slab of a v1 cgroup with this kernel memory, both in bytes.
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
        let mut share = MachineEstimate::default();
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
        let mut share = MachineEstimate::default();
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
        let mut share = MachineEstimate::default();
        assert_eq!(share.slab_given(50 * MIB, 150 * MIB), 0);
        share.begin(600 * MIB, 2000 * MIB);
        assert_eq!(share.slab_given(640 * MIB, 2010 * MIB), 10 * MIB);
        assert_eq!(share.slab_given(640 * MIB, 2100 * MIB), 40 * MIB);
    }
}
