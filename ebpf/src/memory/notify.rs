//! A crossing wakes the agent, which sleeps on the ring buffer; and if that has not come in time, the thread that
//! sleeps on the CPU that charges.
//!
//! The second is not done at once: a write to a perf event with cold caches would make the first wake-up late every
//! time. Only where the next charge is far away, because this one was a huge page, is nothing waited for.

use core::ffi::c_void;

use aya_ebpf::{
    bindings::{
        BPF_F_CURRENT_CPU, BPF_RB_AVAIL_DATA, BPF_RB_CONS_POS, BPF_RB_FORCE_WAKEUP,
        BPF_RB_NO_WAKEUP, BPF_RB_PROD_POS,
    },
    helpers::{bpf_get_current_pid_tgid, bpf_ktime_get_ns, bpf_perf_event_output},
    macros::map,
    maps::{Array, PerfEventArray, RingBuf},
};
use aya_log_ebpf::debug;
use evictd_common::{
    drops::DropCounter,
    memory::{Action, MemoryTrigger, RENOTIFY_AFTER_NS, SLOW_PAGES, TriggerEvent, TriggerState},
};

use crate::{
    drops,
    kstruct::{Address, cgroup_id},
    memcg::current_memcg,
};

/// One page: a wake-up is one record, and there are at most as many as slots between two looks of the reader.
#[map]
static WAKEUPS: RingBuf = RingBuf::with_byte_size(4096, 0);
/// One event for each CPU on which a thread waits. What is written there says nothing: to wake is all that it is for.
#[map]
static CPU_WAKEUPS: PerfEventArray<u64> = PerfEventArray::new(0);
/// 1 after a wake-up, until a slow charge has asked whether its record was read.
#[map]
static WAKEUP_PENDING: Array<u32> = Array::with_max_entries(1, 0);

/// Reports a crossing, once per arming.
#[inline(always)]
pub fn wake(
    slot: u32,
    trigger: &MemoryTrigger,
    state: &mut TriggerState,
    usage: u64,
    charged: Address,
) {
    let Some(mut entry) = WAKEUPS.reserve::<TriggerEvent>(0) else {
        drops::count(DropCounter::Wakeup);
        return;
    };
    // SAFETY: takes no arguments.
    let now = unsafe { bpf_ktime_get_ns() };
    state.woken_ns = now;
    state.tripped_ns = now;
    state.position = WAKEUPS.query(BPF_RB_PROD_POS.into());
    state.tripped = trigger.generation;
    entry.write(TriggerEvent {
        time_ns: now,
        generation: trigger.generation,
        usage,
        limit: trigger.limit,
        // The counter may be another one of its cgroup (`memsw`), from where no way leads back to it.
        cgroup_id: cgroup_id(charged)
            .or_else(|| current_memcg().and_then(cgroup_id))
            .unwrap_or(0),
        tgid: (bpf_get_current_pid_tgid() >> 32) as u32,
        slot,
    });
    let flags = if trigger.action == Action::RecordOnly as u32 {
        BPF_RB_NO_WAKEUP
    } else {
        // Even where the reader has not caught up.
        BPF_RB_FORCE_WAKEUP
    };
    entry.submit(flags.into());
    debug!(
        (),
        "slot {} tripped at {} pages, limit {}", slot, usage, trigger.limit
    );
    if trigger.action == Action::WakeLocal as u32 {
        set_wakeup_pending(1);
    }
}

/// Whether the agent has not read the record of a crossing.
#[inline(always)]
pub fn is_unread(state: &TriggerState) -> bool {
    WAKEUPS.query(BPF_RB_CONS_POS.into()) < state.position
}

/// Whether the agent has not read some record.
#[inline(always)]
fn has_unread() -> bool {
    WAKEUPS.query(BPF_RB_AVAIL_DATA.into()) != 0
}

#[inline(always)]
fn set_wakeup_pending(value: u32) {
    if let Some(pending) = WAKEUP_PENDING.get_ptr_mut(0) {
        // SAFETY: the only slot of an array map; a word that two CPUs write at once is one of the two.
        unsafe { pending.write(value) };
    }
}

/// Called after a charge of `pages` pages. From [`SLOW_PAGES`] on the task clears pages for longer than
/// [`RENOTIFY_AFTER_NS`], so the next charge would come too late: if the last record is unread, the thread of this CPU
/// is woken at once.
#[inline(always)]
pub fn notify_huge_charge(context: *mut c_void, pages: u64) {
    if pages < SLOW_PAGES || WAKEUP_PENDING.get(0).is_none_or(|pending| *pending == 0) {
        return;
    }
    set_wakeup_pending(0);
    if has_unread() {
        wake_here(context);
    }
}

/// For a trigger that has tripped: where the agent has not come in time, the next charge wakes the thread that waits on
/// this CPU. How many pages may be charged without a comparison.
#[inline(always)]
pub fn renotify(context: *mut c_void, trigger: &MemoryTrigger, state: &mut TriggerState) -> u64 {
    if trigger.action != Action::WakeLocal as u32 || state.woken_ns == 0 {
        return u64::MAX;
    }
    // SAFETY: takes no arguments.
    let now = unsafe { bpf_ktime_get_ns() };
    if now.saturating_sub(state.woken_ns) < RENOTIFY_AFTER_NS {
        return 0;
    }
    if !has_unread() {
        state.woken_ns = 0;
        return u64::MAX;
    }
    state.woken_ns = now;
    wake_here(context);
    0
}

/// Wakes the thread that waits on this CPU, if there is one.
#[inline(always)]
fn wake_here(context: *mut c_void) {
    let mut nothing = 0_u64;
    let map = (&raw const CPU_WAKEUPS).cast_mut().cast();
    let data = (&raw mut nothing).cast();
    // SAFETY: the program's own context; a map of the type that the helper wants; eight bytes of the stack. Where no
    // thread waits it answers ENOENT, and where its page is full ENOSPC: then a thread was woken long ago.
    unsafe { bpf_perf_event_output(context, map, BPF_F_CURRENT_CPU, data, 8) };
}
