//! cgroupfs: what a cgroup uses, which processes are in it, and their end.

pub mod end;
pub mod hierarchy;
pub mod kill;
pub mod limit_writes;
pub mod limited;
pub mod members;
pub mod memory;
pub mod open_cgroup;
pub mod pids;
pub mod protection;
pub mod realtime;
pub mod reclaim;
pub(crate) mod stat_flush;
pub mod swap;
pub mod throttle;
pub mod tree;
mod walk;
