//! Node-level reclaim: what the container runtime can give back when a disk is short, before any pod has to go.
//! It must not know the node or the API server.
//!
//! Exited containers and dead sandboxes first ([`exited`]), then images that no container uses, oldest first
//! ([`images`]): what the kubelet removes, in its order, over the same interface. Which of both a disk is helped by is
//! the layout's to say ([`evictd_engine::Layout::node_reclaim`]). Everything here runs apart from the manager and has a
//! deadline; the manager gets the result, looks again, and then decides which pods must go.

mod client;
mod collector;
mod disks;
pub mod exited;
pub mod images;
pub mod messages;
mod worker;

pub use client::{CriError, Runtime};
pub use collector::Reclaimer;
pub use disks::RuntimeDisks;
pub use worker::{Counters, CriEvent, CriWorker, Request};
