//! The PID trigger: tasks that came and went, in all and per cgroup.

/// Cgroups whose tasks are counted one by one; more are counted in the whole only, and as a drop.
pub const MAX_SHARES: u32 = 8192;
