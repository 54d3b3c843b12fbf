//! What stands in the journal, a line each.

use serde::{Deserialize, Serialize};

use super::{graduated::GraduatedAction, oom::OomKill, pauses::Pause, reclaimed::NodeReclaimed};
use crate::reflex::Stages;

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "camelCase")]
pub enum Record {
    /// A pod was killed, or would have been.
    Evicted(Box<Eviction>),
    /// What became of it.
    Finished(Finish),
    /// The API server has heard of it.
    Reported(Reported),
    /// A pod is about to be asked to go.
    Asked(Asked),
    /// The node has given back what nobody needed (R8).
    Reclaimed(NodeReclaimed),
    /// A step was taken before anybody was evicted (R46).
    Graduated(GraduatedAction),
    /// The OOM killer has killed somebody.
    OomKill(Box<OomKill>),
    /// Evictions were paused, or a pause was lifted.
    Paused(Pause),
}

/// The API server has heard of an eviction, and it need not be told again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Reported {
    /// The eviction.
    pub id: String,
    /// When, as RFC 3339.
    pub time: String,
    /// What the API server made of it: `deleted`, `gone` before, `replaced` by a pod of the same name, `shadow`, or
    /// the refusal after which it was given up.
    pub outcome: String,
}

/// A pod is about to be evicted through the API (R5). Written beforehand, for whoever wants to know afterwards.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Asked {
    /// When, as RFC 3339.
    pub time: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The pod's UID.
    pub uid: String,
    /// Why.
    pub message: String,
    /// The time that the pod is given, in seconds.
    pub grace_period_seconds: i64,
    /// Why a PodDisruptionBudget was passed over, if one was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub override_reason: Option<String>,
}

/// A pod was killed, or would have been.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Eviction {
    /// Identifies the eviction: the boot, the agent's start and a number.
    pub id: String,
    /// When, as RFC 3339.
    pub time: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The pod's UID.
    pub uid: String,
    /// `Failed`, as the kubelet would set it (R18); absent in shadow mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// `Evicted`.
    pub reason: String,
    /// Why, in the kubelet's words.
    pub message: String,
    /// The signal.
    pub signal: String,
    /// Nothing was killed (R47).
    pub shadow: bool,
    /// The rung that woke the agent.
    pub hook: String,
    /// Moments in nanoseconds of CLOCK_MONOTONIC.
    pub stages: Stages,
    /// What was available, in the signal's unit.
    pub available: u64,
    /// What should have been.
    pub threshold: u64,
    /// Memory of the scope at the crossing, in bytes; 0 where the rung cannot tell, and for other signals.
    pub usage_at_crossing: u64,
    /// Memory of the scope at the decision, in bytes; 0 for other signals.
    pub usage_at_decision: u64,
    /// What the pod used: its working set, or its part of what the signal watches.
    pub working_set: u64,
    /// What it had requested of that; 0 where nothing can be requested.
    pub request: u64,
    /// Why the kernel refused the signal, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// What became of an evicted pod.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Finish {
    /// The eviction.
    pub id: String,
    /// Its last process was gone, ns of CLOCK_MONOTONIC; 0 when some were left.
    pub exited: u64,
    /// The threshold was available again, ns of CLOCK_MONOTONIC; 0 when it was not.
    pub freed: u64,
    /// The largest usage of the scope that was seen since, in bytes.
    pub peak_usage: u64,
    /// What was available at the end, in bytes.
    pub available: u64,
}

impl Record {
    /// A record of an eviction.
    pub fn evicted(eviction: Eviction) -> Self {
        Self::Evicted(Box::new(eviction))
    }
}
