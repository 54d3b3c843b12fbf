//! Memory cgroups and their counters, as the memory object reads them.

use aya_ebpf::{Global, helpers::bpf_get_current_task};

use crate::kstruct::{Address, CSS_PARENT, cgroup_id, field, memcg_of};

/// `mem_cgroup.memory`, in bytes.
#[unsafe(no_mangle)]
static MEM_CGROUP_MEMORY: Global<u32> = Global::new(0);
/// `page_counter.usage`.
#[unsafe(no_mangle)]
static PAGE_COUNTER_USAGE: Global<u32> = Global::new(0);
/// `page_counter.max`.
#[unsafe(no_mangle)]
static PAGE_COUNTER_MAX: Global<u32> = Global::new(0);
/// `page_counter.high`.
#[unsafe(no_mangle)]
static PAGE_COUNTER_HIGH: Global<u32> = Global::new(0);

/// Cgroups that a search goes through, from the charged one up: the verifier wants a bound. One that lies higher is not
/// found. Then a trigger on it is not compared at this charge, unless a charge less deep has found it before, and a pod
/// is no victim.
pub const MAX_DEPTH: usize = 16;

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

/// Address of `memory.high` of a `mem_cgroup`, in pages.
#[inline(always)]
pub fn high_of(memcg: Address) -> Address {
    memcg + u64::from(MEM_CGROUP_MEMORY.load()) + u64::from(PAGE_COUNTER_HIGH.load())
}

/// The `mem_cgroup` around a `page_counter` that is its `memory` member.
#[inline(always)]
pub fn memcg_of_counter(counter: Address) -> Address {
    counter.wrapping_sub(u64::from(MEM_CGROUP_MEMORY.load()))
}

/// The nearest cgroup with this id, the memcg itself or one above it.
///
/// A global function, as others with numbers alone: the verifier looks at it once, and not at each call.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn ancestor(memcg: Address, id: u64) -> Address {
    let mut at = memcg;
    for _ in 0..MAX_DEPTH {
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

/// The memory cgroup of the current task.
#[inline(always)]
pub fn current_memcg() -> Option<Address> {
    // SAFETY: takes no arguments; every program type here may call it.
    memcg_of(unsafe { bpf_get_current_task() })
}
