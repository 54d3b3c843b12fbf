//! The inode trigger: counts what filesystems count in their free inodes.
//!
//! Overlay needs no hook of its own: a file in an overlay is made on its upper filesystem, by the task that asked.

use aya_ebpf::{
    macros::{btf_tracepoint, map, tracepoint},
    maps::{Array, HashMap, LruHashMap, RingBuf},
    programs::{BtfTracePointContext, TracePointContext},
};
use evictd_common::{
    counter::{CgroupCount, CounterTrigger, TRIGGERS},
    inodes::{MAX_FILESYSTEMS, MAX_SHARES, ShareKey},
};

use crate::{
    counter::{EventCounter, add_to_cgroup, merge_into_parent},
    kstruct::Address,
    place::{current_cgroup, device_of, is_unlinked},
};

/// `s_dev` of the filesystems that are counted; 0 is none.
#[map]
static INODE_DEVICES: Array<u32> = Array::with_max_entries(MAX_FILESYSTEMS, 0);
#[map]
static INODE_COUNTS: Array<i64> = Array::with_max_entries(MAX_FILESYSTEMS, 0);
#[map]
static INODE_WIRES: Array<CounterTrigger> = Array::with_max_entries(MAX_FILESYSTEMS * TRIGGERS, 0);
#[map]
static INODE_TRIPPED: Array<u64> = Array::with_max_entries(MAX_FILESYSTEMS * TRIGGERS, 0);
#[map]
static INODE_WAKEUPS: RingBuf = RingBuf::with_byte_size(4096, 0);
#[map]
static INODE_SHARES: HashMap<ShareKey, CgroupCount> = HashMap::with_max_entries(MAX_SHARES, 0);

const COUNTER: EventCounter = EventCounter {
    counts: &INODE_COUNTS,
    triggers: &INODE_WIRES,
    tripped: &INODE_TRIPPED,
    wakeups: &INODE_WAKEUPS,
};

/// What a hook tells about an inode.
#[derive(Clone, Copy, PartialEq, Eq)]
enum InodeEvent {
    /// It was made by the current task.
    Made,
    /// It was freed by the current task, or on its behalf in its context.
    Freed,
    /// It was freed by a worker of the filesystem.
    FreedLater,
    /// The current task took its last name away; it is freed later.
    Unlinked,
}

#[inline(always)]
fn count(device: Option<u32>, what: InodeEvent) {
    let Some(device) = device else {
        return;
    };
    for index in 0..MAX_FILESYSTEMS {
        let Some(&counted) = INODE_DEVICES.get(index) else {
            return;
        };
        if counted == device && device != 0 {
            count_on(index, what);
            return;
        }
    }
}

#[inline(always)]
fn count_on(index: u32, what: InodeEvent) {
    let cgroup_id = current_cgroup();
    match what {
        InodeEvent::Made => COUNTER.count(index, 1, cgroup_id),
        InodeEvent::Freed | InodeEvent::FreedLater => COUNTER.count(index, -1, cgroup_id),
        InodeEvent::Unlinked => {}
    }
    let (made, gone) = match what {
        InodeEvent::Made => (1, 0),
        InodeEvent::Freed | InodeEvent::Unlinked => (0, 1),
        InodeEvent::FreedLater => return,
    };
    let key = ShareKey {
        cgroup_id,
        filesystem: u64::from(index),
    };
    add_to_cgroup(&INODE_SHARES, &key, made, gone);
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
    const FIRST_FIELD: usize = 8;
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

/// `xfs:xfs_iunlink`: the last name goes, in the context of who removes it.
#[tracepoint(category = "xfs", name = "xfs_iunlink")]
pub fn inodes_xfs_unlinked(ctx: TracePointContext) -> u32 {
    count(device(&ctx), InodeEvent::Unlinked);
    if let Some(nameless) = UnlinkedInode::from_event(&ctx) {
        // What was taken off the list goes there again: it has been another inode since.
        let _ = INODE_TAKEN_OFF.remove(&nameless);
    }
    0
}

/// `xfs:xfs_iunlink_remove`: a worker takes the inode off the list of the nameless and frees it.
#[tracepoint(category = "xfs", name = "xfs_iunlink_remove")]
pub fn inodes_xfs_freed(ctx: TracePointContext) -> u32 {
    if !is_reported_twice(&ctx) {
        count(device(&ctx), InodeEvent::FreedLater);
    }
    0
}

/// An inode on the list of the nameless, as `xfs_iunlink` and `xfs_iunlink_remove` tell it.
#[repr(C)]
#[derive(Clone, Copy)]
struct UnlinkedInode {
    /// `dev` and `agno`, which lie side by side.
    device_and_group: u64,
    /// `agino`.
    inode: u64,
}

impl UnlinkedInode {
    #[inline(always)]
    fn from_event(ctx: &TracePointContext) -> Option<Self> {
        const DEVICE_AND_GROUP: usize = 8;
        const INODE: usize = 16;
        Some(Self {
            // SAFETY: the offset lies inside the record.
            device_and_group: unsafe { ctx.read_at(DEVICE_AND_GROUP) }.ok()?,
            // SAFETY: as above.
            inode: u64::from(unsafe { ctx.read_at::<u32>(INODE) }.ok()?),
        })
    }
}

/// Inodes whose removal from the list was told once. Where the kernel tells it twice they are here for the microseconds
/// in between; where it tells it once they stay until they are pushed out, or on the list again.
#[map]
static INODE_TAKEN_OFF: LruHashMap<UnlinkedInode, u8> = LruHashMap::with_max_entries(1024, 0);

/// Recent kernels run the tracepoint twice for one inode, in two functions that call each other. Between them the task
/// may wait for a buffer and go on elsewhere, so that neither the time nor the CPU tells a second word from a new inode
/// with the old number; but that one must have come onto the list in between.
#[inline(always)]
fn is_reported_twice(ctx: &TracePointContext) -> bool {
    let Some(nameless) = UnlinkedInode::from_event(ctx) else {
        return false;
    };
    if INODE_TAKEN_OFF.remove(&nameless).is_ok() {
        return true;
    }
    // Refused, it would be counted twice; the next statfs corrects that.
    let _ = INODE_TAKEN_OFF.insert(&nameless, &0, 0);
    false
}

/// A cgroup was removed; `parent` is 0 where it is not known.
#[inline(always)]
pub fn cgroup_removed(id: u64, parent: u64) {
    for filesystem in 0..u64::from(MAX_FILESYSTEMS) {
        let key = |cgroup_id| ShareKey {
            cgroup_id,
            filesystem,
        };
        merge_into_parent(&INODE_SHARES, &key(id), &key(parent), parent != 0);
    }
}
