//! Evidence of the OOM killer.

/// Levels of the cgroup tree that an [`OomKill`] tells of: a container of a kind node that is a pod of CI has twelve.
pub const LEVELS: usize = 16;

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

/// The OOM killer has chosen a victim, on a kernel that lets no program read more of it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnattributedKill {
    /// Id of the allocating task's memory cgroup, or 0 where it could not be read.
    pub cgroup_id: u64,
    /// The victim's process id.
    pub pid: u32,
    /// Without meaning; makes the size explicit.
    pub padding: u32,
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
    OomKill = 3 * 8 + LEVELS * 3 * 8 + 16 + 2 * 4,
    UnattributedKill = 8 + 2 * 4,
    OomContext = 3 * 8,
);
