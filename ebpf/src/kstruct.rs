//! Reading kernel structs at offsets that the agent resolves from BTF and writes into these globals before loading.

use aya_ebpf::{
    Global,
    helpers::{bpf_get_current_task, bpf_probe_read_kernel},
};

/// `mem_cgroup.memory`, in bytes.
#[unsafe(no_mangle)]
static MEM_CGROUP_MEMORY: Global<u32> = Global::new(0);
/// `page_counter.usage`.
#[unsafe(no_mangle)]
static PAGE_COUNTER_USAGE: Global<u32> = Global::new(0);
/// `page_counter.max`.
#[unsafe(no_mangle)]
static PAGE_COUNTER_MAX: Global<u32> = Global::new(0);
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

/// Cgroups that a search goes through, from the charged one up: the verifier wants a bound. One that lies higher is not found. Then a
/// trigger on it is not compared at this charge, unless a charge less deep has found it before, and a pod is no victim.
pub const MAX_DEPTH: usize = 16;

/// Address of a kernel object.
pub type Address = u64;

/// Reads one 64-bit word; `None` when the address cannot be read.
#[inline(always)]
pub fn word(address: Address) -> Option<u64> {
    // SAFETY: the helper checks the address itself and fails instead of faulting.
    unsafe { bpf_probe_read_kernel(address as *const u64) }.ok()
}

/// Reads the word at a member's offset.
#[inline(always)]
pub fn field(object: Address, offset: &Global<u32>) -> Option<u64> {
    word(object.wrapping_add(u64::from(offset.load())))
}

/// Address of the `usage` counter of a `mem_cgroup`.
#[inline(always)]
pub fn usage_of(memcg: Address) -> Address {
    memcg + u64::from(MEM_CGROUP_MEMORY.load()) + u64::from(PAGE_COUNTER_USAGE.load())
}

/// Address of the limit of a `mem_cgroup`.
#[inline(always)]
pub fn limit_of(memcg: Address) -> Address {
    memcg + u64::from(MEM_CGROUP_MEMORY.load()) + u64::from(PAGE_COUNTER_MAX.load())
}

/// The `mem_cgroup` around a `page_counter` that is its `memory` member.
#[inline(always)]
pub fn memcg_of_counter(counter: Address) -> Address {
    counter.wrapping_sub(u64::from(MEM_CGROUP_MEMORY.load()))
}

/// The id of a cgroup as userspace sees it: the inode number of its directory.
#[inline(always)]
pub fn cgroup_id(memcg: Address) -> Option<u64> {
    field(
        field(field(memcg, &CSS_CGROUP)?, &CGROUP_KN)?,
        &KERNFS_NODE_ID,
    )
}

/// The nearest cgroup with this id, the memcg itself or one above it.
#[inline(never)]
pub fn ancestor(memcg: Address, id: u64) -> Address {
    let mut at = memcg;
    for _ in 0..MAX_DEPTH {
        if at == 0 {
            return 0;
        }
        if cgroup_id(at) == Some(id) {
            return at;
        }
        let Some(parent) = field(at, &CSS_PARENT) else {
            return 0;
        };
        at = parent;
    }
    0
}

/// The memory cgroup of a task.
#[inline(always)]
pub fn memcg_of(task: Address) -> Option<Address> {
    field(field(task, &TASK_CGROUPS)?, &CSS_SET_MEMORY)
}

/// The memory cgroup of the current task.
#[inline(always)]
pub fn current_memcg() -> Option<Address> {
    // SAFETY: takes no arguments; every program type here may call it.
    memcg_of(unsafe { bpf_get_current_task() })
}
