//! Counts what could not be delivered.

use aya_ebpf::{macros::map, maps::PerCpuArray};
use evictd_common::drops::DropCounter;

#[map]
static DROPS: PerCpuArray<u64> = PerCpuArray::with_max_entries(DropCounter::COUNT, 0);

/// Adds one to a drop counter of this CPU.
#[inline(always)]
pub fn count(counter: DropCounter) {
    if let Some(counter) = DROPS.get_ptr_mut(counter as u32) {
        // SAFETY: a per-CPU slot, which the kernel has just handed out.
        unsafe { *counter += 1 };
    }
}
