//! Reads the node: memory cgroups of both versions, filesystems, process ids, pressure stall information, and when
//! to look again.
//!
//! Every reader is rooted on a path that its maker gives, so that tests read recorded trees; those the reflex uses
//! hold their files open and read without allocating.

pub mod cgroup;
pub mod deadline;
pub mod filesystem;
pub mod machine;
pub mod mounts;
pub mod pids;
pub mod process;
pub mod psi;
pub mod statistics;
pub mod swap;
pub(crate) mod text;
pub mod walk;
