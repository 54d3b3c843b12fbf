//! Cgroup events: the memory hierarchy's cgroups as they come and go.

use aya_ebpf::{
    EbpfContext,
    helpers::{bpf_ktime_get_ns, generated::bpf_probe_read_kernel_str},
    macros::{btf_tracepoint, map, tracepoint},
    maps::RingBuf,
    programs::{BtfTracePointContext, TracePointContext},
};
use evictd_common::{
    cgroups::{CgroupRecord, PATH_BYTES, kind},
    drops::DropCounter,
};

use crate::{
    drops,
    ids::{id_in_memory_hierarchy, is_memory_hierarchy, parent_id},
    inodes,
    kstruct::Address,
    pids,
};

/// A node that starts a hundred pods at once makes some six hundred records.
#[map]
static CGROUP_EVENTS: RingBuf = RingBuf::with_byte_size(512 * 1024, 0);

/// `TP_PROTO(struct cgroup *cgrp, const char *path)`.
#[btf_tracepoint(function = "cgroup_mkdir")]
pub fn cgroups_made(ctx: BtfTracePointContext) -> i32 {
    typed(&ctx, kind::MADE);
    0
}

/// `TP_PROTO(struct cgroup *cgrp, const char *path)`.
#[btf_tracepoint(function = "cgroup_rmdir")]
pub fn cgroups_removed(ctx: BtfTracePointContext) -> i32 {
    let cgroup: *const u8 = ctx.arg(0);
    if let Some(id) = typed(&ctx, kind::REMOVED) {
        forget(id, parent_id(cgroup as Address).unwrap_or(0));
    }
    0
}

/// `TP_PROTO(struct cgroup *dst_cgrp, const char *path, struct task_struct *task, bool threadgroup)`. The task's id
/// is not needed to know that a cgroup is in use.
#[btf_tracepoint(function = "cgroup_attach_task")]
pub fn cgroups_attached(ctx: BtfTracePointContext) -> i32 {
    typed(&ctx, kind::ATTACHED);
    0
}

/// `cgroup:cgroup_mkdir`.
#[tracepoint(category = "cgroup", name = "cgroup_mkdir")]
pub fn cgroups_made_untyped(ctx: TracePointContext) -> u32 {
    untyped(&ctx, kind::MADE, CGROUP_PATH);
    0
}

/// `cgroup:cgroup_rmdir`.
#[tracepoint(category = "cgroup", name = "cgroup_rmdir")]
pub fn cgroups_removed_untyped(ctx: TracePointContext) -> u32 {
    if let Some(id) = untyped(&ctx, kind::REMOVED, CGROUP_PATH) {
        forget(id, 0);
    }
    0
}

/// `cgroup:cgroup_attach_task`.
#[tracepoint(category = "cgroup", name = "cgroup_attach_task")]
pub fn cgroups_attached_untyped(ctx: TracePointContext) -> u32 {
    untyped(&ctx, kind::ATTACHED, ATTACH_PATH);
    0
}

#[inline(always)]
fn typed(ctx: &BtfTracePointContext, kind: u32) -> Option<u64> {
    let (cgroup, path): (*const u8, *const u8) = (ctx.arg(0), ctx.arg(1));
    let id = id_in_memory_hierarchy(cgroup as Address)?;
    record(kind, id, path);
    Some(id)
}

// Fields of the untyped records; the agent compares the offsets with tracefs before it attaches.
const ROOT: usize = 8;
const ID: usize = 16;
const CGROUP_PATH: usize = 24;
const ATTACH_PATH: usize = 28;

#[inline(always)]
fn untyped(ctx: &TracePointContext, kind: u32, path_field: usize) -> Option<u64> {
    // SAFETY: the offsets lie inside the record.
    let (root, id, location): (u32, u64, u32) = unsafe {
        (
            ctx.read_at(ROOT).ok()?,
            ctx.read_at(ID).ok()?,
            ctx.read_at(path_field).ok()?,
        )
    };
    if !is_memory_hierarchy(root) {
        return None;
    }
    // `__data_loc`: length in the upper half, offset from the start of the record in the lower.
    let path = ctx
        .as_ptr()
        .cast::<u8>()
        .wrapping_add((location & 0xffff) as usize);
    record(kind, id, path);
    Some(id)
}

#[inline(always)]
fn record(kind: u32, cgroup_id: u64, path: *const u8) {
    let Some(mut entry) = CGROUP_EVENTS.reserve::<CgroupRecord>(0) else {
        drops::count(DropCounter::CgroupEvent);
        return;
    };
    let event = entry.as_mut_ptr();
    // SAFETY: the reserved record, of the right size; every member is written before it is submitted but for what
    // follows the string in `path`, which `length` leaves out.
    unsafe {
        (*event).time_ns = bpf_ktime_get_ns();
        (*event).cgroup_id = cgroup_id;
        (*event).kind = kind;
        let room = (&raw mut (*event).path).cast();
        let read = bpf_probe_read_kernel_str(room, PATH_BYTES as u32, path.cast());
        // The end mark counts.
        (*event).length = if read > 0 { read as u32 - 1 } else { 0 };
    }
    // Adaptive: one wake-up per burst.
    entry.submit(0);
}

/// `parent` is 0 where it is not known.
#[inline(always)]
fn forget(id: u64, parent: u64) {
    pids::cgroup_removed(id, parent);
    inodes::cgroup_removed(id, parent);
}
