//! Acts: the kill, and the journal that outlives it.

pub mod api;
pub mod journal;
pub mod kill;
pub mod reconcile;
pub mod report;
mod unreported;
pub mod words;
