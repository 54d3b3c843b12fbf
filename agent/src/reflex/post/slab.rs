//! Slab of a v1 cgroup that the kernel can reclaim: dentries and inodes of many files.
//!
//! v1 counts a cgroup's kernel memory and has no line for the slab in it. The machine tells how much slab it can reclaim. What
//! both have grown by since the least of each was seen is taken for the cgroup's reclaimable slab.

use std::path::Path;

use crate::observe::machine::ReclaimableSlab;

/// Kernel memory that has grown by less is not worth a look at the machine's, in bytes.
const NEW_BYTES: u64 = 1 << 20;

/// What is known of it.
#[derive(Debug, Default)]
pub struct SlabShare {
    machine: Option<ReclaimableSlab>,
    /// The least that was seen, of the cgroup's kernel memory and of the machine's reclaimable slab.
    least: Option<(u64, u64)>,
}

impl SlabShare {
    /// The cgroup's part in bytes, when it has so much kernel memory. Opens a file at the first look only.
    pub fn of(&mut self, kernel: u64) -> u64 {
        if self.machine.is_none() && self.least.is_none() {
            self.machine = ReclaimableSlab::open(Path::new("/proc")).ok();
        }
        let slab = || self.machine.as_ref().and_then(|slab| slab.read().ok());
        let least = match self.least {
            Some((own, _)) if kernel <= own.saturating_add(NEW_BYTES) && kernel >= own => {
                return 0;
            }
            least => least,
        };
        let Some(slab) = slab() else {
            self.least.get_or_insert((kernel, 0));
            return 0;
        };
        let (own, machine) = least.unwrap_or((kernel, slab));
        let (own, machine) = (own.min(kernel), machine.min(slab));
        self.least = Some((own, machine));
        (kernel - own).min(slab - machine)
    }
}
