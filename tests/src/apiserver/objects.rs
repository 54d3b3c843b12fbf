//! Namespaces, ConfigMaps, policies and the Node, as tests change them.

use std::collections::BTreeMap;

use axum::{body::Body, http::Response};
use serde_json::{Value, json};

use super::{
    answer::{answer, not_found},
    state::State,
};
use crate::policies::scoped;

/// What can be listed and watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Collection {
    /// `pods`
    Pods,
    /// `nodes`
    Nodes,
    /// `namespaces`
    Namespaces,
    /// `configmaps`
    ConfigMaps,
    /// `evictionpolicies.evictd.io`
    Policies,
    /// `podevictionpolicies.evictd.io`
    TenantPolicies,
}

impl Collection {
    /// `apiVersion` and `kind` of its objects.
    pub fn kind(self) -> (&'static str, &'static str) {
        match self {
            Self::Pods => ("v1", "Pod"),
            Self::Nodes => ("v1", "Node"),
            Self::Namespaces => ("v1", "Namespace"),
            Self::ConfigMaps => ("v1", "ConfigMap"),
            Self::Policies => ("evictd.io/v1alpha1", "EvictionPolicy"),
            Self::TenantPolicies => ("evictd.io/v1alpha1", "PodEvictionPolicy"),
        }
    }
}

impl State {
    /// Adds or changes a namespace, a ConfigMap or a policy and tells the watchers. A changed `spec` is a new generation.
    pub fn put(&mut self, collection: Collection, mut object: Value) {
        let (namespace, name) = key_of(&object);
        let key = (collection, namespace, name.clone());
        let before = self.objects.get(&key);
        let generation = before.map_or(0, |b| b["metadata"]["generation"].as_i64().unwrap_or(0));
        let changed = before.is_none_or(|b| b["spec"] != object["spec"]);
        let uid = before.map_or_else(
            || json!(format!("uid-of-{name}")),
            |b| b["metadata"]["uid"].clone(),
        );
        object["metadata"]["uid"] = uid;
        object["metadata"]["generation"] = (generation + i64::from(changed)).into();
        let kind = added(before.is_some());
        let (api_version, of) = collection.kind();
        object["apiVersion"] = api_version.into();
        object["kind"] = of.into();
        self.stamp(&mut object);
        self.tell(collection, kind, &object);
        self.objects.insert(key, object);
    }

    /// Takes such an object away and tells the watchers.
    pub fn remove(&mut self, collection: Collection, namespace: &str, name: &str) {
        let key = (collection, namespace.to_owned(), name.to_owned());
        if let Some(mut object) = self.objects.remove(&key) {
            self.stamp(&mut object);
            self.tell(collection, "DELETED", &object);
        }
    }

    /// A policy with this `spec`; its status stays.
    pub fn put_policy(&mut self, name: &str, spec: Value) {
        let status = self.policy(name)["status"].clone();
        let policy = json!({"metadata": {"name": name}, "spec": scoped(spec), "status": status});
        self.put(Collection::Policies, policy);
    }

    /// A policy as it is; null if there is none.
    pub fn policy(&self, name: &str) -> Value {
        let key = (Collection::Policies, String::new(), name.to_owned());
        self.objects.get(&key).cloned().unwrap_or_default()
    }

    /// The condition `Accepted` of a policy; null if it has none.
    pub fn accepted(&self, name: &str) -> Value {
        self.condition(name, "Accepted")
    }

    /// A condition of a policy; null if it has none of this type.
    pub fn condition(&self, name: &str, of_type: &str) -> Value {
        let policy = self.policy(name);
        let conditions = policy["status"]["conditions"].as_array();
        let found = conditions.and_then(|all| all.iter().find(|c| c["type"] == of_type));
        found.cloned().unwrap_or_default()
    }

    /// Gives the Node an annotation or takes it away, and tells the watchers.
    pub fn annotate_node(&mut self, key: &str, value: Option<&str>) {
        let mut node = self.node.clone();
        node["metadata"]["annotations"][key] = value.into();
        if value.is_none() {
            node["metadata"]["annotations"] = json!({});
        }
        self.put_node(node);
    }

    pub(super) fn put_node(&mut self, mut node: Value) {
        self.stamp(&mut node);
        self.tell(Collection::Nodes, "MODIFIED", &node);
        self.node = node;
    }

    pub(super) fn all_of(&self, collection: Collection) -> impl Iterator<Item = &Value> {
        let node = (collection == Collection::Nodes).then_some(&self.node);
        let pods = (collection == Collection::Pods).then_some(&self.pods);
        let objects = self
            .objects
            .iter()
            .filter(move |((c, ..), _)| *c == collection);
        let pods = pods.into_iter().flat_map(BTreeMap::values);
        pods.chain(node).chain(objects.map(|(_, object)| object))
    }
}

pub(super) fn added(before: bool) -> &'static str {
    if before { "MODIFIED" } else { "ADDED" }
}

pub(super) fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

pub(super) fn namespace_of(object: &Value) -> &str {
    object["metadata"]["namespace"].as_str().unwrap_or_default()
}

pub(super) fn key_of(object: &Value) -> (String, String) {
    (namespace_of(object).to_owned(), name_of(object).to_owned())
}

pub(super) fn get(state: &State, of: Collection, namespace: &str, name: &str) -> Response<Body> {
    let key = (of, namespace.to_owned(), name.to_owned());
    match state.objects.get(&key) {
        Some(object) => answer(200, object),
        None => not_found(of.kind().1, name),
    }
}

/// Server-side apply by the only manager of all fields.
pub(super) fn apply(
    state: &mut State,
    of: Collection,
    namespace: &str,
    name: &str,
    mut object: Value,
) -> Response<Body> {
    object["metadata"]["namespace"] = namespace.into();
    object["metadata"]["name"] = name.into();
    state.put(of, object);
    get(state, of, namespace, name)
}

pub(super) fn delete(
    state: &mut State,
    of: Collection,
    namespace: &str,
    name: &str,
) -> Response<Body> {
    let found = get(state, of, namespace, name);
    state.remove(of, namespace, name);
    found
}
