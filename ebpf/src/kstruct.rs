//! Reading kernel structs at offsets that the agent resolves from BTF and writes into these globals before loading.

use aya_ebpf::{Global, helpers::bpf_probe_read_kernel};

/// `cgroup_subsys_state.cgroup`; the css is the first member of every `mem_cgroup`.
#[unsafe(no_mangle)]
pub static CSS_CGROUP: Global<u32> = Global::new(0);
/// `cgroup_subsys_state.parent`.
#[unsafe(no_mangle)]
pub static CSS_PARENT: Global<u32> = Global::new(0);
/// `cgroup.kn`.
#[unsafe(no_mangle)]
pub static CGROUP_KN: Global<u32> = Global::new(0);
/// `kernfs_node.id`.
#[unsafe(no_mangle)]
pub static KERNFS_NODE_ID: Global<u32> = Global::new(0);
/// `task_struct.cgroups`.
#[unsafe(no_mangle)]
static TASK_CGROUPS: Global<u32> = Global::new(0);
/// `css_set.subsys[memory_cgrp_id]`.
#[unsafe(no_mangle)]
static CSS_SET_MEMORY: Global<u32> = Global::new(0);

/// The common header of every tracepoint record, in bytes; the first field of its own follows.
pub const FIRST_FIELD: usize = 8;

/// Address of a kernel object.
pub type Address = u64;

/// Reads one 64-bit word; `None` when the address cannot be read.
#[inline(always)]
pub fn word(address: Address) -> Option<u64> {
    // SAFETY: the helper checks the address itself and fails instead of faulting.
    unsafe { bpf_probe_read_kernel(address as *const u64) }.ok()
}

/// A typed argument as a number. The verifier follows the type of a pointer, and looks once more at all that is done
/// with it where other addresses, which are numbers, take its place.
#[inline(always)]
pub fn untyped(pointer: *const u8) -> Option<Address> {
    word(&raw const pointer as Address)
}

/// Reads the word at a member's offset.
#[inline(always)]
pub fn field(object: Address, offset: &Global<u32>) -> Option<u64> {
    word(object.wrapping_add(u64::from(offset.load())))
}

/// The id of a cgroup as userspace sees it: the inode number of its directory.
#[inline(always)]
pub fn cgroup_id(memcg: Address) -> Option<u64> {
    field(
        field(field(memcg, &CSS_CGROUP)?, &CGROUP_KN)?,
        &KERNFS_NODE_ID,
    )
}

/// The memory cgroup of a task.
#[inline(always)]
pub fn memcg_of(task: Address) -> Option<Address> {
    field(field(task, &TASK_CGROUPS)?, &CSS_SET_MEMORY)
}
