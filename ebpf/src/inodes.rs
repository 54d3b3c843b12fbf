//! The inode trigger: counts what filesystems count in their free inodes.
//!
//! Overlay needs no hook of its own: a file in an overlay is made on its upper filesystem, by the task that asked.

use aya_ebpf::{
    helpers::bpf_get_current_pid_tgid,
    macros::{btf_tracepoint, map, tracepoint},
    maps::{Array, HashMap, RingBuf},
    programs::{BtfTracePointContext, TracePointContext},
};
use evictd_common::{
    counter::{CgroupCount, CounterTrigger, MAX_CGROUP_COUNTS, TRIGGERS},
    inodes::{CgroupCountKey, MAX_FILESYSTEMS},
};

use crate::{
    counter::{EventCounter, add_to_cgroup, merge_into_parent},
    ids::{current_cgroup, device_of, is_unlinked},
    kstruct::{Address, FIRST_FIELD},
};

/// `s_dev` of the filesystems that are counted; 0 is none.
#[map]
static INODE_DEVICES: Array<u32> = Array::with_max_entries(MAX_FILESYSTEMS, 0);
#[map]
static INODE_COUNTS: Array<i64> = Array::with_max_entries(MAX_FILESYSTEMS, 0);
#[map]
static INODE_TRIGGERS: Array<CounterTrigger> =
    Array::with_max_entries(MAX_FILESYSTEMS * TRIGGERS, 0);
#[map]
static INODE_TRIPPED: Array<u64> = Array::with_max_entries(MAX_FILESYSTEMS * TRIGGERS, 0);
#[map]
static INODE_WAKEUPS: RingBuf = RingBuf::with_byte_size(4096, 0);
#[map]
static INODE_BY_CGROUP: HashMap<CgroupCountKey, CgroupCount> =
    HashMap::with_max_entries(MAX_CGROUP_COUNTS, 0);

const COUNTER: EventCounter = EventCounter {
    counts: &INODE_COUNTS,
    triggers: &INODE_TRIGGERS,
    tripped: &INODE_TRIPPED,
    wakeups: &INODE_WAKEUPS,
};

/// What a hook tells about an inode.
#[derive(Clone, Copy, PartialEq, Eq)]
enum InodeEvent {
    /// The inode was made by the current task.
    Made,
    /// The inode was made by the current task and has no name: a walk does not find it, and no cgroup has it in its
    /// count.
    MadeNameless,
    /// The current task gave one without a name its first one.
    Named,
    /// The inode was freed by the current task, or on its behalf in its context.
    Freed,
    /// The inode was freed by a worker of the filesystem.
    FreedLater,
    /// The current task took its last name away; it is freed later.
    Unlinked,
}

/// The index of a filesystem that is counted.
#[inline(always)]
fn counted(device: Option<u32>) -> Option<u32> {
    let device = device?;
    for index in 0..MAX_FILESYSTEMS {
        let &counted = INODE_DEVICES.get(index)?;
        if counted == device && device != 0 {
            return Some(index);
        }
    }
    None
}

#[inline(always)]
fn count(device: Option<u32>, what: InodeEvent) {
    if let Some(index) = counted(device) {
        count_on(index, what);
    }
}

#[inline(always)]
fn count_on(index: u32, what: InodeEvent) {
    let cgroup_id = current_cgroup();
    match what {
        InodeEvent::Made | InodeEvent::MadeNameless => COUNTER.count(index, 1, cgroup_id),
        InodeEvent::Freed | InodeEvent::FreedLater => COUNTER.count(index, -1, cgroup_id),
        InodeEvent::Named | InodeEvent::Unlinked => {}
    }
    let (made, gone) = match what {
        InodeEvent::Made | InodeEvent::Named => (1, 0),
        InodeEvent::Freed | InodeEvent::Unlinked => (0, 1),
        InodeEvent::MadeNameless | InodeEvent::FreedLater => return,
    };
    if cgroup_id != 0 {
        let key = CgroupCountKey {
            cgroup_id,
            filesystem: u64::from(index),
        };
        add_to_cgroup(&INODE_BY_CGROUP, &key, made, gone);
    }
}

/// The inode that a typed tracepoint has as its first argument.
#[inline(always)]
fn inode(ctx: &BtfTracePointContext) -> Address {
    let inode: *const u8 = ctx.arg(0);
    inode as Address
}

/// `dev`, the first field of every ext4 and xfs tracepoint (the agent compares the offset with tracefs).
#[inline(always)]
fn device(ctx: &TracePointContext) -> Option<u32> {
    // SAFETY: the offset lies inside the record.
    unsafe { ctx.read_at(FIRST_FIELD) }.ok()
}

/// `TP_PROTO(struct inode *inode, struct inode *dir, int mode)`, after the inode was taken.
#[btf_tracepoint(function = "ext4_allocate_inode")]
pub fn inodes_ext4_made(ctx: BtfTracePointContext) -> i32 {
    count(device_of(inode(&ctx)), InodeEvent::Made);
    0
}

/// `TP_PROTO(struct inode *inode)`, before the inode is given back.
#[btf_tracepoint(function = "ext4_free_inode")]
pub fn inodes_ext4_freed(ctx: BtfTracePointContext) -> i32 {
    count(device_of(inode(&ctx)), InodeEvent::Freed);
    0
}

/// `TP_PROTO(const struct inode *inode)`, when a new inode has its number.
#[btf_tracepoint(function = "btrfs_inode_new")]
pub fn inodes_btrfs_made(ctx: BtfTracePointContext) -> i32 {
    count(device_of(inode(&ctx)), InodeEvent::Made);
    0
}

/// `TP_PROTO(const struct inode *inode)`, whenever an inode leaves the cache: for good only without a name.
#[btf_tracepoint(function = "btrfs_inode_evict")]
pub fn inodes_btrfs_freed(ctx: BtfTracePointContext) -> i32 {
    let inode = inode(&ctx);
    if is_unlinked(inode) {
        count(device_of(inode), InodeEvent::Freed);
    }
    0
}

/// `ext4:ext4_allocate_inode` without types, for kernels that have ext4 as a module.
#[tracepoint(category = "ext4", name = "ext4_allocate_inode")]
pub fn inodes_ext4_made_untyped(ctx: TracePointContext) -> u32 {
    count(device(&ctx), InodeEvent::Made);
    0
}

/// `ext4:ext4_free_inode` without types.
#[tracepoint(category = "ext4", name = "ext4_free_inode")]
pub fn inodes_ext4_freed_untyped(ctx: TracePointContext) -> u32 {
    count(device(&ctx), InodeEvent::Freed);
    0
}

/// `xfs:xfs_create`, on entry: one that fails afterwards is counted all the same, until the next statfs.
#[tracepoint(category = "xfs", name = "xfs_create")]
pub fn inodes_xfs_made(ctx: TracePointContext) -> u32 {
    count(device(&ctx), InodeEvent::Made);
    0
}

/// `xfs:xfs_symlink`, on entry.
#[tracepoint(category = "xfs", name = "xfs_symlink")]
pub fn inodes_xfs_linked(ctx: TracePointContext) -> u32 {
    count(device(&ctx), InodeEvent::Made);
    0
}

/// The last step of a thread on xfs. It tells what the thread's next `xfs_iunlink` or `xfs_iunlink_remove` means.
#[repr(u64)]
#[derive(Clone, Copy, PartialEq, Eq)]
enum XfsStep {
    /// The thread may take a last name away.
    Removes,
    /// The thread has taken an inode into the cache, which may be a new one.
    Took,
    /// It gives an inode that has none a name, if there is one.
    Names,
    /// The thread tears an inode down, which is freed if it has no name.
    TearsDown,
}

/// Threads that have a slot of their own.
const XFS_THREADS: u32 = 1 << 14;
/// The last step of a thread, behind its id. Of two that share a slot, one may be misunderstood where both are between
/// two events of one operation: the next statfs and the next walk correct that.
#[map]
static INODE_XFS_STEPS: Array<u64> = Array::with_max_entries(XFS_THREADS, 0);

impl XfsStep {
    #[inline(always)]
    fn slot() -> Option<(*mut u64, u64)> {
        let thread = bpf_get_current_pid_tgid() as u32;
        let slot = INODE_XFS_STEPS.get_ptr_mut(thread % XFS_THREADS)?;
        Some((slot, u64::from(thread) << 8))
    }

    #[inline(always)]
    fn set(self) {
        if let Some((slot, thread)) = Self::slot() {
            // SAFETY: a slot of an array map.
            unsafe { slot.write_volatile(thread | self as u64) };
        }
    }

    #[inline(always)]
    fn is_current(self) -> bool {
        // SAFETY: as above.
        Self::slot()
            .is_some_and(|(slot, thread)| unsafe { slot.read_volatile() } == thread | self as u64)
    }

    /// For the filesystems that are counted.
    #[inline(always)]
    fn begin(self, ctx: &TracePointContext) -> u32 {
        if counted(device(ctx)).is_some() {
            self.set();
        }
        0
    }
}

/// `xfs:xfs_iget_miss`, also for each new inode: a new file without a name goes onto the list of the nameless right
/// after that.
#[tracepoint(category = "xfs", name = "xfs_iget_miss")]
pub fn inodes_xfs_took(ctx: TracePointContext) -> u32 {
    XfsStep::Took.begin(&ctx)
}

/// `xfs:xfs_iget_recycle`, `xfs:xfs_iget_reclaim` before 5.14: the same where the cache still has what was freed.
#[tracepoint(category = "xfs", name = "xfs_iget_recycle")]
pub fn inodes_xfs_took_again(ctx: TracePointContext) -> u32 {
    XfsStep::Took.begin(&ctx)
}

/// `xfs:xfs_remove`, on entry.
#[tracepoint(category = "xfs", name = "xfs_remove")]
pub fn inodes_xfs_removes(ctx: TracePointContext) -> u32 {
    XfsStep::Removes.begin(&ctx)
}

/// `xfs:xfs_rename`, on entry. A whiteout is made after that, without a name at first.
#[tracepoint(category = "xfs", name = "xfs_rename")]
pub fn inodes_xfs_renames(ctx: TracePointContext) -> u32 {
    XfsStep::Removes.begin(&ctx)
}

/// `xfs:xfs_link`, on entry.
#[tracepoint(category = "xfs", name = "xfs_link")]
pub fn inodes_xfs_names(ctx: TracePointContext) -> u32 {
    XfsStep::Names.begin(&ctx)
}

/// `xfs:xfs_inode_inactivating` of a worker, for some inodes that leave the cache; `xfs:xfs_destroy_inode` before 5.15,
/// for all of them, by the thread that lets go of them.
#[tracepoint(category = "xfs", name = "xfs_inode_inactivating")]
pub fn inodes_xfs_tears_down(ctx: TracePointContext) -> u32 {
    XfsStep::TearsDown.begin(&ctx)
}

/// `xfs:xfs_iunlink`: an inode goes onto the list of inodes without a name, in the context of the task that removes its
/// last name, or that has made it without one (O_TMPFILE, a copy in an overlay, a whiteout).
#[tracepoint(category = "xfs", name = "xfs_iunlink")]
pub fn inodes_xfs_unlinked(ctx: TracePointContext) -> u32 {
    let Some(index) = counted(device(&ctx)) else {
        return 0;
    };
    if XfsStep::Took.is_current() {
        // A whiteout gets its name next, without another word.
        XfsStep::Names.set();
        count_on(index, InodeEvent::MadeNameless);
    } else {
        count_on(index, InodeEvent::Unlinked);
    }
    0
}

/// `xfs:xfs_iunlink_remove`: an inode is taken off the list. It is freed, or gets a name. Recent kernels fire this
/// twice for one inode, from two nested functions. The first event resets the step, so that the second does nothing.
#[tracepoint(category = "xfs", name = "xfs_iunlink_remove")]
pub fn inodes_xfs_freed(ctx: TracePointContext) -> u32 {
    let Some(index) = counted(device(&ctx)) else {
        return 0;
    };
    let what = if XfsStep::TearsDown.is_current() {
        InodeEvent::FreedLater
    } else if XfsStep::Names.is_current() {
        InodeEvent::Named
    } else {
        return 0;
    };
    XfsStep::Removes.set();
    count_on(index, what);
    0
}

/// A cgroup was removed; `parent` is 0 where it is not known.
#[inline(always)]
pub fn cgroup_removed(id: u64, parent: u64) {
    for filesystem in 0..u64::from(MAX_FILESYSTEMS) {
        let key = |cgroup_id| CgroupCountKey {
            cgroup_id,
            filesystem,
        };
        merge_into_parent(&INODE_BY_CGROUP, &key(id), &key(parent), parent != 0);
    }
}
