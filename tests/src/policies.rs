//! Specifications of policies for tests that are about something else than where a policy holds.

use evictd_policy::{API_VERSION, KIND};
use serde_json::{Map, Value, json};

/// The policy of this name with this specification, which is [`scoped`].
pub fn document(name: &str, spec: Value) -> Value {
    json!({"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": scoped(spec)})
}

/// The same specification, which holds everywhere and whose gates may ask on loopback unless it says otherwise; one that sends a
/// token holds in the namespace `default`.
pub fn scoped(mut spec: Value) -> Value {
    let Some(fields) = spec.as_object_mut() else {
        return spec;
    };
    let gates = fields.get_mut("gates").and_then(Value::as_array_mut);
    let https = gates
        .into_iter()
        .flatten()
        .filter_map(|gate| gate.get_mut("http"));
    let mut sends_token = false;
    for http in https.filter_map(Value::as_object_mut) {
        sends_token |= http.contains_key("token");
        http.entry("hosts")
            .or_insert_with(|| json!(["127.0.0.0/8"]));
    }
    let holds = |fields: &Map<String, Value>, field| fields.contains_key(field);
    if !holds(fields, "namespaceSelector") && !holds(fields, "allNamespaces") {
        if sends_token {
            let default = json!({"kubernetes.io/metadata.name": "default"});
            fields.insert(
                "namespaceSelector".into(),
                json!({ "matchLabels": default }),
            );
        } else {
            fields.insert("allNamespaces".into(), "a test".into());
        }
    }
    spec
}
