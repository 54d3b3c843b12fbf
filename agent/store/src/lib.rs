//! What is on disk: the journal, incident files, and their schemas.

pub mod counted;
pub mod graduated;
pub mod incident;
pub mod incidents;
pub mod journal;
pub mod oom_kill;
pub mod picture;
pub mod reclaimed;
pub mod records;
pub mod unreported;
