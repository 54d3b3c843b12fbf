//! A crossing wakes the agent: on the CPU where it happened, if somebody waits there.

use core::ffi::c_void;

use aya_ebpf::{
    Global,
    helpers::{
        bpf_get_current_pid_tgid, bpf_get_current_task, bpf_ktime_get_ns, bpf_perf_event_output,
    },
    macros::map,
    maps::{PerfEventArray, RingBuf},
};
use evictd_common::{
    Drop,
    memory::{Trip, Tripwire, TripwireState, WAKER_PRIORITY, action},
};

use crate::{
    drops,
    kernel::{Address, cgroup_id, current_memcg, field},
};

/// `BPF_RB_NO_WAKEUP`: the record waits for a reader that is woken in another way.
const NO_WAKEUP: u64 = 1;
/// `BPF_RB_FORCE_WAKEUP`: wake the reader even when it has not caught up.
const FORCE_WAKEUP: u64 = 2;
/// `BPF_F_CURRENT_CPU`.
const CURRENT_CPU: u64 = 0xffff_ffff;
/// What the kernel calls the priority of a SCHED_FIFO thread: `MAX_RT_PRIO - 1` less the one that userspace gives.
const WAKER_PRIO: i32 = 99 - WAKER_PRIORITY;

/// One page: a wake-up is one record, and there are at most as many as slots between two looks of the reader.
#[map]
static WAKEUPS: RingBuf = RingBuf::with_byte_size(4096, 0);
/// One event per CPU that has a waker. What is written there says nothing: to wake is all that it is for.
#[map]
static WAKERS: PerfEventArray<u64> = PerfEventArray::new(0);
/// `task_struct.prio`.
#[unsafe(no_mangle)]
static TASK_PRIO: Global<u32> = Global::new(0);

/// Reports a crossing, once per arming.
#[inline(always)]
pub fn wake(
    context: *mut c_void,
    slot: u32,
    wire: &Tripwire,
    state: &mut TripwireState,
    usage: u64,
    charged: Address,
) {
    let Some(mut entry) = WAKEUPS.reserve::<Trip>(0) else {
        drops::count(Drop::Wakeup);
        return;
    };
    state.tripped = wire.generation;
    entry.write(Trip {
        // SAFETY: takes no arguments.
        time_ns: unsafe { bpf_ktime_get_ns() },
        generation: wire.generation,
        usage,
        limit: wire.limit,
        // The counter may be another one of its cgroup (`memsw`), from where no way leads back to it.
        cgroup_id: cgroup_id(charged)
            .or_else(|| current_memcg().and_then(cgroup_id))
            .unwrap_or(0),
        tgid: (bpf_get_current_pid_tgid() >> 32) as u32,
        slot,
    });
    let notes = wire.action == action::NOTE;
    if !notes && !gives_way() {
        entry.submit(FORCE_WAKEUP);
        return;
    }
    // It has to lie there before the waker runs, which may be before the next instruction.
    entry.submit(NO_WAKEUP);
    if !notes && !wake_here(context) {
        // A record that nobody sees, for its wake-up.
        match WAKEUPS.reserve::<u64>(0) {
            Some(empty) => empty.discard(FORCE_WAKEUP),
            None => drops::count(Drop::Wakeup),
        }
    }
}

/// Whether the waker would be given this CPU by the task that has it.
#[inline(always)]
fn gives_way() -> bool {
    // SAFETY: takes no arguments.
    let task = unsafe { bpf_get_current_task() };
    field(task, &TASK_PRIO).is_some_and(|prio| prio as i32 > WAKER_PRIO)
}

/// Wakes this CPU's waker; false where there is none.
#[inline(always)]
fn wake_here(context: *mut c_void) -> bool {
    let mut nothing = 0_u64;
    let map = (&raw const WAKERS).cast_mut().cast();
    let data = (&raw mut nothing).cast();
    // SAFETY: the program's own context; a map of the type that the helper wants; eight bytes of the stack.
    unsafe { bpf_perf_event_output(context, map, CURRENT_CPU, data, 8) == 0 }
}
