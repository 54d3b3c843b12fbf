//! Objects of all other kinds, by the path that they have, and the server's version.

use axum::{body::Body, http::Response};
use serde_json::json;

use super::{
    answer::{answer, not_found},
    state::State,
};

/// `GET /version`.
pub fn version() -> Response<Body> {
    let version = json!({
        "major": "1", "minor": "36", "gitVersion": "v1.36.0", "gitCommit": "", "gitTreeState": "",
        "goVersion": "", "buildDate": "", "compiler": "", "platform": "",
    });
    answer(200, &version)
}

pub fn at(state: &State, method: &str, path: &str) -> Response<Body> {
    let name = path.rsplit('/').next().unwrap_or_default();
    match state.others.get(path).filter(|_| method == "GET") {
        Some(object) => answer(200, object),
        None => not_found("objects", name),
    }
}
