//! Whether the agent may do what it is for: asked once, at the start or as soon as the server answers, and every missing
//! right is named.

use std::time::Duration;

use evictd_config::ConfigMapName;
use http::Method;
use serde_json::json;

use super::client::{ApiClient, ApiRequest, JSON};
use crate::{
    fleet_brake,
    policy_document::{ClusterPolicies, GROUP, PolicyKind as _, TenantPolicies},
};

/// One right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Right {
    /// `get`, ...
    pub verb: &'static str,
    /// API group, empty for the core.
    pub group: &'static str,
    /// Resource in the plural, or a subresource: `pods`, `pods/status`.
    pub resource: &'static str,
    /// Function of the agent that does not work without the right.
    pub purpose: &'static str,
}

pub(crate) const fn right(
    verb: &'static str,
    group: &'static str,
    resource: &'static str,
    purpose: &'static str,
) -> Right {
    Right {
        verb,
        group,
        resource,
        purpose,
    }
}

/// The right to ask disruption budgets, without which there are no soft evictions.
const EVICTIONS: Right = right("create", "", "pods/eviction", "soft evictions");

/// All rights that the agent needs everywhere; the ClusterRole in `deploy/` grants these and no others.
pub const RIGHTS: [Right; 18] = [
    right("list", "", "pods", "the list of this node's pods"),
    right("watch", "", "pods", "the list of this node's pods"),
    right("patch", "", "pods/status", "the condition DisruptionTarget"),
    right("delete", "", "pods", "ending evicted pods for good"),
    EVICTIONS,
    right("get", "", "nodes", "the taint under pressure"),
    right("list", "", "nodes", "a pause by annotation"),
    right("watch", "", "nodes", "a pause by annotation"),
    right("patch", "", "nodes", "the taint under pressure"),
    right("patch", "", "nodes/status", "the node's conditions"),
    right("create", "events.k8s.io", "events", "Events"),
    right("patch", "events.k8s.io", "events", "counting Events"),
    right("list", "", "namespaces", "namespaceSelector"),
    right("watch", "", "namespaces", "namespaceSelector"),
    right(
        "list",
        GROUP,
        ClusterPolicies::PLURAL,
        "policies of the API server",
    ),
    right(
        "watch",
        GROUP,
        ClusterPolicies::PLURAL,
        "policies of the API server",
    ),
    right(
        "patch",
        GROUP,
        "evictionpolicies/status",
        "the status of policies",
    ),
    right(
        "list",
        "networking.k8s.io",
        "servicecidrs",
        "restricting gates",
    ),
];

/// The right that it needs on the EndpointSlice `kubernetes` in `default`; the ClusterRole grants it on this name
/// alone.
pub const ENDPOINT_RIGHTS: [Right; 1] = [right(
    "get",
    "discovery.k8s.io",
    "endpointslices",
    "restricting gates",
)];

/// The rights that it needs on the ConfigMap that pauses all agents, if there is one: a Role in its namespace grants
/// these on this name alone.
pub const PAUSE_RIGHTS: [Right; 2] = [
    right("list", "", "configmaps", "a pause of all agents"),
    right("watch", "", "configmaps", "a pause of all agents"),
];

/// The rights that it needs everywhere where it follows the policies of namespaces.
pub const TENANT_RIGHTS: [Right; 2] = [
    right(
        "list",
        GROUP,
        TenantPolicies::PLURAL,
        "policies of namespaces",
    ),
    right(
        "watch",
        GROUP,
        TenantPolicies::PLURAL,
        "policies of namespaces",
    ),
];

/// Rights on the ConfigMap of the fleet brake that all agents watch.
pub const FLEET_RIGHTS: [Right; 3] = [
    right("list", "", "configmaps", "the fleet brake"),
    right("watch", "", "configmaps", "the fleet brake"),
    right("patch", "", "configmaps", "the fleet brake"),
];

/// And for the one with the nodes' entries, which a node that has evicted reads and writes.
pub const FLEET_ENTRY_RIGHTS: [Right; 2] = [
    right("get", "", "configmaps", "the fleet brake"),
    right("patch", "", "configmaps", "the fleet brake"),
];

/// About how long until the next question while there is no answer.
pub const AGAIN: Duration = Duration::from_secs(30);

/// Asks for each right, and for `more` that the configuration needs everywhere, and logs those that are missing; they
/// are returned. A server that does not answer now is asked again after about so long. What it does not let the agent ask
/// is not missing: the requests themselves will show it.
pub async fn check(
    client: &ApiClient,
    again: Duration,
    pause: Option<&ConfigMapName>,
    fleet: Option<&ConfigMapName>,
    more: impl IntoIterator<Item = Right>,
) -> Vec<Right> {
    let mut missing = Vec::new();
    let entries = fleet.map(|map| format!("{}{}", map.name, fleet_brake::ENTRIES));
    let everywhere = RIGHTS.into_iter().chain(more);
    let mut all: Vec<_> = everywhere.map(|right| (right, "", "")).collect();
    all.extend(ENDPOINT_RIGHTS.map(|right| (right, "default", "kubernetes")));
    if let Some(ConfigMapName { namespace, name }) = pause {
        all.extend(PAUSE_RIGHTS.map(|right| (right, namespace.as_str(), name.as_str())));
    }
    if let (Some(ConfigMapName { namespace, name }), Some(entries)) = (fleet, &entries) {
        all.extend(FLEET_RIGHTS.map(|right| (right, namespace.as_str(), name.as_str())));
        all.extend(FLEET_ENTRY_RIGHTS.map(|right| (right, namespace.as_str(), entries.as_str())));
    }
    for (right, namespace, name) in all {
        let (resource, subresource) = right
            .resource
            .split_once('/')
            .unwrap_or((right.resource, ""));
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {
                "verb": right.verb,
                "group": right.group,
                "resource": resource,
                "subresource": subresource,
                "namespace": namespace,
                "name": name,
            }},
        });
        let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        let request = ApiRequest::new(Method::POST, path, JSON, &review);
        let answer = loop {
            match client.call(&request).await {
                Err(error) if error.is_retryable() => {
                    tokio::time::sleep(again.mul_f64(0.5 + fastrand::f64())).await;
                }
                answer => break answer,
            }
        };
        match answer {
            Ok(answer) if answer["status"]["allowed"] == false => {
                if right == EVICTIONS {
                    // A choice that the chart offers (`rbac.eviction`).
                    tracing::warn!(
                        "soft evictions are switched off: there is no right to create pods/eviction"
                    );
                    client.set_lacks_evictions(true);
                } else {
                    tracing::error!(
                        verb = right.verb,
                        resource = right.resource,
                        "a right is missing: {} will not work",
                        right.purpose
                    );
                }
                missing.push(right);
            }
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(%error, "the rights cannot be checked");
                break;
            }
        }
    }
    missing
}
