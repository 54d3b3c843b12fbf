//! Lists and watches.

use axum::{body::Body, http::Response};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use super::{
    answer::{answer, json_of, status},
    objects::{Collection, namespace_of},
    state::State,
};
use crate::prelude::*;

pub struct Watcher {
    collection: Collection,
    wanted: Wanted,
    sender: UnboundedSender<String>,
}

/// Selection of a collection's objects, and how much of them is wanted.
#[derive(Clone)]
pub struct Wanted {
    namespace: Option<String>,
    /// One field, as a JSON pointer, and its value.
    field: Option<(String, String)>,
    /// `key=value` of one label.
    label: Option<(String, String)>,
    metadata_only: bool,
}

impl Wanted {
    /// Builds the selection in a namespace or in all of them, by the request's selectors and `Accept`.
    pub fn new(namespace: Option<&str>, query: &BTreeMap<String, String>, accept: &str) -> Self {
        let selector = |name: &str| {
            let (key, value) = query.get(name)?.split_once('=')?;
            Some((key.to_owned(), value.to_owned()))
        };
        let pointer =
            |(field, value): (String, String)| (format!("/{}", field.replace('.', "/")), value);
        Self {
            namespace: namespace.map(str::to_owned),
            // Without one all of the cluster comes, which is what a test wants to notice.
            field: selector("fieldSelector").map(pointer),
            label: selector("labelSelector"),
            metadata_only: accept.contains("as=PartialObjectMetadata"),
        }
    }

    fn wants(&self, object: &Value) -> bool {
        let (namespace, field, label) = (&self.namespace, &self.field, &self.label);
        namespace
            .iter()
            .all(|wanted| namespace_of(object) == wanted)
            && field
                .iter()
                .all(|(at, value)| object.pointer(at).is_some_and(|found| *found == **value))
            && label
                .iter()
                .all(|(key, value)| object["metadata"]["labels"][key] == **value)
    }

    /// Cuts an object down to as much as was asked for.
    fn cut(&self, object: &Value) -> Value {
        if !self.metadata_only {
            return object.clone();
        }
        json!({
            "kind": "PartialObjectMetadata",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": object["metadata"],
        })
    }
}

impl Watcher {
    /// Sends a change; false when the watcher is gone.
    pub fn tell(&self, collection: Collection, kind: &str, object: &Value) -> bool {
        if self.collection != collection || (kind != "BOOKMARK" && !self.wanted.wants(object)) {
            return !self.is_gone();
        }
        self.send(line(kind, &self.wanted.cut(object)))
    }

    /// Sends a line; false when the watcher is gone.
    pub fn send(&self, line: String) -> bool {
        self.sender.send(line).is_ok()
    }

    pub fn is_gone(&self) -> bool {
        self.sender.is_closed()
    }
}

fn line(kind: &str, object: &Value) -> String {
    format!("{}\n", json!({"type": kind, "object": object}))
}

/// `pods-watch-too-old.json`.
pub fn too_old(wanted: u64, oldest: u64) -> String {
    let message = format!("too old resource version: {wanted} ({oldest})");
    let object = status(410, "Expired", &message, Value::Null);
    line("ERROR", &object)
}

/// A list of a collection, or a watch of it.
pub fn answer_with(
    state: &mut State,
    collection: Collection,
    wanted: Wanted,
    query: &BTreeMap<String, String>,
) -> Response<Body> {
    let watch = query
        .get("watch")
        .is_some_and(|w| matches!(w.as_str(), "1" | "true"));
    if watch {
        return stream(state, collection, wanted, query);
    }
    let items: Vec<Value> = state
        .all_of(collection)
        .filter(|object| wanted.wants(object))
        .map(|object| wanted.cut(object))
        .collect();
    let metadata = json!({"resourceVersion": state.version.to_string()});
    let [_, api_version, kind] = match wanted.metadata_only {
        true => ["", "meta.k8s.io/v1", "PartialObjectMetadata"],
        false => collection.names(),
    };
    let list = json!({
        "kind": format!("{kind}List"),
        "apiVersion": api_version,
        "metadata": metadata,
        "items": items,
    });
    answer(200, &list)
}

fn stream(
    state: &mut State,
    collection: Collection,
    wanted: Wanted,
    query: &BTreeMap<String, String>,
) -> Response<Body> {
    let from: u64 = query
        .get("resourceVersion")
        .and_then(|v| v.parse().ok())
        .unwrap_or(0);
    let (sender, mut receiver) = unbounded_channel::<String>();
    let watcher = Watcher {
        collection,
        wanted,
        sender,
    };
    if from < state.oldest {
        // The receiver is still in our hands.
        let _ = watcher.send(too_old(from, state.oldest));
    } else {
        for (version, changed, kind, object) in &state.log {
            if *version > from {
                watcher.tell(*changed, kind, object);
            }
        }
        state.watchers.push(watcher);
    }
    let lines = futures::stream::poll_fn(move |cx| {
        receiver
            .poll_recv(cx)
            .map(|line| line.map(Ok::<_, std::io::Error>))
    });
    json_of(200, Body::from_stream(lines))
}
