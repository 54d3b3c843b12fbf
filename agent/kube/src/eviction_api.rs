//! What the API server is asked to do with a pod.

use std::{collections::BTreeMap, time::Duration};

use evictd_config::kube::decode::null_default;
use evictd_engine::{
    Cause, IMMEDIATE_GRACE_PERIOD_SECONDS, Pod,
    message::{self, EVICTED, PHASE},
};
use evictd_store::record::{EvictionRecord, RequestRecord, StuckPod, oom_kill::PodName};
use http::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::client::{
    ADMISSION_DEADLINE, ApiClient, ApiError, ApiRequest, JSON, METADATA_LIST, STRATEGIC_MERGE,
};

/// The grace period of a pod that is dead already, in seconds. Not 0: that takes the object away before the kubelet has
/// cleaned up, and a StatefulSet would start the next one too early.
pub const DEAD_GRACE_SECONDS: i64 = IMMEDIATE_GRACE_PERIOD_SECONDS;
/// How long the condition may hold up the DELETE of a killed pod: the kubelet looks at its containers once a second and
/// would start a killed one again.
pub const KILLED_DEADLINE: Duration = Duration::from_millis(300);

/// A pod by name, and by UID so that a new one of the same name is never touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodRef<'a> {
    /// `metadata.namespace`.
    pub namespace: &'a str,
    /// `metadata.name`.
    pub name: &'a str,
    /// `metadata.uid`.
    pub uid: &'a str,
}

macro_rules! pod_ref_from {
    ($($named:ty),*) => {$(
        impl<'a> From<&'a $named> for PodRef<'a> {
            fn from(pod: &'a $named) -> Self {
                Self {
                    namespace: &pod.namespace,
                    name: &pod.name,
                    uid: &pod.uid,
                }
            }
        }
    )*};
}
pod_ref_from!(EvictionRecord, Pod, PodName, RequestRecord, StuckPod);

impl PodRef<'_> {
    fn path(&self, subresource: &str) -> String {
        let Self {
            namespace, name, ..
        } = self;
        format!("/api/v1/namespaces/{namespace}/pods/{name}{subresource}")
    }
}

/// Outcome of a DELETE or of the dry run of an Eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// The pod is being deleted now.
    Deleted,
    /// The pod was gone before.
    Gone,
    /// Another pod has its name: the one that was meant is gone.
    Replaced,
    /// The pod has failed, and its object stays.
    Failed,
}

impl Removal {
    /// Word for the outcome in the journal.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Deleted => "deleted",
            Self::Gone => "gone",
            Self::Replaced => "replaced",
            Self::Failed => "failed",
        }
    }
}

/// Sets the condition that says what ended the pod and why, in the words of the kubelet
/// (`eviction_manager.go`: `DisruptionTarget`, `TerminationByKubelet`), so that Jobs with a pod failure policy take it
/// for what it is. Conditions are merged by type: those of other writers are not touched. The UID is the precondition;
/// a resourceVersion would only make the kubelet's own updates in between refuse this one. `time` is RFC 3339.
///
/// # Errors
/// The pod is gone, or there was no answer within the deadline: then the DELETE comes first.
pub async fn set_disruption_target(
    client: &ApiClient,
    pod: PodRef<'_>,
    message: &str,
    time: &str,
    deadline: Duration,
) -> Result<(), ApiError> {
    patch_condition(client, pod, disruption_target(message, time), deadline).await
}

/// Sets DisruptionTarget to False, as the disruption controller does for a stale condition; it leaves those with the
/// kubelet's reason alone.
///
/// # Errors
/// The pod is gone, or the API server does not take it.
pub async fn withdraw_disruption_target(
    client: &ApiClient,
    pod: PodRef<'_>,
) -> Result<(), ApiError> {
    let condition = json!({
        "type": message::DISRUPTION_TARGET,
        "status": "False",
        "reason": null,
        "message": null,
        "lastTransitionTime": format!("{:.0}", jiff::Timestamp::now()),
    });
    patch_condition(client, pod, condition, ADMISSION_DEADLINE).await
}

async fn patch_condition(
    client: &ApiClient,
    pod: PodRef<'_>,
    condition: Value,
    deadline: Duration,
) -> Result<(), ApiError> {
    let body = json!({
        "metadata": {"uid": pod.uid},
        "status": {"conditions": [condition]},
    });
    let mut request = ApiRequest::new(Method::PATCH, pod.path("/status"), STRATEGIC_MERGE, &body);
    request.deadline = deadline;
    client.send(&request).await
}

fn disruption_target(text: &str, time: &str) -> Value {
    json!({
        "type": message::DISRUPTION_TARGET,
        "status": "True",
        "reason": message::TERMINATION_BY_KUBELET,
        "message": text,
        "lastTransitionTime": seconds(time),
    })
}

/// A pod above a limit of its own is no disruption: with the condition a Job would start it again and again.
pub fn announces_disruption(eviction: &EvictionRecord) -> bool {
    Cause::named(&eviction.signal).is_none_or(Cause::announces_disruption)
}

/// Sets the status that the kubelet gives a pod that it evicts, in one patch with the condition. A kubelet that finds a
/// phase at which a pod is over ends what is left of the pod and keeps the phase, unless it writes a status of its own
/// first.
///
/// # Errors
/// No answer, or a refusal other than that this pod does not exist any more.
pub async fn fail(client: &ApiClient, eviction: &EvictionRecord) -> Result<Removal, ApiError> {
    let message = eviction.message.trim_end();
    let mut status = json!({"phase": PHASE, "reason": EVICTED, "message": message});
    if announces_disruption(eviction) {
        status["conditions"] = json!([disruption_target(message, &eviction.time)]);
    }
    let pod = PodRef::from(eviction);
    let body = json!({"metadata": {"uid": pod.uid}, "status": status});
    let mut request = ApiRequest::new(Method::PATCH, pod.path("/status"), STRATEGIC_MERGE, &body);
    request.deadline = ADMISSION_DEADLINE;
    match client.send(&request).await {
        Ok(()) => Ok(Removal::Failed),
        Err(e) if e.code() == 404 && !e.is_denied_by_webhook() => Ok(Removal::Gone),
        Err(e) => Err(e),
    }
}

/// Whether the API server has the pod, not over and not being deleted.
///
/// # Errors
/// No answer, or a refusal.
pub async fn is_active(client: &ApiClient, pod: PodRef<'_>) -> Result<bool, ApiError> {
    let found = find(client, pod).await?;
    Ok(found.is_some_and(|found| !found.is_over() && found.metadata.deletion_timestamp.is_none()))
}

/// Whether the API server has the pod no more, or as one that is over.
///
/// # Errors
/// No answer, or a refusal.
pub async fn is_over(client: &ApiClient, pod: PodRef<'_>) -> Result<bool, ApiError> {
    let found = find(client, pod).await?;
    Ok(found.is_none_or(|found| found.is_over()))
}

async fn find(client: &ApiClient, pod: PodRef<'_>) -> Result<Option<Listed>, ApiError> {
    // The agent has no right to get pods, only to list them.
    let (namespace, name) = (pod.namespace, pod.name);
    let path = format!("/api/v1/namespaces/{namespace}/pods?fieldSelector=metadata.name%3D{name}");
    let list: List = client.read(&ApiRequest::get(path)).await?;
    let mut found = list.items.into_iter();
    Ok(found.find(|found| found.metadata.uid == pod.uid))
}

/// The namespaces and names of a node's pods by UID, as the API server itself knows them now.
///
/// # Errors
/// No answer, or a refusal.
pub async fn names_on(
    client: &ApiClient,
    node: &str,
) -> Result<BTreeMap<String, (String, String)>, ApiError> {
    let path = format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{node}");
    let request = ApiRequest {
        accept: METADATA_LIST,
        ..ApiRequest::get(path)
    };
    let list: List = client.read(&request).await?;
    let pods = list.items.into_iter().map(|pod| pod.metadata);
    Ok(pods
        .map(|pod| (pod.uid, (pod.namespace, pod.name)))
        .collect())
}

/// What is read of a list. All of a thousand pods would take more memory than the agent has.
#[derive(Deserialize)]
struct List {
    #[serde(deserialize_with = "null_default")]
    items: Vec<Listed>,
}

#[derive(Deserialize)]
struct Listed {
    metadata: Identity,
    /// Not there in a list of metadata.
    #[serde(default, deserialize_with = "null_default")]
    status: Status,
}

impl Listed {
    fn is_over(&self) -> bool {
        ["Failed", "Succeeded"].contains(&&*self.status.phase)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Identity {
    namespace: String,
    name: String,
    uid: String,
    deletion_timestamp: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    #[serde(deserialize_with = "null_default")]
    phase: String,
}

/// `metav1.Time`: whole seconds.
fn seconds(time: &str) -> String {
    let time: jiff::Timestamp = time.parse().unwrap_or_else(|_| jiff::Timestamp::now());
    format!("{time:.0}")
}

/// Deletes a pod with a grace period in seconds. Asking again is harmless.
///
/// # Errors
/// No answer, or a refusal other than that this pod does not exist any more.
pub async fn delete(
    client: &ApiClient,
    pod: PodRef<'_>,
    grace_period_seconds: i64,
) -> Result<Removal, ApiError> {
    let mut body = delete_options(pod, grace_period_seconds);
    body["apiVersion"] = "v1".into();
    body["kind"] = "DeleteOptions".into();
    let mut request = ApiRequest::new(Method::DELETE, pod.path(""), JSON, &body);
    request.deadline = ADMISSION_DEADLINE;
    removal(client.send(&request).await)
}

/// Asks whether a pod may be evicted, which a PodDisruptionBudget may refuse with 429. It is a dry run: the budget is
/// read, and nothing happens to the pod. [`Removal::Deleted`] is a yes.
///
/// An Eviction (the API object) does not say on which node its pod is. The admission policies let dry runs through and
/// hold the DELETE that follows to the agent's own node.
///
/// # Errors
/// No answer, or a refusal other than that this pod does not exist any more.
pub async fn may_evict(
    client: &ApiClient,
    pod: PodRef<'_>,
    grace_period_seconds: i64,
) -> Result<Removal, ApiError> {
    let body = json!({
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod.name, "namespace": pod.namespace},
        "deleteOptions": delete_options(pod, grace_period_seconds),
    });
    let path = pod.path("/eviction?dryRun=All");
    let mut request = ApiRequest::new(Method::POST, path, JSON, &body);
    request.deadline = ADMISSION_DEADLINE;
    request.may_be_forbidden = client.lacks_evictions();
    let answer = client.send(&request).await;
    if answer.is_ok() {
        // Rights come and go without a restart.
        client.set_lacks_evictions(false);
    }
    removal(answer)
}

fn delete_options(pod: PodRef<'_>, grace_period_seconds: i64) -> Value {
    json!({
        "gracePeriodSeconds": grace_period_seconds,
        "preconditions": {"uid": pod.uid},
    })
}

fn removal(answer: Result<(), ApiError>) -> Result<Removal, ApiError> {
    match answer {
        Ok(()) => Ok(Removal::Deleted),
        Err(e) if e.is_denied_by_webhook() => Err(e),
        Err(e) if e.code() == 404 => Ok(Removal::Gone),
        Err(e) if e.code() == 409 => Ok(Removal::Replaced),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_webhook_may_refuse_with_any_status() {
        let answer = |code, message: &str| {
            removal(Err(ApiError::Refused {
                code,
                reason: String::new(),
                message: message.into(),
                causes: Vec::new(),
            }))
        };
        let denial = "admission webhook \"a.example.com\" denied the request: resharding";
        assert_eq!(answer(404, "pods \"a\" not found"), Ok(Removal::Gone));
        assert_eq!(answer(409, "the UID differs"), Ok(Removal::Replaced));
        for code in [403, 404, 409] {
            let refused = answer(code, denial).unwrap_err();
            assert_eq!(refused.code(), code);
        }
    }
}
