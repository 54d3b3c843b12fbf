//! What the journal keeps of a step before an eviction.

use serde::{Deserialize, Serialize};

use crate::{graduated::Step, rounds::Graduated};

/// A step was taken before anybody was evicted (R46).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GraduatedAction {
    /// When, as RFC 3339.
    pub time: String,
    /// `reclaim`, `brake` or `release`.
    pub step: String,
    /// Which signal was short.
    pub signal: String,
    /// Pod by pod.
    pub pods: Vec<GraduatedPod>,
    /// What was available before, in bytes; for a release, when the brake was set.
    pub available_before: i64,
    /// And afterwards.
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
pub struct GraduatedPod {
    /// The pod's namespace; empty where only the UID is known any more.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The pod's UID.
    pub uid: String,
    /// What was asked of it, in bytes.
    pub asked: u64,
    /// By how much less is charged to it, in bytes.
    pub usage_given: u64,
    /// What of that counted as used, in bytes.
    pub working_set_given: u64,
    /// Its `memory.high`, set or taken away, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub high: Option<u64>,
}

impl GraduatedAction {
    /// The record of a step that has just ended.
    pub fn of(graduated: &Graduated) -> Self {
        let done = &graduated.done;
        let step = match done.step {
            Step::Reclaim(_) => "reclaim",
            Step::Brake => "brake",
            Step::Release => "release",
        };
        let pods = done.pods.iter().map(|pod| GraduatedPod {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            uid: pod.uid.clone(),
            asked: pod.given.asked,
            usage_given: pod.given.usage(),
            working_set_given: pod.given.working_set(),
            high: pod.high,
        });
        Self {
            time: jiff::Timestamp::now().to_string(),
            step: step.to_owned(),
            signal: done.signal.to_string(),
            pods: pods.collect(),
            available_before: graduated.available_before,
            available_after: graduated.available_after,
            took: u64::try_from(done.took.as_nanos()).unwrap_or(u64::MAX),
            refusal: done.refusal.clone(),
        }
    }
}
