//! The programs in the kernel against the files that show the same numbers.

mod cgroups;
mod charges;
mod facts;
mod inodes;
mod kill;
mod memory;
mod mitigation;
mod oom;
mod overhead;
mod pids;
mod statistics;
mod wakeups;
