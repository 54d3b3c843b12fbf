//! What is done to objects, whichever collection they are of.

use axum::{body::Body, http::Response};

use super::{
    answer::{answer, budget, conflict, created, failure, not_found, scripted},
    objects::{Collection, name_of},
    state::State,
    watch::{self, Wanted},
};
use crate::prelude::*;

/// An object, or a list or watch of a collection.
pub fn get(
    state: &mut State,
    path: &str,
    query: &BTreeMap<String, String>,
    accept: &str,
) -> Response<Body> {
    if let Some(object) = state.objects.get(path) {
        return answer(200, object);
    }
    match Collection::find(path) {
        Some((collection, namespace, None)) => {
            let wanted = Wanted::new(namespace, query, accept);
            watch::answer_with(state, collection, wanted, query)
        }
        _ => nothing_at(path),
    }
}

/// A merge patch, a strategic one, or what is applied by the only manager of all fields.
pub fn patch(state: &mut State, path: &str, content_type: &str, body: &Value) -> Response<Body> {
    let (path, change) = match path.strip_suffix("/status") {
        Some(path) => (path, json!({"status": body["status"]})),
        None => (path, body.clone()),
    };
    let Some((collection, namespace, Some(name))) = Collection::find(path) else {
        return nothing_at(path);
    };
    let mut object = match state.objects.get(path) {
        Some(object) => object.clone(),
        None if content_type.contains("apply-patch") => {
            json!({"metadata": {"namespace": namespace, "name": name}})
        }
        None => return nothing_at(path),
    };
    let is_strategic = content_type.contains("strategic-merge-patch");
    let is_custom = path.starts_with("/apis/evictd.io/");
    if !content_type.contains("-patch+") || (is_strategic && is_custom) {
        return scripted(415);
    }
    if let Some(conflict) = conflict(collection, &object, &body["metadata"]) {
        return conflict;
    }
    merge(&mut object, change, is_strategic);
    state.put(collection, object);
    answer(200, &state.objects[path])
}

/// A strategic patch merges conditions by their type. `node-taint-apply.json` shows that applying replaces the taints of all
/// writers as merging does: the list is atomic.
fn merge(object: &mut Value, mut change: Value, is_strategic: bool) {
    let status = change.get_mut("status").and_then(Value::as_object_mut);
    let conditions = status.filter(|_| is_strategic);
    let conditions = conditions.and_then(|status| status.remove("conditions"));
    if let Some(Value::Array(changes)) = conditions {
        let mut all = match object["status"]["conditions"].take() {
            Value::Array(all) => all,
            _ => Vec::new(),
        };
        for change in changes {
            let at = all.iter().position(|c| c["type"] == change["type"]);
            match (at, change["$patch"] == "delete") {
                (Some(at), true) => drop(all.remove(at)),
                (Some(at), false) => json_patch::merge(&mut all[at], &change),
                (None, true) => {}
                // The recording shows that new ones come first.
                (None, false) => all.insert(0, change),
            }
        }
        object["status"]["conditions"] = all.into();
    }
    json_patch::merge(object, &change);
}

pub fn delete(state: &mut State, path: &str, options: &Value) -> Response<Body> {
    let (found, object) = (Collection::find(path), state.objects.get(path));
    let (Some((collection, namespace, Some(name))), Some(object)) = (found, object) else {
        return nothing_at(path);
    };
    if let Some(conflict) = conflict(collection, object, &options["preconditions"]) {
        return conflict;
    }
    let mut object = object.clone();
    if collection == Collection::Pods {
        object["metadata"]["deletionTimestamp"] = "2026-11-21T02:53:10Z".into();
        object["metadata"]["deletionGracePeriodSeconds"] = options["gracePeriodSeconds"].clone();
        state.put(collection, object.clone());
    }
    state.remove(collection, namespace.unwrap_or_default(), name);
    answer(200, &object)
}

/// `POST .../pods/NAME/eviction`. A dry run is answered the same, and changes nothing.
pub fn evict(state: &mut State, path: &str, body: &Value, dry_run: bool) -> Response<Body> {
    let path = path.trim_end_matches("/eviction");
    let Some(pod) = state.objects.get(path) else {
        return nothing_at(path);
    };
    let options = &body["deleteOptions"];
    if let Some(conflict) = conflict(Collection::Pods, pod, &options["preconditions"]) {
        return conflict;
    }
    if pod["metadata"]["deletionTimestamp"].is_null() {
        if state.budgets.contains(name_of(pod)) {
            return budget("web");
        }
        if !dry_run {
            delete(state, path, options);
        }
    }
    created()
}

/// `POST .../events`.
pub fn create_event(
    state: &mut State,
    path: &str,
    mut event: Value,
    dry_run: bool,
) -> Response<Body> {
    let text = |field: &str| event["metadata"][field].as_str().unwrap_or_default();
    let (name, generate) = (text("name").to_owned(), text("generateName").to_owned());
    let invalid = |what: &str| {
        let message = format!("Event \"{name}{generate}\" is invalid: {what}");
        let details = json!({"name": name, "kind": "Event"});
        failure(422, "Invalid", &message, details)
    };
    // `event-refused.json`
    if name.is_empty() || !is_subdomain(&name) || !generate.is_empty() {
        return invalid("metadata.name");
    }
    let instance = event["reportingInstance"].as_str().unwrap_or_default();
    if instance.len() > 128 {
        return invalid("reportingInstance: can have at most 128 characters");
    }
    let path = format!("{path}/{name}");
    if state.objects.contains_key(&path) {
        let message = format!("events.events.k8s.io \"{name}\" already exists");
        let details = json!({"name": name, "group": "events.k8s.io", "kind": "events"});
        return failure(409, "AlreadyExists", &message, details);
    }
    if dry_run {
        state.stamp(&mut event);
        return answer(201, &event);
    }
    state.put(Collection::Events, event);
    answer(201, &state.objects[&path])
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

/// There is no such object, or no such collection, as policies without their definition.
pub fn nothing_at(path: &str) -> Response<Body> {
    let mut parts = path.rsplit('/');
    let name = parts.next().unwrap_or_default();
    not_found(parts.next().unwrap_or_default(), name)
}
