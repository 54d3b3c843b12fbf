//! Lists and watches of the node's pods.

use std::collections::BTreeMap;

use axum::{
    body::Body,
    http::{Response, header::CONTENT_TYPE},
};
use serde_json::{Value, json};
use tokio::sync::mpsc::unbounded_channel;

use super::{
    NODE,
    answer::{answer, status},
    state::State,
};

/// `pods-watch-too-old.json`.
pub fn too_old(wanted: u64, oldest: u64) -> String {
    let message = format!("too old resource version: {wanted} ({oldest})");
    let object = status(410, "Expired", &message, Value::Null);
    format!("{}\n", json!({"type": "ERROR", "object": object}))
}

/// `GET /api/v1/pods`, with and without `watch`.
pub fn pods(state: &mut State, query: &BTreeMap<String, String>) -> Response<Body> {
    let of_node =
        query.get("fieldSelector").map(String::as_str) == Some(&format!("spec.nodeName={NODE}"));
    let watch = query
        .get("watch")
        .is_some_and(|w| matches!(w.as_str(), "1" | "true"));
    if watch {
        return stream(state, query);
    }
    // Without the selector all of the cluster would come, which is what a test wants to notice.
    let items: Vec<&Value> = state
        .pods
        .values()
        .filter(|p| !of_node || p["spec"]["nodeName"] == NODE)
        .collect();
    let metadata = json!({"resourceVersion": state.version.to_string()});
    answer(
        200,
        &json!({"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": items}),
    )
}

fn stream(state: &mut State, query: &BTreeMap<String, String>) -> Response<Body> {
    let from: u64 = query
        .get("resourceVersion")
        .and_then(|v| v.parse().ok())
        .unwrap_or(0);
    let (sender, mut receiver) = unbounded_channel::<String>();
    if from < state.oldest {
        // The receiver is still in our hands.
        let _ = sender.send(too_old(from, state.oldest));
    } else {
        for (_, line) in state.log.iter().filter(|(version, _)| *version > from) {
            let _ = sender.send(line.clone());
        }
        state.watchers.push(sender);
    }
    let lines = futures::stream::poll_fn(move |cx| {
        receiver
            .poll_recv(cx)
            .map(|line| line.map(Ok::<_, std::io::Error>))
    });
    let mut response = Response::new(Body::from_stream(lines));
    if let Ok(json) = "application/json".parse() {
        response.headers_mut().insert(CONTENT_TYPE, json);
    }
    response
}
