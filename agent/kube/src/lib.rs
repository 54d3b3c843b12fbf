//! The cluster around the node: who runs here according to the API server, and what Kubernetes is told.
//!
//! Nothing here stands between a tripped wire and SIGKILL. The fast path kills locally whether the API
//! server answers or not; this module gives it the pods beforehand and does the telling afterwards.

pub mod access;
pub mod agent;
pub mod brake;
pub mod client;
pub mod configz;
pub mod counters;
pub mod events;
pub mod eviction_api;
pub mod follow;
pub mod followers;
pub mod namespaces;
pub mod node;
pub mod policies;
pub mod remembered;
pub mod reporter;
pub mod roster;
pub mod soft_eviction;
pub mod soft_task;
pub mod status;
pub mod watch;
