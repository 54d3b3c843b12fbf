//! Who asks for metrics: TokenReviews, and SubjectAccessReviews for the path `/metrics`.

use axum::{body::Body, http::Response};
use serde_json::{Value, json};

use super::{answer::answer, state::State};

pub fn token_review(state: &State, mut review: Value) -> Response<Body> {
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

pub fn access_review(state: &State, mut review: Value) -> Response<Body> {
    let spec = &review["spec"];
    let is_asked = spec["nonResourceAttributes"] == json!({ "verb": "get", "path": "/metrics" });
    let may = |(user, may): &(String, bool)| *may && spec["user"] == user.as_str();
    let allowed = is_asked && state.scrapers.values().any(may);
    review["status"] = json!({ "allowed": allowed });
    answer(201, &review)
}
