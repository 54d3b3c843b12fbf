//! What is on disk: the journal, incident files, and their schemas. It must not know which part of the agent writes a
//! record, and which one reports it.

pub mod backlog;
pub mod chart;
pub mod disk_queue;
pub mod incident;
pub mod journal;
pub mod record;
pub mod restore;
