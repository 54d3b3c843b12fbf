//! Who runs here: cgroups by their names, a manifest file, and the table that the reflex reads.

mod json;
pub mod manifest;
pub mod names;
pub mod spec;
pub mod stats;
pub mod table;

pub use json::JsonError;
