//! Everything that touches eBPF, cgroupfs, procfs, statfs and signals.

pub mod end;
pub mod group;
pub mod kernel;
pub mod kill;
pub mod members;
pub mod memory_scope;
pub mod observe;
pub mod pidfd;
pub mod pods;
pub mod reclaim;
pub mod throttle;
