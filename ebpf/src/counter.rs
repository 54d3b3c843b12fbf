//! Counts with triggers: add, compare, wake once per arming.

use aya_ebpf::{
    bindings::{BPF_NOEXIST, BPF_RB_FORCE_WAKEUP},
    helpers::{bpf_get_current_pid_tgid, bpf_ktime_get_ns},
    maps::{Array, HashMap, RingBuf},
};
use evictd_common::{
    counter::{CgroupCount, CounterTrigger, CounterTriggerEvent, Direction, TRIGGERS},
    drops::DropCounter,
};

use crate::drops;

/// The maps of one topic.
pub struct EventCounter {
    /// What programs have counted, an index per thing.
    pub counts: &'static Array<i64>,
    /// [`TRIGGERS`] per count.
    pub triggers: &'static Array<CounterTrigger>,
    /// The generation that tripped last, per trigger.
    pub tripped: &'static Array<u64>,
    /// Where crossings go.
    pub wakeups: &'static RingBuf,
}

/// Adds without losing what other CPUs add at the same time. Every kernel with BPF has `lock *(u64 *) +=`. Atomics that
/// fetch need 5.12, and `core::sync::atomic` has neither on this target.
#[inline(always)]
fn add(at: *mut i64, delta: i64) {
    // SAFETY: `at` points into a map value, as every caller has just been told by a lookup.
    unsafe {
        core::arch::asm!("lock *(u64 *)({at} + 0) += {delta}", at = in(reg) at, delta = in(reg) delta);
    }
}

impl EventCounter {
    /// Adds to a count and compares its triggers. Two CPUs that cross at the same moment may both report it; the agent
    /// takes the first.
    #[inline(always)]
    pub fn count(&self, index: u32, delta: i64, cgroup_id: u64) {
        let Some(at) = self.counts.get_ptr_mut(index) else {
            return;
        };
        add(at, delta);
        // SAFETY: a slot of an array map. It holds at least what this CPU has added; more if others did, too.
        let count = unsafe { at.read_volatile() };
        for trigger in 0..TRIGGERS {
            let slot = index * TRIGGERS + trigger;
            let Some(trigger) = self.triggers.get(slot) else {
                return;
            };
            if trigger.generation == 0 {
                return;
            }
            let crossed = if trigger.direction == Direction::Falling as u32 {
                count <= trigger.limit
            } else {
                count >= trigger.limit
            };
            if crossed {
                self.wake(slot, trigger, count, cgroup_id);
            }
        }
    }

    #[inline(always)]
    fn wake(&self, slot: u32, trigger: &CounterTrigger, count: i64, cgroup_id: u64) {
        let Some(tripped) = self.tripped.get_ptr_mut(slot) else {
            return;
        };
        // SAFETY: a slot of an array map; only programs write it.
        if unsafe { *tripped } == trigger.generation {
            return;
        }
        let Some(mut entry) = self.wakeups.reserve::<CounterTriggerEvent>(0) else {
            drops::count(DropCounter::Wakeup);
            return;
        };
        // SAFETY: as above.
        unsafe { *tripped = trigger.generation };
        entry.write(CounterTriggerEvent {
            // SAFETY: takes no arguments.
            time_ns: unsafe { bpf_ktime_get_ns() },
            generation: trigger.generation,
            count,
            limit: trigger.limit,
            cgroup_id,
            tgid: (bpf_get_current_pid_tgid() >> 32) as u32,
            slot,
        });
        // Even where the reader has not caught up.
        entry.submit(BPF_RB_FORCE_WAKEUP.into());
    }
}

/// Adds to a cgroup's count and makes one where there is none. Only for a task that is in the cgroup: a count made
/// for a cgroup that is already removed would stay for ever.
#[inline(always)]
pub fn add_to_cgroup<K>(counts: &HashMap<K, CgroupCount>, key: &K, made: i64, gone: i64) {
    if add_to_known_cgroup(counts, key, made, gone) {
        return;
    }
    let count = CgroupCount { made, gone };
    // Another CPU may have inserted it meanwhile.
    if counts.insert(key, count, BPF_NOEXIST.into()).is_err()
        && !add_to_known_cgroup(counts, key, made, gone)
    {
        drops::count(DropCounter::CgroupCount);
    }
}

/// Adds to a count that is there; tells whether it is.
#[inline(always)]
pub fn add_to_known_cgroup<K>(
    counts: &HashMap<K, CgroupCount>,
    key: &K,
    made: i64,
    gone: i64,
) -> bool {
    let Some(at) = counts.get_ptr_mut(key) else {
        return false;
    };
    // SAFETY: a value of a preallocated hash map: were it removed meanwhile, the memory would still be a value's.
    let count = unsafe { &mut *at };
    if made != 0 {
        add(&raw mut count.made, made);
    }
    if gone != 0 {
        add(&raw mut count.gone, gone);
    }
    true
}

/// Removes a cgroup's count. With `up` its counts are first added to the parent's, so that a pod keeps the counts of
/// its removed containers.
#[inline(always)]
pub fn merge_into_parent<K>(counts: &HashMap<K, CgroupCount>, from: &K, to: &K, up: bool) {
    let Some(at) = counts.get_ptr_mut(from) else {
        return;
    };
    // SAFETY: a value of a map; two words, copied before the removal.
    let count = unsafe { *at };
    if up {
        add_to_cgroup(counts, to, count.made, count.gone);
    }
    // Removed by another CPU meanwhile is removed.
    let _ = counts.remove(from);
}
