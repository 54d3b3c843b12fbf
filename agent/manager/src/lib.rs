//! The manager: everything that the fast path is not there for.
//!
//! The fast path answers hard memory pressure within microseconds and does nothing else. The other signals (process ids,
//! inodes, bytes on disk), the soft thresholds, pods above their own limits on local storage, and what the node says of
//! all that are the work of this thread: it sleeps until a trigger is crossed or the nearest threshold could have been
//! reached, looks at everything, asks the engine's [`evictd_engine::Planner`], and kills or asks. It may allocate, and it
//! does what takes time; what waits for a network is done elsewhere.
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_types,
        clippy::disallowed_methods,
        clippy::disallowed_macros
    )
)]

mod disk_scan;
mod event_queue;
mod handle;
mod manager_loop;
mod message;
pub mod mitigation_worker;
mod pod_dirs;
mod sources;
mod usage;

pub use disk_scan::{DirResolver, DiskScanner, ScanTarget, fixed};
pub use event_queue::EventQueue;
pub use handle::ManagerHandle;
pub use manager_loop::node_reclaim::ReclaimOptions;
pub use manager_loop::{Setup, SharedStatus, Status};
pub use message::MitigationOutcome;
pub use message::{
    Command, CommandQueue, EvictionReport, ManagerEvent, PodSet, ReclaimBy, ReclaimRequest,
    Reclaimed, SoftEvictionRequest,
};
pub use pod_dirs::{POD_LOGS, PodDirs, of_kubelet_pod};
pub use sources::{DiskSource, DiskSources, SignalSources};
