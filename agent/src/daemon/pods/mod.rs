//! The node's pods: where they come from (a manifest, or the API server joined with the cgroup tree), and the table of
//! them that both loops and the disk scan have.

mod source;
mod table;

pub use source::{OpenedPods, PodSource, open};
pub use table::PublishedPods;
