//! The node and the questions about rights.

use axum::{body::Body, http::Response};
use serde_json::{Value, json};

use super::{
    NODE,
    answer::{answer, modified, not_found},
    pods::merge_conditions,
    state::State,
};

/// `GET /api/v1/nodes/NAME`.
pub fn get(state: &State, name: &str) -> Response<Body> {
    if name == NODE {
        answer(200, &state.node)
    } else {
        not_found("nodes", name)
    }
}

/// `PATCH /api/v1/nodes/NAME/status`: a strategic merge patch.
pub fn patch_status(state: &mut State, name: &str, body: &Value) -> Response<Body> {
    if name != NODE {
        return not_found("nodes", name);
    }
    let mut node = state.node.clone();
    merge_conditions(&mut node, body);
    store(state, node)
}

/// `PATCH /api/v1/nodes/NAME`: a merge patch, which replaces lists, under the condition of a resourceVersion.
pub fn patch(state: &mut State, name: &str, content_type: &str, body: &Value) -> Response<Body> {
    if name != NODE {
        return not_found("nodes", name);
    }
    if let Some(conflict) = modified("nodes", &state.node, body) {
        return conflict;
    }
    let mut node = state.node.clone();
    // `node-taint-apply.json` shows that applying replaces the taints of all writers as well: the list is atomic.
    if let Some(changed) = body["metadata"]["annotations"].as_object() {
        let annotations = &mut node["metadata"]["annotations"];
        for (key, value) in changed {
            match (value, annotations.as_object_mut()) {
                (Value::Null, Some(there)) => drop(there.remove(key)),
                (Value::Null, None) => {}
                _ => annotations[key] = value.clone(),
            }
        }
    }
    let has_taints = content_type.contains("merge-patch") || content_type.contains("apply-patch");
    if has_taints && body.get("spec").is_some() {
        match &body["spec"]["taints"] {
            Value::Null => drop(
                node["spec"]
                    .as_object_mut()
                    .map(|spec| spec.remove("taints")),
            ),
            taints => node["spec"]["taints"] = taints.clone(),
        }
    }
    store(state, node)
}

fn store(state: &mut State, node: Value) -> Response<Body> {
    state.put_node(node);
    answer(200, &state.node)
}

/// `POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews`.
pub fn review(state: &State, mut body: Value) -> Response<Body> {
    let asked = &body["spec"]["resourceAttributes"];
    let text = |field: &str| asked[field].as_str().unwrap_or_default();
    let mut what = format!("{} {}", text("verb"), text("resource"));
    if !text("subresource").is_empty() {
        what = format!("{what}/{}", text("subresource"));
    }
    body["status"] = json!({"allowed": !state.denied.contains(&what)});
    answer(201, &body)
}
