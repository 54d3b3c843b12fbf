//! Requests as admission sees them, made of recorded objects.

use evictd_tests::prelude::*;

use super::policy::Request;

/// The agent's account.
pub const AGENT: &str = "system:serviceaccount:evictd:evictd";
/// The node of the recordings.
pub const NODE: &str = "n2";

/// What a 1.36 API server says of a token that the kubelet has asked for on behalf of a pod.
pub fn user(name: &str, node: Option<&str>) -> Value {
    let mut extra = json!({
        "authentication.kubernetes.io/credential-id": ["JTI=2f2a4a40-8b0e-44a5-9a58-9bd9f1a7b7a5"],
    });
    if let Some(node) = node {
        extra["authentication.kubernetes.io/node-name"] = json!([node]);
        extra["authentication.kubernetes.io/pod-name"] = json!(["evictd-7x2lq"]);
    }
    json!({
        "username": name,
        "uid": "7a0f1a2e-0d0c-4a2f-8e44-0d3c1b0a9f11",
        "groups": ["system:serviceaccounts", "system:serviceaccounts:evictd", "system:authenticated"],
        "extra": extra,
    })
}

/// The body of a recorded answer.
pub fn recorded(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("recordings/api/{name}.json"));
    let recorded: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    recorded["response"]["body"].clone()
}

pub fn pod() -> Value {
    let pod = recorded("pods-list-by-node")["items"][0].clone();
    assert_eq!(pod["spec"]["nodeName"], NODE);
    pod
}

pub fn on_pods(
    operation: &'static str,
    resource: &'static str,
    object: Value,
    old: Value,
) -> Request {
    Request {
        user: user(AGENT, Some(NODE)),
        operation,
        group: "",
        resource,
        dry_run: false,
        object,
        old,
    }
}

pub fn deletion() -> Request {
    on_pods("DELETE", "pods", Value::Null, pod())
}

/// A status patch: what the pod becomes by it.
pub fn pod_status(change: impl FnOnce(&mut Value)) -> Request {
    let mut new = pod();
    change(&mut new);
    on_pods("UPDATE", "pods/status", new, pod())
}

pub fn node_change(resource: &'static str, change: impl FnOnce(&mut Value)) -> Request {
    let old = recorded("node-get");
    let mut new = old.clone();
    change(&mut new);
    on_pods("UPDATE", resource, new, old)
}

/// A change of nothing that may be changed: of a resource, or of the ConfigMap of that name.
pub fn unchanged(of: &'static str) -> Request {
    match of {
        "pods" | "pods/status" => on_pods("UPDATE", of, pod(), pod()),
        "nodes" | "nodes/status" => node_change(of, |_| {}),
        "evictionpolicies/status" => policy_status(|_| {}),
        "events" => event("UPDATE", NODE, recorded("event-created")),
        name => config_map(name, json!({"by": NODE}), json!({"by": NODE})),
    }
}

pub fn push(list: &mut Value, item: Value) {
    match list.as_array_mut() {
        Some(items) => items.push(item),
        None => *list = json!([item]),
    }
}

/// Sets what a JSON pointer leads to; `/-` at its end adds to a list.
pub fn set(object: &mut Value, pointer: &str, value: Value) {
    let list = pointer.strip_suffix("/-");
    let mut at = object;
    for field in list.unwrap_or(pointer).split('/').skip(1) {
        at = match field.parse::<usize>() {
            Ok(index) => &mut at[index],
            Err(_) => &mut at[field],
        };
    }
    match list {
        Some(_) => push(at, value),
        None => *at = value,
    }
}

pub fn disruption_target(pod: &mut Value) {
    let condition =
        json!({"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"});
    push(&mut pod["status"]["conditions"], condition);
}

pub fn eviction(dry_run: bool) -> Request {
    let uid = "643b88bf-5ab1-450b-a239-7f9bcca4b4d8";
    let object = json!({
        "apiVersion": "policy/v1", "kind": "Eviction",
        "metadata": {"name": "free-1", "namespace": "default"},
        "deleteOptions": {"gracePeriodSeconds": 5, "preconditions": {"uid": uid}},
    });
    Request {
        dry_run,
        ..on_pods("CREATE", "pods/eviction", object, Value::Null)
    }
}

pub fn event(operation: &'static str, instance: &str, old: Value) -> Request {
    let mut object = recorded("event-created");
    object["reportingInstance"] = instance.into();
    Request {
        group: "events.k8s.io",
        ..on_pods(operation, "events", object, old)
    }
}

/// A status of a policy as the agent writes it, changed further.
pub fn policy_status(change: impl FnOnce(&mut Value)) -> Request {
    let old = json!({
        "apiVersion": "evictd.io/v1alpha1", "kind": "EvictionPolicy",
        "metadata": {"name": "db", "generation": 1},
        "spec": {"rules": [{"name": "db", "evict": "Never"}]},
    });
    let mut object = old.clone();
    let accepted = json!({"type": "Accepted", "status": "True", "reason": "Compiled", "observedGeneration": 1});
    push(&mut object["status"]["conditions"], accepted);
    change(&mut object);
    Request {
        group: "evictd.io",
        ..on_pods("UPDATE", "evictionpolicies/status", object, old)
    }
}

/// A ConfigMap of the release's namespace as it was and as it is to be.
pub fn config_map(name: &str, before: Value, after: Value) -> Request {
    let map = |data: Value| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "data": data,
            "metadata": {"namespace": "evictd", "name": name, "labels": {"app.kubernetes.io/name": "evictd"}},
        })
    };
    on_pods("UPDATE", "configmaps", map(after), map(before))
}
