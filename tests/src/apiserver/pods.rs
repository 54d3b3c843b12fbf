//! One pod: its status, its end, its eviction.

use axum::{body::Body, http::Response};
use serde_json::{Value, json};

use super::{
    answer::{answer, budget, created, not_found, uid_conflict},
    state::State,
};

/// Merges a list of conditions by type, as a strategic merge patch does.
pub fn merge_conditions(object: &mut Value, patch: &Value) {
    let Some(patches) = patch["status"]["conditions"].as_array() else {
        return;
    };
    let mut conditions = object["status"]["conditions"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    for patch in patches {
        let at = conditions.iter().position(|c| c["type"] == patch["type"]);
        match (at, patch["$patch"] == "delete") {
            (Some(at), true) => drop(conditions.remove(at)),
            (None, true) => {}
            (Some(at), false) => {
                if let (Some(old), Some(new)) = (conditions[at].as_object_mut(), patch.as_object())
                {
                    old.extend(new.clone());
                }
            }
            // The recording shows that new ones come first.
            (None, false) => conditions.insert(0, patch.clone()),
        }
    }
    object["status"]["conditions"] = conditions.into();
}

/// `GET .../pods/NAME`.
pub fn get(state: &State, namespace: &str, name: &str) -> Response<Body> {
    // A pod of another node, which no watch of this one shows, is kept among all other objects.
    let elsewhere = || {
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
        state.others.get(&path).cloned()
    };
    match find(state, namespace, name).or_else(elsewhere) {
        Some(pod) => answer(200, &pod),
        None => not_found("pods", name),
    }
}

/// `PATCH .../pods/NAME/status`.
pub fn patch_status(
    state: &mut State,
    namespace: &str,
    name: &str,
    body: &Value,
) -> Response<Body> {
    let Some(mut pod) = find(state, namespace, name) else {
        return not_found("pods", name);
    };
    if let Some(conflict) = conflict(&pod, name, &body["metadata"]["uid"]) {
        return conflict;
    }
    merge_conditions(&mut pod, body);
    for field in ["phase", "reason", "message"] {
        if let Some(value) = body["status"].get(field) {
            pod["status"][field] = value.clone();
        }
    }
    state.put_pod(pod.clone());
    answer(200, &pod)
}

/// `DELETE .../pods/NAME`.
pub fn delete(state: &mut State, namespace: &str, name: &str, options: &Value) -> Response<Body> {
    let Some(mut pod) = find(state, namespace, name) else {
        return not_found("pods", name);
    };
    if let Some(conflict) = conflict(&pod, name, &options["preconditions"]["uid"]) {
        return conflict;
    }
    pod["metadata"]["deletionTimestamp"] = "2026-11-21T02:53:10Z".into();
    pod["metadata"]["deletionGracePeriodSeconds"] = options["gracePeriodSeconds"].clone();
    state.put_pod(pod.clone());
    state.remove_pod(namespace, name);
    answer(200, &pod)
}

/// `POST .../pods/NAME/eviction`. A dry run is answered the same, and changes nothing.
pub fn evict(
    state: &mut State,
    namespace: &str,
    name: &str,
    body: &Value,
    dry_run: bool,
) -> Response<Body> {
    let Some(pod) = find(state, namespace, name) else {
        return not_found("pods", name);
    };
    let options = &body["deleteOptions"];
    if let Some(conflict) = conflict(&pod, name, &options["preconditions"]["uid"]) {
        return conflict;
    }
    let terminating = !pod["metadata"]["deletionTimestamp"].is_null();
    if !terminating && state.budgets.contains(&format!("{namespace}/{name}")) {
        return budget("web");
    }
    if !terminating && !dry_run {
        delete(state, namespace, name, options);
    }
    created()
}

/// `POST /apis/events.k8s.io/v1/namespaces/NS/events`.
pub fn create_event(
    state: &mut State,
    namespace: &str,
    mut event: Value,
    dry_run: bool,
) -> Response<Body> {
    let text = |field: &str| event["metadata"][field].as_str().unwrap_or_default();
    let (name, generate) = (text("name").to_owned(), text("generateName").to_owned());
    // `event-refused.json`
    if name.is_empty() || !is_subdomain(&name) || !generate.is_empty() {
        let message = format!("Event \"{name}{generate}\" is invalid: metadata.name");
        let details = json!({"name": name, "kind": "Event"});
        return super::answer::failure(422, "Invalid", &message, details);
    }
    let key = (namespace.to_owned(), name.clone());
    if state.events.contains_key(&key) {
        let message = format!("events.events.k8s.io \"{name}\" already exists");
        let details = json!({"name": name, "group": "events.k8s.io", "kind": "events"});
        return super::answer::failure(409, "AlreadyExists", &message, details);
    }
    state.stamp(&mut event);
    if !dry_run {
        state.events.insert(key, event.clone());
    }
    answer(201, &event)
}

/// `PATCH /apis/events.k8s.io/v1/namespaces/NS/events/NAME`.
pub fn patch_event(
    state: &mut State,
    namespace: &str,
    name: &str,
    patch: &Value,
) -> Response<Body> {
    match state
        .events
        .get_mut(&(namespace.to_owned(), name.to_owned()))
    {
        Some(event) => {
            if let Some(series) = patch.get("series") {
                event["series"] = series.clone();
            }
            answer(200, event)
        }
        None => not_found("events", name),
    }
}

fn find(state: &State, namespace: &str, name: &str) -> Option<Value> {
    state
        .pods
        .get(&(namespace.to_owned(), name.to_owned()))
        .cloned()
}

fn conflict(pod: &Value, name: &str, wanted: &Value) -> Option<Response<Body>> {
    let (wanted, found) = (
        wanted.as_str()?,
        pod["metadata"]["uid"].as_str().unwrap_or_default(),
    );
    (wanted != found).then(|| uid_conflict(name, wanted, found))
}

/// RFC 1123 subdomain, as the message of the recording quotes it.
fn is_subdomain(name: &str) -> bool {
    let good = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    name.len() <= 253
        && name.split('.').all(|label| {
            let bytes = label.as_bytes();
            bytes.first().copied().is_some_and(good)
                && bytes.last().copied().is_some_and(good)
                && bytes.iter().all(|b| good(*b) || *b == b'-')
        })
}
