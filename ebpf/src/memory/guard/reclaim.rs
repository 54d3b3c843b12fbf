//! A reclaim that gives nothing back, when no agent is there: the proof of a shortage that no single task has to give.
//!
//! It runs in the context of the allocating task, each time that it has looked for memory at a limit or on the whole
//! machine. The kernel tries 16 times (`MAX_RECLAIM_RETRIES`) before its OOM killer acts.

use aya_ebpf::{
    Global,
    macros::{btf_tracepoint, map},
    maps::Array,
    programs::BtfTracePointContext,
};
use evictd_common::memory::{CHARGE_BATCH, MAX_SCOPES, SLOTS_PER_SCOPE, is_unlimited, slot};

use super::{PINNED_GUARD, TRIGGER_STATE, TRIGGERS, kill, now_ns, rank, victim};
use crate::{
    kstruct::{Address, CSS_PARENT, cgroup_id, field, word},
    memcg::{MAX_DEPTH, current_memcg, high_of, limit_of, usage_of},
};

/// A few reclaims that give nothing, of as many tasks at once, may have met pages that are being written.
const FAILED_BEFORE: u64 = 4;
/// A reclaim that gave nothing longer ago, in nanoseconds, is no part of this shortage.
const FAILED_WITHIN_NS: u64 = 1_000_000_000;
/// What a pod gives back by its end is waited for, in nanoseconds, before a task of another one dies.
const GIVEN_BACK_NS: u64 = 50_000_000;
/// Binary logarithm of the bytes in a page of this machine.
#[unsafe(no_mangle)]
static PAGE_SHIFT: Global<u32> = Global::new(0);

/// What has become of the last reclaims in a scope.
#[repr(C)]
struct Reclaims {
    /// Reclaims in a row that freed nothing since the agent is absent.
    failed: u64,
    /// When the last of them did, in nanoseconds of CLOCK_MONOTONIC.
    failed_ns: u64,
    /// Cgroup id of the pod that such a kill hit last.
    pod: u64,
    /// When that kill was, in nanoseconds of CLOCK_MONOTONIC.
    killed_ns: u64,
}

#[map]
static RECLAIMS: Array<Reclaims> = Array::with_max_entries(MAX_SCOPES, 0);

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
    let is_absent = now >= guard.lease_ns && now < guard.expires_ns;
    for scope in 0..MAX_SCOPES {
        let at = scope * SLOTS_PER_SCOPE + slot::HARD;
        let (Some(trigger), Some(state), Some(reclaims)) = (
            TRIGGERS.get(at),
            TRIGGER_STATE.get(at),
            RECLAIMS.get_ptr_mut(scope),
        ) else {
            return;
        };
        // SAFETY: a slot of an array map, valid for the whole run of the program. Other CPUs may write the same words:
        // a count that loses one is a kill that comes later.
        let reclaims = unsafe { &mut *reclaims };
        if trigger.full == 0
            || cgroup_id(state.memcg) != Some(trigger.cgroup_id)
            || !is_for(state.memcg, of_cgroup)
        {
            continue;
        }
        let is_new = now.saturating_sub(reclaims.failed_ns) > FAILED_WITHIN_NS;
        if reclaimed > 0 || !is_absent || is_new {
            reclaims.failed = 0;
        }
        // After a success the scope is below its limit: only what failed asks for that.
        if reclaimed > 0 || !is_absent || (of_cgroup && !is_at_limit(state.memcg)) {
            continue;
        }
        reclaims.failed += 1;
        reclaims.failed_ns = now;
        let pod = cgroup_id(victim(u64::from(scope))).unwrap_or(0);
        let since = now.saturating_sub(reclaims.killed_ns);
        let is_another = pod != reclaims.pod && since < GIVEN_BACK_NS;
        let is_early = rank(u64::from(scope), pod).saturating_add(FAILED_BEFORE) > reclaims.failed;
        if is_another || is_early {
            continue;
        }
        kill(u64::from(scope), pod);
        (reclaims.pod, reclaims.killed_ns) = (pod, now);
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
