//! Acts: the kill, the journal that outlives it, and what the API server is asked and told.

pub mod api;
mod counted;
pub mod end;
mod graduated;
mod group;
pub mod journal;
pub mod kill;
pub mod members;
pub mod oom;
mod pauses;
pub mod pidfd;
mod reclaimed;
pub mod reconcile;
mod records;
pub mod report;
pub mod soft;
mod unreported;
pub mod words;
