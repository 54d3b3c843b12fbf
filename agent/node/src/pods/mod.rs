//! Who runs here: cgroups by their names, a manifest file, and the table that the fast path reads.

pub mod builder;
pub mod cgroup_name;
pub mod discovery;
pub mod opener;
pub mod table;
