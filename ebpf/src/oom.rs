//! Evidence of the OOM killer: its victims, and whose limit each was killed for.

use aya_ebpf::{
    Global,
    bindings::BPF_RB_NO_WAKEUP,
    helpers::{bpf_get_current_pid_tgid, bpf_ktime_get_ns, bpf_probe_read_kernel},
    macros::{btf_tracepoint, fentry, kprobe, map, tracepoint},
    maps::{Array, RingBuf},
    programs::{BtfTracePointContext, FEntryContext, ProbeContext, TracePointContext},
};
use evictd_common::{
    drops::DropCounter,
    oom::{DECISIONS, LEVELS, Level, OomContext, OomDecision, OomKill, UNKNOWN, UnattributedKill},
};

use crate::{
    drops,
    kstruct::{Address, CSS_PARENT, FIRST_FIELD, cgroup_id, field, memcg_of, word},
    memcg::{current_memcg, limit_of, usage_of},
};

/// What `oom_kill_process`, or the mark of the victim before, left behind is about this victim only if it is as young as
/// this, in nanoseconds.
const CONTEXT_AGE: u64 = 1_000_000_000;

/// Bytes of the records of kills. Those at the limit of a victim's own cgroup or of the one above leave half of them to others:
/// a pod can have its children killed as fast as it likes.
const RING_BYTES: u64 = 32 * 1024;
/// What `bpf_ringbuf_query` is asked for: the bytes that were not read yet (`BPF_RB_AVAIL_DATA`).
const AVAILABLE: u64 = 0;

/// `oom_control.memcg`, in bytes.
#[unsafe(no_mangle)]
static OOM_CONTROL_MEMCG: Global<u32> = Global::new(0);
/// `task_struct.tgid`.
#[unsafe(no_mangle)]
static TASK_TGID: Global<u32> = Global::new(0);
/// `task_struct.comm`.
#[unsafe(no_mangle)]
static TASK_COMM: Global<u32> = Global::new(0);
/// `task_struct.signal`.
#[unsafe(no_mangle)]
static TASK_SIGNAL: Global<u32> = Global::new(0);
/// `signal_struct.oom_score_adj`, a short.
#[unsafe(no_mangle)]
static SIGNAL_OOM_SCORE_ADJ: Global<u32> = Global::new(0);
/// `task_struct.mm`.
#[unsafe(no_mangle)]
static TASK_MM: Global<u32> = Global::new(0);
/// The first counter of `mm_struct.rss_stat`.
#[unsafe(no_mangle)]
static MM_RSS: Global<u32> = Global::new(0);
/// From one counter to the next; 0 where this kernel counts in another way.
#[unsafe(no_mangle)]
static MM_RSS_STRIDE: Global<u32> = Global::new(0);
/// `mem_cgroup.oom_group`, a bool; 0 where this kernel has none.
#[unsafe(no_mangle)]
static MEM_CGROUP_OOM_GROUP: Global<u32> = Global::new(0);

#[map]
static OOM_KILLS: RingBuf = RingBuf::with_byte_size(RING_BYTES as u32, 0);
#[map]
static OOM_VICTIM_PIDS: RingBuf = RingBuf::with_byte_size(16 * 1024, 0);
/// The kernel kills for one shortage at a time (`oom_lock`).
#[map]
static OOM_CONTEXT: Array<OomContext> = Array::with_max_entries(1, 0);
#[map]
static OOM_DECISION: Array<OomDecision> = Array::with_max_entries(1, 0);
/// Processes that a decision has killed, by its number.
#[map]
static OOM_PROCESSES: Array<u32> = Array::with_max_entries(DECISIONS, 0);

/// `TP_PROTO(struct task_struct *task, uid_t uid)`, where BTF says so; older kernels pass a number.
#[btf_tracepoint(function = "mark_victim")]
pub fn oom_victim_typed(ctx: BtfTracePointContext) -> i32 {
    let task: *const u8 = ctx.arg(0);
    describe(task as Address);
    0
}

/// `static void mark_oom_victim(struct task_struct *tsk)`
#[fentry(function = "mark_oom_victim")]
pub fn oom_victim_entry(ctx: FEntryContext) -> i32 {
    let task: *const u8 = ctx.arg(0);
    describe(task as Address);
    0
}

/// The same for kernels without fentry.
#[kprobe]
pub fn oom_victim_probe(ctx: ProbeContext) -> u32 {
    if let Some(task) = ctx.arg::<*const u8>(0) {
        describe(task as Address);
    }
    0
}

/// `static void oom_kill_process(struct oom_control *oc, const char *message)`
#[fentry(function = "oom_kill_process")]
pub fn oom_context_entry(ctx: FEntryContext) -> i32 {
    let control: *const u8 = ctx.arg(0);
    remember(control as Address);
    0
}

/// The same for kernels without fentry.
#[kprobe]
pub fn oom_context_probe(ctx: ProbeContext) -> u32 {
    if let Some(control) = ctx.arg::<*const u8>(0) {
        remember(control as Address);
    }
    0
}

/// `oom:mark_victim`; its first field is the victim's pid on every kernel. For kernels that allow nothing better.
#[tracepoint(category = "oom", name = "mark_victim")]
pub fn oom_mark_victim(ctx: TracePointContext) -> u32 {
    // SAFETY: the offset lies inside the record of this tracepoint.
    if let Ok(pid) = unsafe { ctx.read_at::<u32>(FIRST_FIELD) } {
        record_unattributed(pid);
    }
    0
}

/// Whose limit it is about; the victims are marked by the same task.
#[inline(always)]
fn remember(control: Address) {
    let Some(context) = OOM_CONTEXT.get_ptr_mut(0) else {
        return;
    };
    let limit_id = match field(control, &OOM_CONTROL_MEMCG) {
        Some(0) => 0,
        Some(memcg) => cgroup_id(memcg).unwrap_or(UNKNOWN),
        None => UNKNOWN,
    };
    // SAFETY: the slot of an array map; the kernel holds oom_lock.
    unsafe {
        *context = OomContext {
            task: bpf_get_current_pid_tgid(),
            time_ns: bpf_ktime_get_ns(),
            limit_id,
        };
    }
}

#[inline(always)]
fn limit_id(now: u64) -> u64 {
    match OOM_CONTEXT.get(0) {
        Some(context)
            if context.task == bpf_get_current_pid_tgid()
                && now - context.time_ns < CONTEXT_AGE =>
        {
            context.limit_id
        }
        _ => UNKNOWN,
    }
}

/// Whether a limit is that of a victim's container or pod.
#[inline(always)]
fn is_own_limit(limit: u64, memcg: Address) -> bool {
    let above = field(memcg, &CSS_PARENT).unwrap_or(0);
    limit != 0 && (cgroup_id(memcg) == Some(limit) || cgroup_id(above) == Some(limit))
}

/// Number of the decision that this victim is the first of. A process that is killed with a victim before it is counted.
///
/// With a group the allocating task marks one process after the other; without one it marks one for each decision.
#[inline(always)]
fn new_decision(pid: u32, memcg: Address, now: u64) -> Option<u32> {
    let time_ns = OOM_CONTEXT.get(0)?.time_ns;
    // SAFETY: the slot of an array map; the kernel holds oom_lock.
    let last = unsafe { &mut *OOM_DECISION.get_ptr_mut(0)? };
    let (task, group) = (bpf_get_current_pid_tgid(), oom_group(memcg));
    let is_same = group != 0
        && (last.group, last.task, last.time_ns) == (group, task, time_ns)
        && now - last.marked_ns < CONTEXT_AGE;
    if !is_same {
        *last = OomDecision {
            task,
            time_ns,
            marked_ns: now,
            group,
            pid,
            number: last.number.wrapping_add(1),
        };
    }
    last.marked_ns = now;
    let processes = OOM_PROCESSES.get_ptr_mut(last.number % DECISIONS)?;
    // SAFETY: as above.
    unsafe {
        match is_same {
            true => *processes += u32::from(pid != last.pid),
            false => *processes = 1,
        }
    }
    (!is_same).then_some(last.number)
}

/// The highest cgroup around a victim whose processes the kernel kills together (`memory.oom.group`), or 0.
#[inline(always)]
fn oom_group(memcg: Address) -> Address {
    let (mut at, mut group) = (memcg, 0);
    if MEM_CGROUP_OOM_GROUP.load() == 0 {
        return group;
    }
    for _ in 0..LEVELS {
        // It is shorter than the word that is read.
        if field(at, &MEM_CGROUP_OOM_GROUP).unwrap_or(0) as u8 != 0 {
            group = at;
        }
        at = field(at, &CSS_PARENT).unwrap_or(0);
    }
    group
}

/// All that can be read of a victim.
#[inline(always)]
fn describe(task: Address) {
    // SAFETY: takes no arguments.
    let time_ns = unsafe { bpf_ktime_get_ns() };
    // Shorter than the word that is read.
    let pid = field(task, &TASK_TGID).unwrap_or(0) as u32;
    let mut memcg = memcg_of(task).unwrap_or(0);
    let Some(decision) = new_decision(pid, memcg, time_ns) else {
        return;
    };
    let limit = limit_id(time_ns);
    let is_crowding = is_own_limit(limit, memcg) && OOM_KILLS.query(AVAILABLE) > RING_BYTES / 2;
    let entry = match is_crowding {
        true => None,
        false => OOM_KILLS.reserve::<OomKill>(0),
    };
    let Some(mut entry) = entry else {
        drops::count(DropCounter::OomRecord);
        return;
    };
    let kill = entry.as_mut_ptr();
    // SAFETY: the helper checks the address itself and fails instead of faulting.
    let comm =
        unsafe { bpf_probe_read_kernel((task + u64::from(TASK_COMM.load())) as *const [u8; 16]) };
    // SAFETY: reserved for exactly this type; every member is written before the record is submitted.
    unsafe {
        (*kill).time_ns = time_ns;
        (*kill).limit_id = limit;
        (*kill).rss = rss(task);
        (*kill).comm = comm.unwrap_or_default();
        (*kill).pid = pid;
        (*kill).decision = decision;
        (*kill).processes = 1;
        let signal = field(task, &TASK_SIGNAL).unwrap_or(0);
        let score = field(signal, &SIGNAL_OOM_SCORE_ADJ).unwrap_or(0);
        // Shorter than the word that is read.
        (*kill).oom_score_adj = i32::from(score as i16);
        for level in 0..LEVELS {
            (*kill).levels[level] = Level {
                id: cgroup_id(memcg).unwrap_or(0),
                usage: word(usage_of(memcg)).unwrap_or(0),
                max: word(limit_of(memcg)).unwrap_or(0),
            };
            memcg = field(memcg, &CSS_PARENT).unwrap_or(0);
        }
    }
    entry.submit(0);
}

/// `get_mm_rss`: MM_FILEPAGES (0), MM_ANONPAGES (1) and MM_SHMEMPAGES (3), in pages.
#[inline(always)]
fn rss(task: Address) -> u64 {
    resident(task, [0, 1, 3]).unwrap_or(UNKNOWN)
}

/// Anonymous memory of a task, in pages; 0 where that cannot be read.
#[inline(always)]
pub fn anonymous_memory(task: Address) -> u64 {
    resident(task, [1]).unwrap_or(0)
}

/// Shared memory of a task, in pages: each page as often as it is mapped.
#[inline(always)]
pub fn shared_memory(task: Address) -> u64 {
    resident(task, [3]).unwrap_or(0)
}

#[inline(always)]
fn resident<const N: usize>(task: Address, counters: [u64; N]) -> Option<u64> {
    let stride = u64::from(MM_RSS_STRIDE.load());
    let mm = field(task, &TASK_MM).unwrap_or(0);
    if stride == 0 || mm == 0 {
        return None;
    }
    let first = mm + u64::from(MM_RSS.load());
    // A per-CPU counter may be below zero for a moment.
    let count = |index: u64| match word(first + index * stride) {
        Some(pages) if (pages as i64) > 0 => pages,
        _ => 0,
    };
    let mut pages = 0;
    for counter in counters {
        pages += count(counter);
    }
    Some(pages)
}

#[inline(always)]
fn record_unattributed(pid: u32) {
    let Some(mut entry) = OOM_VICTIM_PIDS.reserve::<UnattributedKill>(0) else {
        drops::count(DropCounter::OomRecord);
        return;
    };
    entry.write(UnattributedKill {
        cgroup_id: current_memcg().and_then(cgroup_id).unwrap_or(0),
        pid,
        padding: 0,
    });
    // The agent looks when it has time.
    entry.submit(BPF_RB_NO_WAKEUP.into());
}
