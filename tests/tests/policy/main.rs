//! Policies: what they say, and what the agent does by them.

mod addresses;
mod api;
mod arangodb;
mod cli;
mod definition;
mod embedded;
mod fastpath;
mod gates;
mod gates_tls;
mod limits;
mod object;
mod pause;
mod render;
mod shipped;
mod status;
mod tenants;

use evictd_tests::prelude::*;

/// What an agent with this directory says of a pod, as `evictd policy explain` shows it.
fn explained(dir: &Path, pod: &str) -> Value {
    let text = fs::read_to_string(dir.join("state/policies.json")).unwrap_or_default();
    let all: Value = serde_json::from_str(&text).unwrap_or_default();
    let mut pods = all.as_array().into_iter().flatten();
    let found = pods.find(|explained| explained["pod"] == format!("default/{pod}"));
    found.cloned().unwrap_or_default()
}
