//! Objects of all other kinds, by the path that they have, and what a client asks to find such paths.

use axum::{body::Body, http::Response};
use serde_json::{Value, json};

use super::{
    answer::{answer, not_found},
    state::State,
};

/// What the server knows besides: group and version, kind, plural, whether it is namespaced.
const KINDS: [(&str, &str, &str, bool); 11] = [
    ("v1", "Namespace", "namespaces", false),
    ("v1", "ServiceAccount", "serviceaccounts", true),
    ("v1", "ConfigMap", "configmaps", true),
    ("apps/v1", "DaemonSet", "daemonsets", true),
    (
        "rbac.authorization.k8s.io/v1",
        "ClusterRole",
        "clusterroles",
        false,
    ),
    (
        "rbac.authorization.k8s.io/v1",
        "ClusterRoleBinding",
        "clusterrolebindings",
        false,
    ),
    (
        "networking.k8s.io/v1",
        "NetworkPolicy",
        "networkpolicies",
        true,
    ),
    ("rbac.authorization.k8s.io/v1", "Role", "roles", true),
    (
        "rbac.authorization.k8s.io/v1",
        "RoleBinding",
        "rolebindings",
        true,
    ),
    (
        "admissionregistration.k8s.io/v1",
        "ValidatingAdmissionPolicy",
        "validatingadmissionpolicies",
        false,
    ),
    (
        "admissionregistration.k8s.io/v1",
        "ValidatingAdmissionPolicyBinding",
        "validatingadmissionpolicybindings",
        false,
    ),
];

/// `GET /version`.
pub fn version() -> Response<Body> {
    let fields = [
        "buildDate",
        "compiler",
        "gitCommit",
        "gitTreeState",
        "goVersion",
        "platform",
    ];
    let mut version = json!({"major": "1", "minor": "36", "gitVersion": "v1.36.0"});
    for field in fields {
        version[field] = "".into();
    }
    answer(200, &version)
}

/// `GET /api/v1`, `GET /apis/GROUP/VERSION`.
pub fn resources(group_version: &str) -> Response<Body> {
    let kinds = KINDS.iter().filter(|(of, ..)| *of == group_version);
    let resources = kinds.map(|(_, kind, plural, namespaced)| {
        json!({
            "name": plural,
            "singularName": kind.to_lowercase(),
            "namespaced": namespaced,
            "kind": kind,
            "verbs": ["create", "delete", "get", "list", "patch", "watch"],
        })
    });
    let resources: Vec<Value> = resources.collect();
    answer(
        200,
        &json!({
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": group_version,
            "resources": resources,
        }),
    )
}

pub fn at(state: &State, method: &str, path: &str) -> Response<Body> {
    let name = path.rsplit('/').next().unwrap_or_default();
    match state.others.get(path).filter(|_| method == "GET") {
        Some(object) => answer(200, object),
        None => not_found("objects", name),
    }
}
