//! Whether the admission policies hold this agent's token to its node, which no right can do: asked at the start.
//!
//! The policies know the agents by the name of their service account. Another namespace or another name, by an overlay
//! of kustomize for instance, leaves them in place and takes them from the agents, and nothing else would show it.

use std::time::Duration;

use http::Method;
use serde_json::json;

use super::{
    client::{ApiClient, ApiError, ApiRequest, JSON},
    events,
};

/// No node has such a name.
const ANOTHER_NODE: &str = "another/node";
/// The policies may be made after the agents, and take a moment to be in force.
pub const SETTLES: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(60)];
/// About how long until the next question while there is no answer, or a bad one.
pub const AGAIN: Duration = Duration::from_secs(600);

/// Asks until a policy refuses, and logs once if none does, and once if the answers leave it open. Each time that none
/// did is counted.
pub async fn check(client: &ApiClient, settles: &[Duration], again: Duration) {
    let mut settles = settles.iter();
    let (mut is_logged, mut is_unknown) = (false, false);
    loop {
        match create_event_for_other_node(client).await {
            Ok(()) => match settles.next() {
                Some(pause) => {
                    tokio::time::sleep(*pause).await;
                    continue;
                }
                None => {
                    client.counters.node_restriction_not_enforced.add();
                    if !std::mem::replace(&mut is_logged, true) {
                        tracing::error!(
                            "no admission policy holds this token to its node: its holder may do on every node what \
                            the agent may"
                        );
                    }
                }
            },
            Err(error) if error.is_forbidden() && !error.is_missing_right() => {
                if is_logged {
                    tracing::info!("an admission policy holds this token to its node now");
                }
                return;
            }
            // No right to Events, no answer, a webhook that fails: none of them shows whether there is a policy.
            Err(error) => {
                if !std::mem::replace(&mut is_unknown, true) {
                    tracing::warn!(%error, "it is not known whether an admission policy holds this token to its node");
                }
            }
        }
        tokio::time::sleep(again.mul_f64(0.5 + fastrand::f64())).await;
    }
}

/// Creates an Event in the name of another node, in a dry run: every agent may create Events, and nothing comes of this
/// one.
async fn create_event_for_other_node(client: &ApiClient) -> Result<(), ApiError> {
    let event = json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": "evictd-admission-test", "namespace": events::NODE_NAMESPACE},
        "eventTime": events::micro_time(&jiff::Timestamp::now().to_string()),
        "reportingController": events::CONTROLLER,
        "reportingInstance": ANOTHER_NODE,
        "action": "Testing",
        "reason": "AdmissionTest",
        "type": "Normal",
        "note": "An admission policy must refuse this Event: it is told in the name of another node.",
        "regarding": {"apiVersion": "v1", "kind": "Node", "name": ANOTHER_NODE},
    });
    let path = format!("{}?dryRun=All", events::collection(events::NODE_NAMESPACE));
    let mut request = ApiRequest::new(Method::POST, path, JSON, &event);
    request.may_be_forbidden = true;
    match client.call(&request).await {
        // There is an Event of this name: only what no policy has refused is compared with it.
        Err(error) if error.code() == 409 => Ok(()),
        answer => answer.map(drop),
    }
}
