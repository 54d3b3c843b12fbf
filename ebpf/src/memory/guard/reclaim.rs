//! A reclaim that gives nothing back, when no agent is there: the proof of a shortage that no single task has to give.
//!
//! It runs in the context of the allocating task, each time that it has looked for memory at a limit or on the whole
//! machine. The kernel tries 16 times (`MAX_RECLAIM_RETRIES`) before its OOM killer acts. The task that looks in vain
//! need not be to blame: a pod that has not grown by its part of what was left ([`VictimLimits::min_pod_pages`]) is left
//! to the OOM killer, as without evictd.
//!
//! [`VictimLimits::min_pod_pages`]: evictd_common::memory::VictimLimits::min_pod_pages

use aya_ebpf::{
    Global,
    helpers::bpf_get_current_pid_tgid,
    macros::{btf_tracepoint, map},
    maps::{Array, LruHashMap},
    programs::BtfTracePointContext,
};
use evictd_common::memory::{CHARGE_BATCH, MAX_SCOPES, SLOTS_PER_SCOPE, is_unlimited, slot};

use super::{PINNED_GUARD, TRIGGER_STATE, TRIGGERS, kill, limits, now_ns, victim};
use crate::{
    kstruct::{Address, CSS_PARENT, cgroup_id, field, word},
    memcg::{MAX_DEPTH, current_memcg, high_of, limit_of, usage_of},
};

/// A few reclaims of a task that give nothing may have met pages that are being written.
const FAILED_BEFORE: u64 = 4;
/// A reclaim that gave nothing longer ago, in nanoseconds, is no part of this shortage.
const FAILED_WITHIN_NS: u64 = 1_000_000_000;
/// What a pod gives back by its end is waited for, in nanoseconds, before a task of another one dies.
const GIVEN_BACK_NS: u64 = 50_000_000;
/// Tasks that look for memory at the same time, of more the oldest are forgotten; the agent sets it by the number of CPUs.
const MAX_TASKS: u32 = 1024;
/// Binary logarithm of the bytes in a page of this machine.
#[unsafe(no_mangle)]
static PAGE_SHIFT: Global<u32> = Global::new(0);

/// What has become of a task's last reclaims in a scope since the agent is absent.
#[repr(C)]
#[derive(Clone, Copy)]
struct Reclaims {
    /// Reclaims in a row that freed nothing.
    failed: u64,
    /// When the last of them did, in nanoseconds of CLOCK_MONOTONIC.
    failed_ns: u64,
}

/// A kill of the last pod in a scope for want of reclaim.
#[repr(C)]
struct LastKill {
    /// Cgroup id of the pod.
    pod: u64,
    /// When, in nanoseconds of CLOCK_MONOTONIC.
    time_ns: u64,
}

/// By thread id, and scope.
#[map]
static RECLAIMS: LruHashMap<[u32; 2], Reclaims> = LruHashMap::with_max_entries(MAX_TASKS, 0);
#[map]
static LAST_KILLS: Array<LastKill> = Array::with_max_entries(MAX_SCOPES, 0);

/// `TP_PROTO(unsigned long nr_reclaimed)`: in a cgroup that is at its limit.
#[btf_tracepoint(function = "mm_vmscan_memcg_reclaim_end")]
pub fn memory_reclaim_of_cgroup(ctx: BtfTracePointContext) -> i32 {
    has_ended(ctx.arg(0), true);
    0
}

/// `TP_PROTO(unsigned long nr_reclaimed)`: on the machine, by a task that waits for it.
#[btf_tracepoint(function = "mm_vmscan_direct_reclaim_end")]
pub fn memory_reclaim_of_machine(ctx: BtfTracePointContext) -> i32 {
    has_ended(ctx.arg(0), false);
    0
}

#[inline(always)]
fn has_ended(reclaimed: u64, of_cgroup: bool) {
    let Some(guard) = PINNED_GUARD.get(0) else {
        return;
    };
    let now = now_ns();
    // What failed while the agent was there does not count: it has decided about that.
    if now < guard.lease_ns || now >= guard.expires_ns {
        return;
    }
    for scope in 0..MAX_SCOPES {
        let at = scope * SLOTS_PER_SCOPE + slot::HARD;
        let (Some(trigger), Some(state)) = (TRIGGERS.get(at), TRIGGER_STATE.get(at)) else {
            return;
        };
        if trigger.full != 0
            && cgroup_id(state.memcg) == Some(trigger.cgroup_id)
            && is_for(state.memcg, of_cgroup)
            // After a success the scope is below its limit: only what failed asks for that.
            && (reclaimed > 0 || !of_cgroup || is_at_limit(state.memcg))
        {
            count(scope, reclaimed > 0, now);
        }
    }
}

/// Counts a task's reclaim for a scope, and kills the task when too many have failed and its pod has a part in that.
#[inline(never)]
fn count(scope: u32, has_reclaimed: bool, now: u64) {
    let task = [bpf_get_current_pid_tgid() as u32, scope];
    if has_reclaimed {
        let _ = RECLAIMS.remove(&task);
        return;
    }
    let mut failed = 1;
    // SAFETY: only this task writes this entry.
    if let Some(last) = unsafe { RECLAIMS.get(&task) }
        && now.saturating_sub(last.failed_ns) <= FAILED_WITHIN_NS
    {
        failed += last.failed;
    }
    let reclaims = Reclaims {
        failed,
        failed_ns: now,
    };
    // A task that is not counted is left to the OOM killer.
    let _ = RECLAIMS.insert(&task, &reclaims, 0);
    let pod = victim(u64::from(scope));
    let id = cgroup_id(pod).unwrap_or(0);
    let Some(limits) = limits(u64::from(scope), id) else {
        return;
    };
    let Some(last_kill) = LAST_KILLS.get_ptr_mut(scope) else {
        return;
    };
    // SAFETY: a slot of an array map, valid for the whole run of the program. Other CPUs may write the same words: what
    // is lost is a wait.
    let last_kill = unsafe { &mut *last_kill };
    let is_another = id != last_kill.pod && now.saturating_sub(last_kill.time_ns) < GIVEN_BACK_NS;
    // The last rank as well dies before the kernel has tried for the last time.
    let is_early = failed < FAILED_BEFORE + limits.rank / 2;
    if is_another || is_early || word(usage_of(pod)).unwrap_or(0) < limits.min_pod_pages {
        return;
    }
    if kill(u64::from(scope), id) {
        (last_kill.pod, last_kill.time_ns) = (id, now);
    }
}

/// Whether the reclaim that just ended was for `scope`, if it was for a limit. In a cgroup: it lies on the way up from the
/// task's own, and none below it is at its limit or above its `memory.high`, for which the kernel reclaims as well. On
/// the machine: `scope` has no limit.
#[inline(never)]
fn is_for(scope: Address, of_cgroup: bool) -> bool {
    if !of_cgroup {
        return is_unlimited(word(limit_of(scope)).unwrap_or(0), PAGE_SHIFT.load() & 31);
    }
    let mut at = current_memcg().unwrap_or(0);
    for _ in 0..MAX_DEPTH {
        if at == 0 || at == scope {
            return at == scope;
        }
        let is_above_high = word(usage_of(at)).unwrap_or(0) > word(high_of(at)).unwrap_or(0);
        if is_above_high || is_at_limit(at) {
            return false;
        }
        at = field(at, &CSS_PARENT).unwrap_or(0);
    }
    false
}

/// Whether no batch fits below a cgroup's limit.
#[inline(always)]
fn is_at_limit(memcg: Address) -> bool {
    let limit = word(limit_of(memcg)).unwrap_or(0);
    word(usage_of(memcg)).unwrap_or(0) + CHARGE_BATCH >= limit
}
