//! Who runs here: cgroups by their names, a manifest file, and the table that the reflex reads.

pub mod joined;
mod json;
pub mod manifest;
pub mod names;
pub mod spec;
pub mod stats;
pub mod table;
pub mod tree;
pub mod unopened;

pub use json::JsonError;

#[cfg(test)]
mod local_storage_tests;
