//! Decides: thresholds, state, ranking. It must not know I/O, clocks, threads, async or libc: callers bring what was
//! seen, and the time.
//!
//! In the order of reading: [`model`] has the values; [`accounting`] what of them is available, [`shortage`] what is
//! lacking, [`growth`] how fast it goes, [`pace`] whether a pod may go now. `ranking`, `select` and [`round`] say which
//! one. The planner puts that together for all signals; [`limiter`] and [`permit`] are what policies allow,
//! [`eviction_state`] what has happened to a pod.

pub mod accounting;
pub mod counter_history;
pub mod eviction_state;
pub mod fleet;
pub mod flush_deadline;
mod forecast;
pub mod growers;
pub mod growth;
pub mod kubelet_times;
pub mod limiter;
pub mod message;
pub mod mitigation;
pub mod model;
pub mod node_reclaim;
pub mod pace;
pub mod pending;
pub mod permit;
mod planner;
mod ranking;
pub mod record;
pub mod recorder;
pub mod round;
pub mod sampling;
mod select;
pub mod shortage;
mod sizing;
pub mod soft;
pub mod terminating;
pub mod units;

pub use forecast::{Forecast, Trend};
pub use message::Message;
pub use model::layout::{Layout, NodeReclaim};
pub use model::managed::ManagedPod;
pub use model::observation::{Observation, Observations};
pub use model::pod::{
    Container, ContainerKind, EmptyDir, Owner, Pod, SYSTEM_CRITICAL_PRIORITY,
    SYSTEM_NODE_CRITICAL_PRIORITY, Volume,
};
pub use model::qos::{ComputeResources, QosClass, oom_badness, oom_score_adj};
pub use model::signal::{NodeCondition, Resource, Signal, UnknownSignal};
pub use model::threshold::{RaisedValue, Threshold, ThresholdValue, hard_threshold};
pub use model::usage::{ContainerUsage, FsUsage, PodUsage, VolumeUsage};
pub use planner::Planner;
pub use planner::empty_pods::{EmptyPods, PodState};
pub use planner::local_storage::{LocalStorageExcess, local_storage_excess};
pub use planner::node_reclaim::{
    NodeReclaimOptions, NodeReclaimers, ReclaimProgress, ReclaimUnderWay,
};
pub use planner::plan::Recreation;
pub use planner::plan::{
    BlockedThreshold, Cause, EvictionDecision, IMMEDIATE_GRACE_PERIOD_SECONDS, NodeBounds,
    NodeState, Plan, PlannerSettings, SignalForecast, Snapshot, Timing,
};
pub use planner::restored::{
    RestoredOwnerEviction, RestoredPending, RestoredRecreation, RestoredState,
};
pub use ranking::key::{RankInputs, RankKey};
pub use ranking::{Ranked, Ranking, Usages};
pub use select::{Among, Candidate, CandidateState, SelectionCriteria, rank, select};
pub use sizing::MemorySizing;
