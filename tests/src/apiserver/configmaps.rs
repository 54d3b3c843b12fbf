//! ConfigMaps by their names.

use axum::{body::Body, http::Response};
use serde_json::{Value, json};

use super::{
    answer::{answer, modified, not_found, scripted},
    objects::Collection,
    state::State,
};

/// `PATCH .../configmaps/NAME`: a merge patch of `data`, in which null takes an entry away.
pub fn patch(
    state: &mut State,
    (namespace, name): (&str, &str),
    content_type: &str,
    body: &Value,
) -> Response<Body> {
    let mut map = state.config_map(namespace, name);
    if map.is_null() {
        return not_found("configmaps", name);
    }
    if content_type != "application/merge-patch+json" {
        return scripted(415);
    }
    if let Some(conflict) = modified("configmaps", &map, body) {
        return conflict;
    }
    let mut data = map["data"].as_object().cloned().unwrap_or_default();
    for (key, value) in body["data"].as_object().into_iter().flatten() {
        match value {
            Value::Null => data.remove(key),
            value => data.insert(key.clone(), value.clone()),
        };
    }
    map["data"] = data.into();
    state.put(Collection::ConfigMaps, map);
    answer(200, &state.config_map(namespace, name))
}

impl State {
    /// A ConfigMap as it is; null if there is none.
    pub fn config_map(&self, namespace: &str, name: &str) -> Value {
        let mut maps = self.all_of(Collection::ConfigMaps);
        let is_it = |map: &&Value| {
            map["metadata"]["namespace"] == namespace && map["metadata"]["name"] == name
        };
        maps.find(is_it).cloned().unwrap_or_default()
    }

    /// Adds or changes a ConfigMap with these entries.
    pub fn put_config_map(&mut self, namespace: &str, name: &str, data: Value) {
        let metadata = json!({"namespace": namespace, "name": name});
        let map = json!({"metadata": metadata, "data": data});
        self.put(Collection::ConfigMaps, map);
    }
}
