//! The cluster around the node: the pods that the API server has here, and what is reported to it.
//! It must not know the node, either loop or the container runtime.
//!
//! Nothing here stands between a tripped trigger and SIGKILL. The fast path kills locally whether the API
//! server answers or not; this crate gives it the pods beforehand and reports afterwards.

pub mod access;
pub mod admission;
mod announcement;
mod backoff;
pub mod cache;
pub mod client;
pub mod cluster_addresses;
pub mod configz;
pub mod counters;
pub mod event_queue;
pub mod events;
pub mod eviction_api;
pub mod fleet_brake;
pub mod fleet_client;
pub mod followers;
pub mod node_status;
mod oom_events;
pub mod pause;
pub mod pod_store;
pub mod policy_document;
pub mod policy_status;
pub mod reporter;
pub mod scraper_access;
pub mod session;
pub mod soft_eviction;
pub mod soft_task;
pub mod watch;
