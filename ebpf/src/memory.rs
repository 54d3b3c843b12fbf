//! The memory trigger: one comparison per charge, in whichever hook this kernel allows.

use core::ffi::c_void;

use aya_ebpf::{
    EbpfContext as _, Global,
    macros::{btf_tracepoint, fexit, kprobe, map},
    maps::{Array, PerCpuArray},
    programs::{BtfTracePointContext, FExitContext, ProbeContext},
};
use evictd_common::memory::{
    Action, Direction, MAX_TRIGGERS, MemoryTrigger, NEVER, SLOTS_PER_SCOPE, TriggerState,
    skip_allowance,
};

mod guard;
mod notify;

use crate::{
    kstruct::{Address, cgroup_id, untyped, word},
    memcg::{ancestor, memcg_of_counter, usage_of},
};
use notify::{notify_huge_charge, renotify, wake};

#[map]
static TRIGGERS: Array<MemoryTrigger> = Array::with_max_entries(MAX_TRIGGERS, 0);
#[map]
static TRIGGER_STATE: Array<TriggerState> = Array::with_max_entries(MAX_TRIGGERS, 0);
/// How often the agent has set a trigger, all slots together.
#[map]
static GENERATION: Array<u64> = Array::with_max_entries(1, 0);
/// The slots with a falling trigger, a bit each.
#[map]
static FALLING: Array<u64> = Array::with_max_entries(1, 0);
#[map]
static SKIP_ALLOWANCE: PerCpuArray<SkipAllowance> = PerCpuArray::with_max_entries(1, 0);
/// [`slack_shift`](evictd_common::memory::slack_shift) of this machine.
#[unsafe(no_mangle)]
static SLACK_SHIFT: Global<u32> = Global::new(0);

/// What this CPU may let pass without a comparison.
///
/// The per-page hook fires several times for a page, and to compare costs more than all the rest of it. So where the
/// nearest limit is far away, a comparison grants some pages: as many as every CPU may charge and still leave half of
/// the distance, and no more than one batch. Close to a limit nothing is granted, and each event compares.
#[repr(C)]
#[derive(Clone, Copy)]
struct SkipAllowance {
    /// [`GENERATION`] when it was granted: it does not outlive a trigger.
    generation: u64,
    /// Pages.
    left: u64,
    /// How far the nearest limit is, in pages, while the triggers are compared. Here and not in a register: values that
    /// the verifier follows through the loop over the triggers multiply what it has to look at, until it gives up.
    nearest: u64,
}

impl SkipAllowance {
    /// Takes from it, if there is enough.
    #[inline(always)]
    fn consume(&mut self, pages: u64, generation: u64) -> bool {
        let enough = self.generation == generation && self.left >= pages;
        if enough {
            self.left -= pages;
        }
        enough
    }

    /// Takes note of the distance of one trigger, in pages.
    #[inline(always)]
    fn note(&mut self, distance: u64) {
        let nearest = &raw mut self.nearest;
        // SAFETY: both are of a field that is borrowed here; volatile, or the compiler would keep it in a register.
        unsafe {
            if distance < nearest.read_volatile() {
                nearest.write_volatile(distance);
            }
        }
    }

    /// Grants what the distances allow that were noted.
    #[inline(always)]
    fn refill(&mut self, generation: u64) {
        self.left = skip_allowance(self.nearest, SLACK_SHIFT.load() & 31);
        self.generation = generation;
    }
}

/// `TP_PROTO(struct mem_cgroup *memcg, int item, int val)`, kernel 6.14 and later, once per page and item.
#[btf_tracepoint(function = "mod_memcg_lruvec_state")]
pub fn memory_lruvec(ctx: BtfTracePointContext) -> i32 {
    let value: i32 = ctx.arg(2);
    let (Some(allowance), Some(&generation)) = (SKIP_ALLOWANCE.get_ptr_mut(0), GENERATION.get(0))
    else {
        return 0;
    };
    // SAFETY: a per-CPU slot. Two tasks on this CPU may interleave their writes; the result is one of two allowances
    // that were both granted.
    let allowance = unsafe { &mut *allowance };
    if allowance.consume(u64::from(value.unsigned_abs()), generation) {
        return 0;
    }
    let memcg: *const u8 = ctx.arg(0);
    allowance.nearest = u64::MAX;
    let Some(memcg) = untyped(memcg) else {
        return 0;
    };
    check_all(ctx.as_ptr(), memcg, |distance| allowance.note(distance));
    // An arming in between makes the next event compare again.
    allowance.refill(generation);
    notify_huge_charge(ctx.as_ptr(), u64::try_from(value).unwrap_or(0));
    0
}

/// `bool page_counter_try_charge(struct page_counter *counter, unsigned long nr_pages, struct page_counter **fail)`,
/// once per batch of pages. At its exit the charge is counted, or refused.
#[fexit(function = "page_counter_try_charge")]
pub fn memory_charge_exit(ctx: FExitContext) -> i32 {
    let counter: *const u8 = ctx.arg(0);
    let Some(counter) = untyped(counter) else {
        return 0;
    };
    check_all(ctx.as_ptr(), memcg_of_counter(counter), |_| {});
    notify_huge_charge(ctx.as_ptr(), ctx.arg(1));
    0
}

/// `void page_counter_uncharge(struct page_counter *counter, unsigned long nr_pages)`: what is given back, for falling
/// triggers, which charges alone would trip late. Attached as long as the agent runs: to attach or to detach it waits for
/// tasks of the whole machine.
#[fexit(function = "page_counter_uncharge")]
pub fn memory_uncharge_exit(ctx: FExitContext) -> i32 {
    if FALLING.get(0).is_none_or(|&slots| slots == 0) {
        return 0;
    }
    let counter: *const u8 = ctx.arg(0);
    let Some(counter) = untyped(counter) else {
        return 0;
    };
    check_all(ctx.as_ptr(), memcg_of_counter(counter), |_| {});
    0
}

/// The charging function at its entry, for kernels without fexit: sees each charge one batch later.
#[kprobe]
pub fn memory_charge_entry(ctx: ProbeContext) -> u32 {
    if let Some(counter) = ctx.arg::<*const u8>(0) {
        check_all(ctx.as_ptr(), memcg_of_counter(counter as Address), |_| {});
        notify_huge_charge(ctx.as_ptr(), ctx.arg(1).unwrap_or(0));
    }
    0
}

/// A charge, and what was read for it so far.
struct Charge {
    context: *mut c_void,
    /// The `mem_cgroup` that is charged.
    memcg: Address,
    /// The counter that was read last, and what it showed: the triggers of one scope look at the same.
    counter: Address,
    usage: u64,
}

/// Compares every trigger; `note` hears how far each limit is, in pages.
#[inline(always)]
fn check_all(context: *mut c_void, memcg: Address, mut note: impl FnMut(u64)) {
    let Some(&no_counter) = GENERATION.get(0) else {
        return note(0);
    };
    let mut charge = Charge {
        context,
        memcg,
        // Not the address of any counter, and not a constant: for each constant the verifier would walk the loop once
        // more.
        counter: no_counter,
        usage: no_counter,
    };
    for slot in 0..MAX_TRIGGERS {
        let (Some(trigger), Some(state)) = (TRIGGERS.get(slot), TRIGGER_STATE.get_ptr_mut(slot))
        else {
            return note(0);
        };
        if trigger.generation == 0 {
            break;
        }
        // SAFETY: a slot of an array map, valid for the whole run of the program. Other CPUs may write the same
        // words; each is a cache whose loss costs one more comparison.
        let state = unsafe { &mut *state };
        note(check(&mut charge, slot, trigger, state));
    }
    guard::kill_without_agent();
}

/// Compares one trigger; its distance in pages. Two CPUs that cross at the same moment may both report it; the agent
/// takes the first.
#[inline(always)]
fn check(charge: &mut Charge, slot: u32, trigger: &MemoryTrigger, state: &mut TriggerState) -> u64 {
    if trigger.limit == NEVER {
        return u64::MAX;
    }
    if trigger.action != Action::Kill as u32 && state.tripped == trigger.generation {
        return renotify(charge.context, trigger, state);
    }
    let Some(memcg) = watched(trigger, state, charge.memcg) else {
        return 0;
    };
    let counter = usage_of(memcg);
    if charge.counter != counter {
        let Some(usage) = word(counter) else {
            return 0;
        };
        (charge.counter, charge.usage) = (counter, usage);
    }
    let usage = charge.usage;
    let distance = if trigger.direction == Direction::Falling as u32 {
        usage.saturating_sub(trigger.limit)
    } else {
        trigger.limit.saturating_sub(usage)
    };
    if distance != 0 {
        return distance;
    }
    // The memory behind a remembered pointer may have become another cgroup's.
    if cgroup_id(state.memcg) != Some(trigger.cgroup_id) {
        state.memcg = 0;
        return 0;
    }
    if trigger.action == Action::Kill as u32 {
        guard::kill_at_floor(slot / SLOTS_PER_SCOPE);
    } else {
        wake(slot, trigger, state, usage, charge.memcg);
    }
    0
}

/// The watched cgroup: remembered, or found among the ancestors of the one that is charged.
#[inline(always)]
fn watched(trigger: &MemoryTrigger, state: &mut TriggerState, charged: Address) -> Option<Address> {
    if state.memcg != 0 && state.cgroup_id == trigger.cgroup_id {
        return Some(state.memcg);
    }
    if state.last_miss == charged && state.last_miss_generation == trigger.generation {
        return None;
    }
    let found = ancestor(charged, trigger.cgroup_id);
    if found == 0 {
        state.last_miss = charged;
        state.last_miss_generation = trigger.generation;
        return None;
    }
    state.memcg = found;
    state.cgroup_id = trigger.cgroup_id;
    Some(found)
}
