//! The memory tripwire: one comparison per charge, in whichever hook this kernel allows.

use aya_ebpf::{
    helpers::{bpf_get_current_pid_tgid, bpf_ktime_get_ns, bpf_send_signal},
    macros::{btf_tracepoint, fexit, kprobe, map},
    maps::{Array, RingBuf},
    programs::{BtfTracePointContext, FExitContext, ProbeContext},
};
use evictd_common::{
    Drop,
    memory::{
        MAX_SCOPES, MAX_TRIPWIRES, NEVER, SLOTS_PER_SCOPE, Trip, Tripwire, TripwireState, action,
        direction,
    },
};

use crate::{
    drops,
    kernel::{Address, ancestor, cgroup_id, current_memcg, memcg_of_counter, usage_of, word},
};

/// `BPF_RB_FORCE_WAKEUP`: wake the reader even when it has not caught up.
const FORCE_WAKEUP: u64 = 2;
const SIGKILL: u32 = 9;

/// One page: a wake-up is one record, and there are at most as many as slots between two looks of the reader.
#[map]
static WAKEUPS: RingBuf = RingBuf::with_byte_size(4096, 0);
#[map]
static TRIPWIRES: Array<Tripwire> = Array::with_max_entries(MAX_TRIPWIRES, 0);
#[map]
static TRIPWIRE_STATE: Array<TripwireState> = Array::with_max_entries(MAX_TRIPWIRES, 0);
/// For each scope the id of the cgroup of its first victim in order, 0 when nobody may be killed from here.
#[map]
static FIRST_VICTIM: Array<u64> = Array::with_max_entries(MAX_SCOPES, 0);

/// `TP_PROTO(struct mem_cgroup *memcg, int item, int val)`, kernel 6.14 and later, once per page.
#[btf_tracepoint(function = "mod_memcg_lruvec_state")]
pub fn memory_lruvec(ctx: BtfTracePointContext) -> i32 {
    let memcg: *const u8 = ctx.arg(0);
    check_all(memcg as Address);
    0
}

/// `bool page_counter_try_charge(struct page_counter *counter, unsigned long nr_pages, struct page_counter **fail)`,
/// once per batch of pages. At its exit the charge is counted, or refused.
#[fexit(function = "page_counter_try_charge")]
pub fn memory_charge_exit(ctx: FExitContext) -> i32 {
    let counter: *const u8 = ctx.arg(0);
    check_all(memcg_of_counter(counter as Address));
    0
}

/// `void page_counter_uncharge(struct page_counter *counter, unsigned long nr_pages)`: what is given back. Attached
/// only while a falling wire is armed, which charges alone would trip late.
#[fexit(function = "page_counter_uncharge")]
pub fn memory_uncharge_exit(ctx: FExitContext) -> i32 {
    let counter: *const u8 = ctx.arg(0);
    check_all(memcg_of_counter(counter as Address));
    0
}

/// The charging function at its entry, for kernels without fexit: sees each charge one batch later.
#[kprobe]
pub fn memory_charge_entry(ctx: ProbeContext) -> u32 {
    if let Some(counter) = ctx.arg::<*const u8>(0) {
        check_all(memcg_of_counter(counter as Address));
    }
    0
}

#[inline(always)]
fn check_all(charged: Address) {
    for slot in 0..MAX_TRIPWIRES {
        let (Some(wire), Some(state)) = (TRIPWIRES.get(slot), TRIPWIRE_STATE.get_ptr_mut(slot))
        else {
            return;
        };
        if wire.generation == 0 {
            return;
        }
        // SAFETY: a slot of an array map, valid for the whole run of the program. Other CPUs may write the same
        // words; each is a cache whose loss costs one more look.
        check(slot, wire, unsafe { &mut *state }, charged);
    }
}

/// Compares one wire. Two CPUs that cross at the same moment may both report it; the agent takes the first.
#[inline(always)]
fn check(slot: u32, wire: &Tripwire, state: &mut TripwireState, charged: Address) {
    if wire.limit == NEVER || (wire.action == action::WAKE && state.tripped == wire.generation) {
        return;
    }
    let counter = if wire.address != 0 {
        wire.address
    } else {
        match watched(wire, state, charged) {
            Some(memcg) => usage_of(memcg),
            None => return,
        }
    };
    let Some(usage) = word(counter) else {
        return;
    };
    let crossed = if wire.direction == direction::FALLING {
        usage <= wire.limit
    } else {
        usage >= wire.limit
    };
    if !crossed {
        return;
    }
    // The memory behind a remembered pointer may have become another cgroup's.
    if wire.address == 0 && cgroup_id(state.memcg) != Some(wire.cgroup_id) {
        state.memcg = 0;
        return;
    }
    if wire.action == action::KILL {
        kill_first_victim(slot / SLOTS_PER_SCOPE, state);
    } else {
        wake(slot, wire, state, usage, charged);
    }
}

/// The watched cgroup: remembered, or found among the ancestors of the one that is charged.
#[inline(always)]
fn watched(wire: &Tripwire, state: &mut TripwireState, charged: Address) -> Option<Address> {
    if state.memcg != 0 && state.cgroup_id == wire.cgroup_id {
        return Some(state.memcg);
    }
    if state.stranger == charged && state.stranger_generation == wire.generation {
        return None;
    }
    let found = ancestor(charged, wire.cgroup_id);
    if found == 0 {
        state.stranger = charged;
        state.stranger_generation = wire.generation;
        return None;
    }
    state.memcg = found;
    state.cgroup_id = wire.cgroup_id;
    Some(found)
}

#[inline(always)]
fn wake(slot: u32, wire: &Tripwire, state: &mut TripwireState, usage: u64, charged: Address) {
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
    entry.submit(FORCE_WAKEUP);
}

/// R41: the task that allocates past the floor dies here when it belongs to the first victim. It is the current
/// task's own cgroup that counts: a charge may be made on behalf of another one.
#[inline(always)]
fn kill_first_victim(scope: u32, state: &mut TripwireState) {
    let Some(&victim) = FIRST_VICTIM.get(scope) else {
        return;
    };
    if victim == 0 {
        return;
    }
    let Some(memcg) = current_memcg() else {
        return;
    };
    if ancestor(memcg, victim) != 0 {
        // SAFETY: acts on the current task only.
        if unsafe { bpf_send_signal(SIGKILL) } == 0 {
            state.kills += 1;
        }
    }
}
