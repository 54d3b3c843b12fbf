//! Rights: the agent's own rights, TokenReviews, and SubjectAccessReviews for the path `/metrics`.

use axum::{body::Body, http::Response};
use serde_json::{Value, json};

use super::{answer::answer, state::State};

/// `POST .../selfsubjectaccessreviews`.
pub fn own_rights(state: &State, mut review: Value) -> Response<Body> {
    let asked = &review["spec"]["resourceAttributes"];
    let text = |field: &str| asked[field].as_str().unwrap_or_default();
    let mut what = format!("{} {}", text("verb"), text("resource"));
    if !text("subresource").is_empty() {
        what = format!("{what}/{}", text("subresource"));
    }
    review["status"] = json!({"allowed": !state.denied.contains(&what)});
    answer(201, &review)
}

pub fn token(state: &State, mut review: Value) -> Response<Body> {
    let token = review["spec"]["token"].as_str().unwrap_or_default();
    review["status"] = match state.scrapers.get(token) {
        Some((user, _)) => json!({
            "authenticated": true,
            "user": { "username": user, "groups": ["system:authenticated"] },
        }),
        None => json!({ "authenticated": false, "error": "invalid bearer token" }),
    };
    answer(201, &review)
}

pub fn access(state: &State, mut review: Value) -> Response<Body> {
    let spec = &review["spec"];
    let is_requested =
        spec["nonResourceAttributes"] == json!({ "verb": "get", "path": "/metrics" });
    let may = |(user, may): &(String, bool)| *may && spec["user"] == user.as_str();
    let allowed = is_requested && state.scrapers.values().any(may);
    review["status"] = json!({ "allowed": allowed });
    answer(201, &review)
}
