//! The PID trigger: counts what the kernel counts in `nr_threads`.
//!
//! `copy_process` adds a task and then runs `task_newtask`, which unlike `sched_process_fork` also sees the workers of
//! io_uring and vhost. `release_task` takes it away when it is reaped; the next hook after that is
//! `sched_process_free`, an RCU grace period later, while `sched_process_exit` comes too early: a zombie keeps its
//! number. So what the agent computes as available is too high by at most the tasks that were in that grace period at
//! the last sample.

use aya_ebpf::{
    macros::{btf_tracepoint, map, tracepoint},
    maps::{Array, HashMap, RingBuf},
    programs::{BtfTracePointContext, TracePointContext},
};
use evictd_common::counter::{CgroupCount, CounterTrigger, MAX_CGROUP_COUNTS, TRIGGERS};

use crate::{
    counter::{EventCounter, add_to_cgroup, add_to_known_cgroup, merge_into_parent},
    ids::{cgroup_of, current_cgroup},
    kstruct::Address,
};

#[map]
static PID_COUNT: Array<i64> = Array::with_max_entries(1, 0);
#[map]
static PID_TRIGGERS: Array<CounterTrigger> = Array::with_max_entries(TRIGGERS, 0);
#[map]
static PID_TRIPPED: Array<u64> = Array::with_max_entries(TRIGGERS, 0);
#[map]
static PID_WAKEUPS: RingBuf = RingBuf::with_byte_size(4096, 0);
/// Tasks started and ended, by the id of their memory cgroup.
#[map]
static PID_BY_CGROUP: HashMap<u64, CgroupCount> = HashMap::with_max_entries(MAX_CGROUP_COUNTS, 0);

const COUNTER: EventCounter = EventCounter {
    counts: &PID_COUNT,
    triggers: &PID_TRIGGERS,
    tripped: &PID_TRIPPED,
    wakeups: &PID_WAKEUPS,
};

/// `TP_PROTO(struct task_struct *task, unsigned long clone_flags)`; the new task is in its cgroup already.
#[btf_tracepoint(function = "task_newtask")]
pub fn pids_new(ctx: BtfTracePointContext) -> i32 {
    let task: *const u8 = ctx.arg(0);
    started(cgroup_of(task as Address));
    0
}

/// `TP_PROTO(struct task_struct *p)`, from an RCU callback: the current task is any.
#[btf_tracepoint(function = "sched_process_free")]
pub fn pids_free(ctx: BtfTracePointContext) -> i32 {
    let task: *const u8 = ctx.arg(0);
    let cgroup_id = cgroup_of(task as Address);
    COUNTER.count(0, -1, cgroup_id);
    // Its cgroup may be gone already: a task leaves it when it exits.
    add_to_known_cgroup(&PID_BY_CGROUP, &cgroup_id, 0, 1);
    0
}

/// `task:task_newtask` without types: the parent's cgroup stands for the child's.
#[tracepoint(category = "task", name = "task_newtask")]
pub fn pids_new_untyped(_: TracePointContext) -> u32 {
    started(current_cgroup());
    0
}

/// `sched:sched_process_exit`: the last moment at which the task's cgroup can be told without types.
#[tracepoint(category = "sched", name = "sched_process_exit")]
pub fn pids_exit_untyped(_: TracePointContext) -> u32 {
    add_to_known_cgroup(&PID_BY_CGROUP, &current_cgroup(), 0, 1);
    0
}

/// `sched:sched_process_free` without types.
#[tracepoint(category = "sched", name = "sched_process_free")]
pub fn pids_free_untyped(_: TracePointContext) -> u32 {
    COUNTER.count(0, -1, 0);
    0
}

#[inline(always)]
fn started(cgroup_id: u64) {
    COUNTER.count(0, 1, cgroup_id);
    if cgroup_id != 0 {
        add_to_cgroup(&PID_BY_CGROUP, &cgroup_id, 1, 0);
    }
}

/// A cgroup was removed; `parent` is 0 where it is not known.
#[inline(always)]
pub fn cgroup_removed(id: u64, parent: u64) {
    merge_into_parent(&PID_BY_CGROUP, &id, &parent, parent != 0);
}
