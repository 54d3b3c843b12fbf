//! Decides: thresholds, state, ranking. No I/O, no clock, no async.

mod admission;
pub mod clearance;
mod comeback;
mod forecast;
pub mod growth;
mod layout;
mod local_storage;
pub mod managed;
mod manager;
pub mod message;
mod observation;
pub mod pace;
mod pod;
mod pressure;
mod qos;
pub mod quantity;
mod ranking;
pub mod reclaim;
pub mod record;
pub mod recorder;
pub mod restraint;
mod round;
mod select;
pub mod settings;
mod signal;
mod sizing;
mod stall;
mod standing;
pub mod steps;
pub mod terminating;
pub mod threshold;
pub mod usage;
mod victims;

pub use admission::admits;
pub use comeback::Comeback;
pub use forecast::{Forecast, Trend};
pub use layout::{Layout, NodeReclaim};
pub use local_storage::{LocalStorageExcess, local_storage_excess};
pub use managed::ManagedPod;
pub use manager::Manager;
pub use message::Message;
pub use observation::{Observation, Observations};
pub use pod::{
    Container, ContainerKind, EmptyDir, Owner, Pod, SYSTEM_CRITICAL_PRIORITY,
    SYSTEM_NODE_CRITICAL_PRIORITY, Volume,
};
pub use pressure::Pressure;
pub use qos::{ComputeResources, OomScale, QosClass, oom_score_adj};
pub use ranking::{Ranked, Ranking, Usages};
pub use round::{
    Cause, Earlier, EarlierComeback, EarlierEviction, EarlierVictim, Eviction,
    IMMEDIATE_GRACE_PERIOD_SECONDS, Round, Settings, SignalForecast, Snapshot,
};
pub use select::{Candidate, CandidateState, Demand, Rules, Selection, select};
pub use signal::{NodeCondition, Resource, Signal, UnknownSignal};
pub use sizing::MemorySizing;
pub use stall::{StallCause, StallFacts, stall_cause};
pub use standing::{Claim, Standing};
pub use threshold::{Threshold, ThresholdValue};
pub use usage::{ContainerUsage, FsUsage, PodUsage, VolumeUsage};
