//! A count with triggers: how many things of a kind (tasks, inodes) came and went since the programs were loaded.
//!
//! Only programs write the count, only the agent writes the triggers. The agent knows what was available when the count
//! stood where it stood, and so turns "fewer than N available" into a limit of the count.

/// Triggers of one count: below and recovered, for a soft and a hard threshold, twice over.
pub const TRIGGERS: u32 = 8;

/// Cgroups that are counted one by one (for inodes: pairs of cgroup and filesystem); more are counted in the whole
/// only, and as a drop.
pub const MAX_CGROUP_COUNTS: u32 = 16384;

pub use crate::memory::Direction;

/// One armed trigger, written by the agent.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CounterTrigger {
    /// The limit of the count.
    pub limit: i64,
    /// Counts the armings of this slot from 1; 0 means that this slot and all behind it are unused.
    pub generation: u64,
    /// A [`Direction`], of the count: rising means that less is available.
    pub direction: u32,
    /// Without meaning; makes the size explicit.
    pub padding: u32,
}

/// One crossing, in a trigger's ring buffer.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CounterTriggerEvent {
    /// When, in nanoseconds of CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// The generation that tripped.
    pub generation: u64,
    /// The count at that moment.
    pub count: i64,
    /// The limit that it crossed.
    pub limit: i64,
    /// Id of the memory cgroup of the task that made it cross, or 0 where it could not be read.
    pub cgroup_id: u64,
    /// Thread group id of that task.
    pub tgid: u32,
    /// Slot of the trigger: count * [`TRIGGERS`] + trigger.
    pub slot: u32,
}

/// What the tasks of one cgroup did.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CgroupCount {
    /// Things made.
    pub made: i64,
    /// Things removed, by whichever cgroup they were made.
    pub gone: i64,
}

crate::plain_old_data!(
    CounterTrigger = 2 * 8 + 2 * 4,
    CounterTriggerEvent = 5 * 8 + 2 * 4,
    CgroupCount = 2 * 8,
);
