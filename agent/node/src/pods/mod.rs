//! Who runs here: cgroups by their names, a manifest file, and the table that the reflex reads.

pub mod joined;
pub mod names;
pub mod table;
pub mod tree;
pub mod unopened;
