//! Filesystems: what is free, what is mounted, what a directory uses.

mod beneath;
pub mod du;
pub mod mounts;
pub(crate) mod reader;
pub mod statfs;
