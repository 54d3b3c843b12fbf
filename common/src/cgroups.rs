//! Cgroup events: cgroups that come and go, and tasks that move between them.

/// Longest path of a record, in bytes; the kernel's own limit in these tracepoints is 1024.
pub const PATH_BYTES: usize = 392;

/// What a [`CgroupRecord`] tells.
pub mod kind {
    /// A cgroup was made.
    pub const MADE: u32 = 0;
    /// A cgroup was removed.
    pub const REMOVED: u32 = 1;
    /// A task was moved into a cgroup.
    pub const ATTACHED: u32 = 2;
}

/// One event of the memory hierarchy.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CgroupRecord {
    /// When, in nanoseconds of CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Id of the cgroup.
    pub cgroup_id: u64,
    /// One of [`kind`].
    pub kind: u32,
    /// Bytes of `path` that are in use, without an end mark. At its full size the path was cut.
    pub length: u32,
    /// Path of the cgroup below the hierarchy's root.
    pub path: [u8; PATH_BYTES],
}

crate::plain_old_data!(CgroupRecord = 2 * 8 + 2 * 4 + PATH_BYTES);
