//! Evidence of the OOM killer.

/// Levels of the cgroup tree that an [`OomKill`] tells of: a container of a kind node that is a pod of CI has twelve.
pub const LEVELS: usize = 16;

/// Decisions of the OOM killer whose processes are counted at a time: many more than a ring buffer holds records.
pub const DECISIONS: u32 = 1024;

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

/// The OOM killer has chosen a victim. What it kills with it has no record: all processes of a cgroup with
/// `memory.oom.group`.
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
    /// Number of the decision, from 1 on.
    pub decision: u32,
    /// Processes that the decision has killed so far.
    pub processes: u32,
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

/// The last decision of the OOM killer, for the processes that it kills together.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OomDecision {
    /// The task that allocates, as in [`OomContext::task`].
    pub task: u64,
    /// [`OomContext::time_ns`]; 0 where no program sees it.
    pub time_ns: u64,
    /// When a process was marked last, in nanoseconds of CLOCK_MONOTONIC.
    pub marked_ns: u64,
    /// Address of the cgroup that is killed as a whole, or 0.
    pub group: u64,
    /// Process id of the victim, which the kernel finds in that cgroup once more.
    pub pid: u32,
    /// Number of the decision, from 1 on.
    pub number: u32,
}

crate::plain_old_data!(
    OomKill = 3 * 8 + LEVELS * 3 * 8 + 16 + 4 * 4,
    UnattributedKill = 8 + 2 * 4,
    OomContext = 3 * 8,
    OomDecision = 4 * 8 + 2 * 4,
);
