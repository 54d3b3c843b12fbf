//! What the journal keeps of a step before an eviction.

use serde::{Deserialize, Serialize};

/// A step was taken before a pod was evicted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MitigationRecord {
    /// Time of the step, as RFC 3339.
    pub time: String,
    /// `reclaim`, `brake` or `release`.
    pub step: String,
    /// Signal that was short.
    pub signal: String,
    /// Pod by pod.
    pub pods: Vec<MitigatedPod>,
    /// Bytes that were available before the step; for a release, those when the throttle was set.
    pub available_before: i64,
    /// Bytes that were available after the step.
    pub available_after: i64,
    /// Time that the step took, in nanoseconds.
    pub took: u64,
    /// Why not everything was done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
}

/// Effect of a step on one pod.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MitigatedPod {
    /// The pod's namespace; empty where only the UID is known any more.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The pod's UID.
    pub uid: String,
    /// Bytes that were asked of the pod.
    pub asked: u64,
    /// Bytes by which less is charged to the pod.
    pub usage_given: u64,
    /// Bytes by which less of that counts as used.
    pub working_set_given: u64,
    /// Value of the pod's `memory.high`, set or taken away, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub high: Option<u64>,
}
