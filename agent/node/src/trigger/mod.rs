//! What the kernel tells by itself: a counter past its limit, events that are counted.

pub mod cgroups;
pub mod counter;
pub mod drops;
pub mod hook;
pub mod inodes;
pub mod memory;
pub mod oom;
pub mod pids;
