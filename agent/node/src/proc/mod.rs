//! procfs.

pub mod machine;
pub mod numa;
pub mod pidfd;
pub mod pids;
pub mod process;
pub mod psi;
