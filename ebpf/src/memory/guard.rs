//! Kills from here: the first victim past the floor, and ranked victims when no agent is there to decide.
//!
//! It is always the allocating task that dies, and only if its own cgroup is a victim's: a charge may be made on behalf
//! of another one. No statistics are read here, and a counter does not tell page cache from other memory. So there are
//! two proofs of a shortage that page cache cannot give: a task that holds by itself all that was left at the agent's
//! last look ([`VictimLimits::min_task_pages`]), and a reclaim that gives nothing back to a pod that has grown since.

mod reclaim;

use aya_ebpf::{
    bindings::BPF_ANY,
    helpers::{bpf_get_current_task, bpf_ktime_get_ns, bpf_send_signal},
    macros::map,
    maps::{Array, HashMap},
};
use aya_log_ebpf::debug;
use evictd_common::memory::{
    ABSENT_AFTER_NS, Action, AgentLease, KernelKillRecord, MAX_SCOPES, MAX_VICTIMS,
    SLOTS_PER_SCOPE, VictimKey, VictimLimits, slot,
};

use super::{TRIGGER_STATE, TRIGGERS, notify::is_unread};
use crate::{
    kstruct::{Address, CSS_PARENT, cgroup_id, field, word},
    memcg::{MAX_DEPTH, current_memcg, usage_of},
    oom::{anonymous_memory, shared_memory},
};

const SIGKILL: u32 = 9;

#[map]
static PINNED_GUARD: Array<AgentLease> = Array::with_max_entries(1, 0);
/// The pods that may be killed from.
#[map]
static VICTIMS: HashMap<VictimKey, VictimLimits> =
    HashMap::with_max_entries(MAX_SCOPES * MAX_VICTIMS, 0);
/// The last kill from each pod, by the id of its cgroup: the agent tells of it and ends what is left of the pod.
#[map]
static KILLED: HashMap<u64, KernelKillRecord> =
    HashMap::with_max_entries(MAX_SCOPES * MAX_VICTIMS, 0);

/// The `mem_cgroup` of the current task's pod, if that is one of the victims; else 0.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn victim(scope: u64) -> Address {
    let mut at = current_memcg().unwrap_or(0);
    for _ in 0..MAX_DEPTH {
        if limits(scope, cgroup_id(at).unwrap_or(0)).is_some() {
            return at;
        }
        let Some(parent) = field(at, &CSS_PARENT) else {
            return 0;
        };
        at = parent;
    }
    0
}

/// What the agent has left for a pod; `None` when it is none of the victims.
#[inline(always)]
fn limits(scope: u64, cgroup_id: u64) -> Option<&'static VictimLimits> {
    let key = VictimKey { cgroup_id, scope };
    // SAFETY: an entry that the agent replaces meanwhile is one of the two, or another victim's.
    unsafe { VICTIMS.get(&key) }
}

/// Whether the current task, one of this pod's, holds at least [`VictimLimits::min_task_pages`] pages that only its end
/// gives back. Shared memory counts once per mapping, so the sum is bounded by [`VictimLimits::max_task_pages`] and by
/// the pod's charge. 1 if it does, else 0.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn task_holds_min_pages(scope: u64, pod: Address) -> u64 {
    let Some(victim) = limits(scope, cgroup_id(pod).unwrap_or(0)) else {
        return 0;
    };
    // SAFETY: takes no arguments; every program type here may call it.
    let task = unsafe { bpf_get_current_task() };
    let (anonymous, shared) = (anonymous_memory(task), shared_memory(task));
    let mut held = anonymous + shared;
    if held > victim.max_task_pages {
        held = anonymous;
    }
    let charged = word(usage_of(pod)).unwrap_or(0);
    u64::from(held >= victim.min_task_pages && charged >= victim.min_task_pages)
}

#[inline(always)]
fn now_ns() -> u64 {
    // SAFETY: takes no arguments.
    unsafe { bpf_ktime_get_ns() }
}

/// Pages by which a scope's counter is past [`MemoryTrigger::full`]; 0 where it cannot be read.
///
/// [`MemoryTrigger::full`]: evictd_common::memory::MemoryTrigger::full
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn pages_past(scope: u64) -> u64 {
    let at = scope as u32 * SLOTS_PER_SCOPE + slot::HARD;
    let (Some(trigger), Some(state)) = (TRIGGERS.get(at), TRIGGER_STATE.get(at)) else {
        return 0;
    };
    let usage = word(usage_of(state.memcg)).unwrap_or(0);
    usage.saturating_sub(trigger.full).min(u64::from(u32::MAX))
}

/// Kills the current task, which is one of this pod's; whether the signal is sent: not to a kernel thread, nor to a task that
/// is exiting.
#[inline(always)]
fn kill(scope: u64, cgroup_id: u64) -> bool {
    // SAFETY: acts on the current task only.
    let refused = unsafe { bpf_send_signal(SIGKILL) };
    if refused != 0 {
        debug!(
            (),
            "the signal to a task of cgroup {} is refused: {}", cgroup_id, refused
        );
        return false;
    }
    let kill = KernelKillRecord {
        time_ns: now_ns(),
        scope: scope as u32,
        pages_past: pages_past(scope) as u32,
    };
    debug!(
        (),
        "killed a task of cgroup {} for scope {}", cgroup_id, scope
    );
    // The last one: what is left of an earlier one may have ended and run anew. A map that is full loses what it would
    // tell, and nothing else.
    if KILLED.insert(&cgroup_id, &kill, BPF_ANY.into()).is_err() {
        debug!((), "the kill of cgroup {} is not noted", cgroup_id);
    }
    true
}

/// Past the floor the first victim dies, whether an agent is there or not, by the task that has used up what was left.
/// An agent moves the floor with the page cache, and may be late: then the counter is past it although memory is not
/// short.
#[inline(always)]
pub fn kill_at_floor(scope: u32) {
    let pod = victim(u64::from(scope));
    let id = cgroup_id(pod).unwrap_or(0);
    let is_first = limits(u64::from(scope), id).is_some_and(|limits| limits.rank == 0);
    if !is_first || task_holds_min_pages(u64::from(scope), pod) == 0 {
        return;
    }
    if let Some(guard) = PINNED_GUARD.get(0)
        && guard.expires_ns != 0
        && now_ns() >= guard.trusted_ns
    {
        return;
    }
    kill(u64::from(scope), id);
}

/// When the agent is stopped or gone: kills the current task if its pod is a victim, usage is past
/// [`MemoryTrigger::full`], and the task holds at least [`VictimLimits::min_task_pages`].
///
/// [`MemoryTrigger::full`]: evictd_common::memory::MemoryTrigger::full
#[inline(never)]
pub fn kill_without_agent() {
    let Some(guard) = PINNED_GUARD.get(0) else {
        return;
    };
    let now = now_ns();
    let is_over = now >= guard.lease_ns;
    if now >= guard.trusted_ns {
        return;
    }
    for scope in 0..MAX_SCOPES {
        let at = scope * SLOTS_PER_SCOPE + slot::HARD;
        let (Some(trigger), Some(state)) = (TRIGGERS.get(at), TRIGGER_STATE.get(at)) else {
            return;
        };
        let is_late = trigger.action == Action::WakeLocal as u32
            && state.tripped == trigger.generation
            && now.saturating_sub(state.tripped_ns) >= ABSENT_AFTER_NS
            && is_unread(state);
        if trigger.full == 0 || !(is_over || is_late) {
            continue;
        }
        // The memory behind a remembered pointer may have become another cgroup's.
        if cgroup_id(state.memcg) != Some(trigger.cgroup_id)
            || word(usage_of(state.memcg)).unwrap_or(0) < trigger.full
        {
            continue;
        }
        let pod = victim(u64::from(scope));
        if pod != 0 && task_holds_min_pages(u64::from(scope), pod) != 0 {
            kill(u64::from(scope), cgroup_id(pod).unwrap_or(0));
        }
    }
}
