//! What is on disk: the journal, incident files, and their schemas.

pub mod backlog;
pub mod chart;
pub mod disk_queue;
pub mod incident;
pub mod journal;
pub mod record;
pub mod restore;
