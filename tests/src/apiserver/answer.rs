//! Answers in the recorded forms.

use axum::{
    body::Body,
    http::{Response, header::CONTENT_TYPE},
};
use serde_json::{Value, json};

use super::{objects::Collection, rbac::Asked, state::Seen};

pub fn answer(code: u16, body: &Value) -> Response<Body> {
    json_of(code, Body::from(body.to_string()))
}

/// Builds a JSON answer with a body that may be told bit by bit.
pub fn json_of(code: u16, body: Body) -> Response<Body> {
    let response = Response::builder().status(code);
    let response = response.header(CONTENT_TYPE, "application/json");
    response.body(body).unwrap_or_default()
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

/// `delete-uid-conflict.json`, `eviction-uid-mismatch.json`, `node-taint-conflict.json`: what is wanted is another UID or
/// resourceVersion than the object has.
pub fn conflict(of: Collection, object: &Value, wanted: &Value) -> Option<Response<Body>> {
    let found = &object["metadata"];
    let differs = |field: &str| !wanted[field].is_null() && wanted[field] != found[field];
    let text = |of: &Value| of.as_str().unwrap_or_default().to_owned();
    let [resource, _, kind] = of.names();
    let (what, why) = if differs("uid") {
        let why = format!(
            "the UID in the precondition ({}) does not match the UID in record ({}). The object might have been \
             deleted and then recreated",
            text(&wanted["uid"]),
            text(&found["uid"])
        );
        (kind, why)
    } else if differs("resourceVersion") {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        (resource, why.to_owned())
    } else {
        return None;
    };
    let name = text(&found["name"]);
    let message = format!("Operation cannot be fulfilled on {what} \"{name}\": {why}");
    let details = json!({"name": name, "kind": what});
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
    let asked = Asked::of(&seen.path);
    let (resource, name) = asked.map_or_else(Default::default, |asked| {
        (asked.resource, asked.name.unwrap_or_default())
    });
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
