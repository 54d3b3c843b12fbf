//! Policies: their status is a subresource.

use axum::{body::Body, http::Response};
use serde_json::Value;

use super::{
    answer::{answer, modified, not_found, scripted},
    objects::Collection,
    state::State,
};

/// `PATCH .../evictionpolicies/NAME/status`: a merge patch, which replaces lists. What is not of the status stays.
pub fn patch_status(
    state: &mut State,
    name: &str,
    content_type: &str,
    body: &Value,
) -> Response<Body> {
    let mut policy = state.policy(name);
    if policy.is_null() {
        return not_found("evictionpolicies.evictd.io", name);
    }
    if content_type != "application/merge-patch+json" {
        return scripted(415);
    }
    if let Some(conflict) = modified("evictionpolicies.evictd.io", &policy, body) {
        return conflict;
    }
    if let Some(fields) = body["status"].as_object() {
        for (field, value) in fields {
            policy["status"][field] = value.clone();
        }
    }
    state.put(Collection::Policies, policy);
    answer(200, &state.policy(name))
}
