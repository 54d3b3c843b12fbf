//! Objects of all other kinds: kept by the path that they have, applied, made, read, deleted. What controllers and the
//! kubelet make of them is `crate::played`'s part.

use axum::{
    body::Body,
    http::{Response, header::CONTENT_TYPE},
};
use serde_json::{Value, json};

use super::{
    answer::{answer, failure, not_found},
    objects::name_of,
    state::State,
};

/// What the server knows besides: group and version, kind, plural, whether it is namespaced.
const KINDS: [(&str, &str, &str, bool); 10] = [
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

/// One object at its path.
pub fn at(state: &mut State, method: &str, path: &str, query: &str, body: Value) -> Response<Body> {
    let name = path.rsplit('/').next().unwrap_or_default();
    match method {
        "GET" => match state.others.get(path) {
            Some(Value::String(text)) => plain(text),
            Some(object) => answer(200, object),
            None => not_found("objects", name),
        },
        "PATCH" => {
            let manager = query
                .split('&')
                .find_map(|p| p.strip_prefix("fieldManager="));
            let mut object = body;
            object["metadata"]["managedFields"] =
                json!([{"manager": manager.unwrap_or("unknown"), "operation": "Apply"}]);
            state.stamp(&mut object);
            state.others.insert(path.to_owned(), object.clone());
            answer(200, &object)
        }
        "POST" => {
            let path = format!("{path}/{}", name_of(&body));
            if state.others.contains_key(&path) {
                let message = format!("\"{}\" already exists", name_of(&body));
                return failure(409, "AlreadyExists", &message, Value::Null);
            }
            let mut object = body;
            state.stamp(&mut object);
            state.others.insert(path, object.clone());
            answer(201, &object)
        }
        "DELETE" => match state.others.get_mut(path) {
            // A namespace goes when everything in it has gone.
            Some(object)
                if path.starts_with("/api/v1/namespaces/") && !path[19..].contains('/') =>
            {
                object["metadata"]["deletionTimestamp"] = "2026-11-21T02:53:10Z".into();
                answer(200, object)
            }
            Some(_) => answer(200, &state.others.remove(path).unwrap_or_default()),
            None => not_found("objects", name),
        },
        _ => not_found("objects", name),
    }
}

fn plain(text: &str) -> Response<Body> {
    let mut response = Response::new(Body::from(text.to_owned()));
    if let Ok(plain) = "text/plain".parse() {
        response.headers_mut().insert(CONTENT_TYPE, plain);
    }
    response
}

/// `POST /api/v1/namespaces/NS/pods`.
pub fn create_pod(state: &mut State, namespace: &str, mut pod: Value) -> Response<Body> {
    let name = name_of(&pod).to_owned();
    if state
        .pods
        .contains_key(&(namespace.to_owned(), name.clone()))
    {
        let message = format!("pods \"{name}\" already exists");
        return failure(409, "AlreadyExists", &message, Value::Null);
    }
    let number = state.version;
    pod["metadata"]["uid"] = format!("00000000-0000-4000-8000-{number:012}").into();
    pod["metadata"]["namespace"] = namespace.into();
    // Admission looks the class up.
    if let Some(class) = pod["spec"]["priorityClassName"].as_str() {
        let class = format!("/apis/scheduling.k8s.io/v1/priorityclasses/{class}");
        pod["spec"]["priority"] = state
            .others
            .get(&class)
            .map_or(json!(0), |c| c["value"].clone());
    }
    pod["status"] = json!({"phase": "Pending", "qosClass": qos(&pod)});
    state.put_pod(pod);
    match state.pods.get(&(namespace.to_owned(), name.clone())) {
        Some(pod) => answer(201, pod),
        None => not_found("pods", &name),
    }
}

/// As far as pods of one container go.
fn qos(pod: &Value) -> &'static str {
    let resources = &pod["spec"]["containers"][0]["resources"];
    match (&resources["requests"], &resources["limits"]) {
        (Value::Null, Value::Null) => "BestEffort",
        (requests, limits) if requests == limits => "Guaranteed",
        _ => "Burstable",
    }
}

/// `GET /api/v1/namespaces/NS/events`: the same Events in the older API's form, `event-created.json`'s counterpart.
pub fn core_events(state: &State, namespace: &str, selector: Option<&String>) -> Response<Body> {
    let wanted = |event: &Value| {
        let mut pairs = selector
            .iter()
            .flat_map(|s| s.split(','))
            .filter_map(|p| p.split_once('='));
        pairs.all(|(field, value)| {
            let field = field.strip_prefix("involvedObject.").unwrap_or_default();
            event["involvedObject"][field] == value
        })
    };
    let events = state.events.iter().filter(|((ns, _), _)| ns == namespace);
    let items: Vec<Value> = events.map(|(_, e)| core_event(e)).filter(wanted).collect();
    let metadata = json!({"resourceVersion": state.version.to_string()});
    answer(
        200,
        &json!({"kind": "EventList", "apiVersion": "v1", "metadata": metadata, "items": items}),
    )
}

fn core_event(event: &Value) -> Value {
    let mut metadata = event["metadata"].clone();
    let name = metadata["name"].clone();
    if let (Some(metadata), false) = (metadata.as_object_mut(), name.is_null()) {
        metadata.entry("uid").or_insert(name);
    }
    json!({
        "metadata": metadata,
        "involvedObject": event["regarding"],
        "reason": event["reason"],
        "message": event["note"],
        "type": event["type"],
        "reportingComponent": event["reportingController"],
        "reportingInstance": event["reportingInstance"],
    })
}
