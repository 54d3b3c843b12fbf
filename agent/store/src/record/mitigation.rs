//! What the journal keeps of a step before an eviction.

use serde::{Deserialize, Serialize};

/// A step was taken before a pod was evicted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MitigationRecord {
    /// When, as RFC 3339.
    pub time: String,
    /// `reclaim`, `brake` or `release`.
    pub step: String,
    /// Signal that was short.
    pub signal: String,
    /// Pod by pod.
    pub pods: Vec<MitigatedPod>,
    /// What was available before, in bytes; for a release, when the throttle was set.
    pub available_before: i64,
    /// Bytes that were available after the step.
    pub available_after: i64,
    /// How long it took, in nanoseconds.
    pub took: u64,
    /// Why not everything was done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
}

/// What came of one pod.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MitigatedPod {
    /// The pod's namespace; empty where only the UID is known any more.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The pod's UID.
    pub uid: String,
    /// What was asked of it, in bytes.
    pub asked: u64,
    /// Bytes by which less is charged to the pod.
    pub usage_given: u64,
    /// What of that counted as used, in bytes.
    pub working_set_given: u64,
    /// Its `memory.high`, set or taken away, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub high: Option<u64>,
}
