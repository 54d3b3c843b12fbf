//! Evidence of the OOM killer and of the reclaim that precedes it, each in a ring buffer of its own.

/// What a [`OomEvent`] record tells.
pub mod kind {
    /// The OOM killer has chosen a victim (`mark_oom_victim` in the kernel): `pid` is the victim's, and nothing more is
    /// known of it here.
    pub const MARK_VICTIM: u32 = 0;
    /// A cgroup at its limit begins to reclaim directly: `pid` is the allocating task's.
    pub const RECLAIM_BEGIN: u32 = 1;
}

/// One record of evidence.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OomEvent {
    /// When, in nanoseconds of CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Id of the allocating task's memory cgroup, or 0 where it could not be read.
    pub cgroup_id: u64,
    /// One of [`kind`].
    pub kind: u32,
    /// See [`kind`].
    pub pid: u32,
}

/// Levels of the cgroup tree that an [`OomKill`] tells of: a container within a container of a systemd slice has eight.
pub const LEVELS: usize = 10;

/// A number that could not be read.
pub const UNKNOWN: u64 = u64::MAX;

/// One cgroup at the moment of an OOM kill.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// Its id, 0 above the root.
    pub id: u64,
    /// Its usage in pages.
    pub usage: u64,
    /// Its limit in pages.
    pub max: u64,
}

/// The OOM killer has chosen a victim.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OomKill {
    /// When, in nanoseconds of CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Id of the cgroup that was at its limit, 0 when the machine was short, [`UNKNOWN`] where no program has seen it.
    pub limit_id: u64,
    /// Anonymous, file and shared memory of the victim, in pages; [`UNKNOWN`] where it could not be read.
    pub rss: u64,
    /// The victim's memory cgroup and all above it.
    pub levels: [Level; LEVELS],
    /// Its name (`task_struct.comm`), ended by a zero.
    pub comm: [u8; 16],
    /// Its process id.
    pub pid: u32,
    /// Its `oom_score_adj`.
    pub oom_score_adj: i32,
}

/// What `oom_kill_process` was called with, for the victims that it marks.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OomContext {
    /// The task that allocates: process id and thread id, as `bpf_get_current_pid_tgid` has them.
    pub task: u64,
    /// When, in nanoseconds of CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Id of the cgroup that was at its limit, as in [`OomKill::limit_id`].
    pub limit_id: u64,
}

crate::plain_old_data!(
    OomEvent = 2 * 8 + 2 * 4,
    OomKill = 3 * 8 + LEVELS * 3 * 8 + 16 + 2 * 4,
    OomContext = 3 * 8,
);
