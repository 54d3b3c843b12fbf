//! The pods of this node: found by the names of their cgroups, opened, and held in the table that the fast path reads.

pub mod builder;
pub mod cgroup_name;
pub mod dirs;
pub mod discovery;
pub mod opener;
pub mod table;
