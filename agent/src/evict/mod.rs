//! Acts: the kill, and the journal that outlives it.

pub mod journal;
pub mod kill;
pub mod reconcile;
pub mod words;
