//! Node-level reclaim (R8): what the container runtime can give back when a disk is short, before any pod has to go.
//!
//! Exited containers and dead sandboxes first ([`dead`]), then images that nobody uses, oldest first ([`images`]): what
//! the kubelet removes, in its order, over the same interface. Which of both a disk is helped by is the layout's to say
//! ([`evictd_engine::Layout::node_reclaim`]). Everything here runs on the slow side and has a deadline; the rounds hear
//! how it went, look again, and then decide who must go.

mod client;
pub mod dead;
pub mod images;
mod keeper;
pub mod messages;
mod reclaim;

pub use client::{CriError, Runtime};
pub use keeper::{Counters, Keeper, Request};
pub use reclaim::Reclaimer;
