//! Evidence: who the OOM killer took, and the reclaim that announced it.

use aya_ebpf::{
    EbpfContext,
    helpers::bpf_ktime_get_ns,
    macros::{map, tracepoint},
    maps::RingBuf,
    programs::TracePointContext,
};
use evictd_common::{
    Drop,
    oom::{Telemetry, kind},
};

use crate::{
    drops,
    kernel::{cgroup_id, current_memcg},
};

/// `BPF_RB_NO_WAKEUP`: bulk telemetry wakes no one; the agent looks when it has time.
const NO_WAKEUP: u64 = 1;
/// The common header of every tracepoint record, in bytes; the first field of its own follows.
const FIRST_FIELD: usize = 8;

#[map]
static TELEMETRY: RingBuf = RingBuf::with_byte_size(64 * 1024, 0);

/// `oom:mark_victim`; its first field is the victim's pid on every kernel, the others came with 6.8.
#[tracepoint(category = "oom", name = "mark_victim")]
pub fn oom_mark_victim(ctx: TracePointContext) -> u32 {
    // SAFETY: the offset lies inside the record of this tracepoint.
    if let Ok(pid) = unsafe { ctx.read_at::<u32>(FIRST_FIELD) } {
        record(kind::MARK_VICTIM, pid);
    }
    0
}

/// `vmscan:mm_vmscan_memcg_reclaim_begin`: a cgroup at its limit, in the context of the allocating task.
#[tracepoint(category = "vmscan", name = "mm_vmscan_memcg_reclaim_begin")]
pub fn oom_reclaim_begin(ctx: TracePointContext) -> u32 {
    record(kind::RECLAIM_BEGIN, ctx.tgid());
    0
}

#[inline(always)]
fn record(kind: u32, pid: u32) {
    let Some(mut entry) = TELEMETRY.reserve::<Telemetry>(0) else {
        drops::count(Drop::Telemetry);
        return;
    };
    entry.write(Telemetry {
        // SAFETY: takes no arguments.
        time_ns: unsafe { bpf_ktime_get_ns() },
        cgroup_id: current_memcg().and_then(cgroup_id).unwrap_or(0),
        kind,
        pid,
    });
    entry.submit(NO_WAKEUP);
}
