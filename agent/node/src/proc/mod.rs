//! procfs.

pub mod machine;
pub(crate) mod mountinfo;
pub mod numa;
pub mod pidfd;
pub mod pids;
pub mod process;
pub mod psi;
pub mod watermarks;
