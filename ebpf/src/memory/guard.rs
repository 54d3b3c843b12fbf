//! Kills from here: the first victim past the floor, and ranked victims at the threshold when no agent is there to decide.
//!
//! It is always the allocating task that dies, and only if its own cgroup is a victim's: a charge may be made on behalf of
//! another one. No statistics are read here, and the counter does not tell page cache from other memory. So a task dies only
//! if it holds anonymous or shared memory itself: a writer of files does not. What a task holds also tells of a shortage that the
//! counter hides, because page cache goes as the task grows.

use aya_ebpf::{
    helpers::{bpf_get_current_task, bpf_ktime_get_ns, bpf_send_signal},
    macros::map,
    maps::{Array, HashMap},
};
use aya_log_ebpf::debug;
use evictd_common::memory::{
    ABSENT_AFTER_NS, KernelKill, MAX_SCOPES, MAX_VICTIMS, MemoryTriggerState, NEVER, PinnedGuard,
    SLOTS_PER_SCOPE, Victim, VictimKey, slot,
};

use super::{TRIGGER_STATE, TRIGGERS, notify::is_unread};
use crate::{
    kstruct::{Address, CSS_PARENT, cgroup_id, current_memcg, field, usage_of, word},
    oom::private_memory,
};

const SIGKILL: u32 = 9;
/// `BPF_NOEXIST`: only a key that is not there yet.
const NO_EXIST: u64 = 1;
/// Cgroups from a task's own up to its pod's and beyond.
const MAX_DEPTH: usize = 16;
/// A task that holds less than this part of the hard threshold is not killed: what a copying process needs for its buffers.
const LEAST_PART: u64 = 16;

#[map]
static PINNED_GUARD: Array<PinnedGuard> = Array::with_max_entries(1, 0);
/// The pods that may be killed from.
#[map]
static VICTIMS: HashMap<VictimKey, Victim> = HashMap::with_max_entries(MAX_SCOPES * MAX_VICTIMS, 0);
/// The first kill from each pod, by the id of its cgroup: the agent tells of it and ends what is left of the pod.
#[map]
static KILLED: HashMap<u64, KernelKill> = HashMap::with_max_entries(MAX_SCOPES * MAX_VICTIMS, 0);

/// The id of the cgroup of the current task's pod, if that is one of the victims; else 0.
#[inline(never)]
fn victim(scope: u64) -> u64 {
    let mut at = current_memcg().unwrap_or(0);
    for _ in 0..MAX_DEPTH {
        if at == 0 {
            break;
        }
        let id = cgroup_id(at).unwrap_or(0);
        if rank(scope, id) != u64::MAX {
            return id;
        }
        at = field(at, &CSS_PARENT).unwrap_or(0);
    }
    0
}

/// The rank of a pod; [`u64::MAX`] when it is none of the victims.
#[inline(always)]
fn rank(scope: u64, cgroup_id: u64) -> u64 {
    let key = VictimKey { cgroup_id, scope };
    // SAFETY: an entry that the agent replaces meanwhile is one of the two, or another victim's.
    unsafe { VICTIMS.get(&key) }.map_or(u64::MAX, |victim| victim.rank)
}

/// The pages that a task of a pod must hold to have used up what was left; [`u64::MAX`] when it is none of the victims.
#[inline(always)]
fn enough(scope: u64, cgroup_id: u64) -> u64 {
    let key = VictimKey { cgroup_id, scope };
    // SAFETY: as in `rank`.
    unsafe { VICTIMS.get(&key) }.map_or(u64::MAX, |victim| victim.enough)
}

/// Whether the current task holds enough memory that only its death gives back.
#[inline(always)]
fn holds_memory(span: u64) -> bool {
    // SAFETY: takes no arguments; every program type here may call it.
    let task: Address = unsafe { bpf_get_current_task() };
    private_memory(task) > span / LEAST_PART
}

/// Kills the current task, which is one of this pod's.
#[inline(always)]
fn kill(state: &mut MemoryTriggerState, scope: u64, cgroup_id: u64) {
    // SAFETY: acts on the current task only.
    if unsafe { bpf_send_signal(SIGKILL) } == 0 {
        state.kills += 1;
        let kill = KernelKill {
            // SAFETY: takes no arguments.
            time_ns: unsafe { bpf_ktime_get_ns() },
            scope,
        };
        debug!(
            (),
            "killed a task of cgroup {} for scope {}", cgroup_id, scope
        );
        // Only the first one from a pod. A map that is full loses what it would tell, and nothing else.
        let _ = KILLED.insert(&cgroup_id, &kill, NO_EXIST);
    }
}

/// Past the floor the first victim dies, whether an agent is there or not. An agent moves the floor with the page cache, and may be
/// late: then a writer of files is past it although memory is not short.
#[inline(always)]
pub fn kill_at_floor(scope: u32, span: u64, state: &mut MemoryTriggerState) {
    let pod = victim(u64::from(scope));
    if rank(u64::from(scope), pod) != 0 {
        return;
    }
    if let Some(guard) = PINNED_GUARD.get(0)
        && guard.expires_ns != 0
    {
        // SAFETY: takes no arguments.
        let now = unsafe { bpf_ktime_get_ns() };
        if now >= guard.expires_ns {
            return;
        }
    }
    if holds_memory(span) {
        kill(state, u64::from(scope), pod);
    }
}

/// At the threshold, when the agent is stopped or gone: the first victim dies, and those of higher ranks the deeper the usage
/// is between the threshold and the end of memory. 1 when a scope is in that state.
#[inline(never)]
pub fn stand_in() -> u32 {
    let Some(guard) = PINNED_GUARD.get(0) else {
        return 0;
    };
    // SAFETY: takes no arguments.
    let now = unsafe { bpf_ktime_get_ns() };
    if now >= guard.expires_ns {
        return 0;
    }
    let is_over = now >= guard.lease_ns;
    let mut stands_in = 0;
    for scope in 0..MAX_SCOPES {
        let at = scope * SLOTS_PER_SCOPE + slot::HARD;
        let (Some(trigger), Some(state)) = (TRIGGERS.get(at), TRIGGER_STATE.get_ptr_mut(at)) else {
            return 0;
        };
        // SAFETY: as in `check_all`.
        let state = unsafe { &mut *state };
        if trigger.generation == 0
            || trigger.limit == NEVER
            || state.tripped != trigger.generation
            || state.memcg == 0
        {
            continue;
        }
        let is_late = now.saturating_sub(state.tripped_ns) >= ABSENT_AFTER_NS && is_unread(state);
        if !is_over && !is_late {
            continue;
        }
        stands_in = 1;
        // The memory behind a remembered pointer may have become another cgroup's.
        if cgroup_id(state.memcg) != Some(trigger.cgroup_id) {
            continue;
        }
        let usage = word(usage_of(state.memcg)).unwrap_or(0);
        let Some(depth) = usage.checked_sub(trigger.limit) else {
            continue;
        };
        let step = trigger.span / u64::from(MAX_VICTIMS);
        let deepest = if step == 0 {
            u64::MAX - 1
        } else {
            depth / step
        };
        let pod = victim(u64::from(scope));
        if rank(u64::from(scope), pod) <= deepest && holds_memory(trigger.span) {
            kill(state, u64::from(scope), pod);
        }
    }
    stands_in
}

/// Where page cache hides the threshold, when the agent is stopped or gone: the counter stays where it is while a pod takes the
/// place of page cache. A task of a victim dies that has used up by itself all that was left when the agent looked last.
#[inline(never)]
pub fn stand_in_for_growth() {
    let Some(guard) = PINNED_GUARD.get(0) else {
        return;
    };
    // SAFETY: takes no arguments.
    let now = unsafe { bpf_ktime_get_ns() };
    if now < guard.lease_ns || now >= guard.expires_ns {
        return;
    }
    // SAFETY: takes no arguments; every program type here may call it.
    let held = private_memory(unsafe { bpf_get_current_task() });
    for scope in 0..MAX_SCOPES {
        let at = scope * SLOTS_PER_SCOPE + slot::HARD;
        let (Some(trigger), Some(state)) = (TRIGGERS.get(at), TRIGGER_STATE.get_ptr_mut(at)) else {
            return;
        };
        // SAFETY: as in `check_all`.
        let state = unsafe { &mut *state };
        if trigger.full == 0 || cgroup_id(state.memcg) != Some(trigger.cgroup_id) {
            continue;
        }
        if word(usage_of(state.memcg)).unwrap_or(0) < trigger.full {
            continue;
        }
        let pod = victim(u64::from(scope));
        if held >= enough(u64::from(scope), pod) {
            kill(state, u64::from(scope), pod);
        }
    }
}
