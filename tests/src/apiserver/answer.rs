//! Answers in the recorded forms.

use axum::{
    body::Body,
    http::{Response, StatusCode, header::CONTENT_TYPE},
};
use serde_json::{Value, json};

use super::state::Seen;

pub fn answer(code: u16, body: &Value) -> Response<Body> {
    let mut response = Response::new(Body::from(body.to_string()));
    *response.status_mut() =
        StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    if let Ok(json) = "application/json".parse() {
        response.headers_mut().insert(CONTENT_TYPE, json);
    }
    response
}

/// A `Status`.
pub fn failure(code: u16, reason: &str, message: &str, details: Value) -> Response<Body> {
    answer(code, &status(code, reason, message, details))
}

/// The body of a `Status` that tells of a failure.
pub fn status(code: u16, reason: &str, message: &str, details: Value) -> Value {
    let mut body = json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    });
    if !details.is_null() {
        body["details"] = details;
    }
    body
}

/// `delete-not-found.json`.
pub fn not_found(kind: &str, name: &str) -> Response<Body> {
    failure(
        404,
        "NotFound",
        &format!("{kind} \"{name}\" not found"),
        json!({"name": name, "kind": kind}),
    )
}

/// `delete-uid-conflict.json`, `eviction-uid-mismatch.json`.
pub fn uid_conflict(name: &str, wanted: &str, found: &str) -> Response<Body> {
    let message = format!(
        "Operation cannot be fulfilled on Pod \"{name}\": the UID in the precondition ({wanted}) does not match \
         the UID in record ({found}). The object might have been deleted and then recreated"
    );
    failure(
        409,
        "Conflict",
        &message,
        json!({"name": name, "kind": "Pod"}),
    )
}

/// `node-taint-conflict.json`: what a patch gets that names another resourceVersion than the object's.
pub fn modified(resource: &str, object: &Value, patch: &Value) -> Option<Response<Body>> {
    let wanted = &patch["metadata"]["resourceVersion"];
    if wanted.is_null() || *wanted == object["metadata"]["resourceVersion"] {
        return None;
    }
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let message = format!(
        "Operation cannot be fulfilled on {resource} \"{name}\": the object has been modified; please apply your \
         changes to the latest version and try again"
    );
    let details = json!({"name": name, "kind": resource});
    Some(failure(409, "Conflict", &message, details))
}

/// `eviction-blocked-by-pdb.json`.
pub fn budget(budget: &str) -> Response<Body> {
    let cause = format!("The disruption budget {budget} needs 2 healthy pods and has 2 currently");
    failure(
        429,
        "TooManyRequests",
        "Cannot evict pod as it would violate the pod's disruption budget.",
        json!({"causes": [{"reason": "DisruptionBudget", "message": cause}]}),
    )
}

/// A namespace that is being deleted (`NamespaceLifecycle`).
pub fn terminating() -> Response<Body> {
    let message = "forbidden: unable to create new content in namespace default because it is being terminated";
    let cause = json!({"reason": "NamespaceTerminating", "message": "namespace default is being terminated", "field": "metadata.namespace"});
    failure(403, "Forbidden", message, json!({"causes": [cause]}))
}

/// A right that is missing, in the words of k8s.io/apiserver (`ForbiddenStatusError`).
pub fn no_right(seen: &Seen) -> Response<Body> {
    let parts: Vec<&str> = seen.path.split('/').skip(1).collect();
    let (resource, name) = match parts.as_slice() {
        ["api", "v1", "namespaces", _, resource, name, sub] => (format!("{resource}/{sub}"), *name),
        ["api", "v1", "namespaces", _, resource, name] => ((*resource).to_owned(), *name),
        [.., resource] => ((*resource).to_owned(), ""),
        [] => (String::new(), ""),
    };
    let verb = match seen.method.as_str() {
        "POST" => "create".to_owned(),
        method => method.to_lowercase(),
    };
    let kind = resource.split('/').next().unwrap_or_default();
    let message = format!(
        "{kind} \"{name}\" is forbidden: User \"system:serviceaccount:evictd:evictd\" cannot {verb} resource \"{resource}\" in API group \"\" in the namespace \"default\""
    );
    failure(
        403,
        "Forbidden",
        &message,
        json!({"name": name, "kind": kind}),
    )
}

/// `unauthorized.json`.
pub fn unauthorized() -> Response<Body> {
    failure(401, "Unauthorized", "Unauthorized", Value::Null)
}

/// `eviction-created.json`.
pub fn created() -> Response<Body> {
    answer(
        201,
        &json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}),
    )
}

/// A fault that a test has asked for.
pub fn scripted(code: u16) -> Response<Body> {
    let reason = match code {
        401 => return unauthorized(),
        403 => "Forbidden",
        409 => "Conflict",
        422 => "Invalid",
        429 => "TooManyRequests",
        503 => "ServiceUnavailable",
        504 => "Timeout",
        _ => "InternalError",
    };
    failure(code, reason, "scripted", Value::Null)
}
