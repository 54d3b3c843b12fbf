//! The objects that the server has, each at its path, as tests change them.

use super::{NODE, state::State};
use crate::{policies::scoped, prelude::*};

/// Collection of objects that can be listed and watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collection {
    Pods,
    Nodes,
    Namespaces,
    ConfigMaps,
    DaemonSets,
    Events,
    Policies,
    TenantPolicies,
}

impl Collection {
    const ALL: [Self; 8] = [
        Self::Pods,
        Self::Nodes,
        Self::Namespaces,
        Self::ConfigMaps,
        Self::DaemonSets,
        Self::Events,
        Self::Policies,
        Self::TenantPolicies,
    ];

    /// Name of the collection in paths, and `apiVersion` and `kind` of its objects.
    pub fn names(self) -> [&'static str; 3] {
        match self {
            Self::Pods => ["pods", "v1", "Pod"],
            Self::Nodes => ["nodes", "v1", "Node"],
            Self::Namespaces => ["namespaces", "v1", "Namespace"],
            Self::ConfigMaps => ["configmaps", "v1", "ConfigMap"],
            Self::DaemonSets => ["daemonsets", "apps/v1", "DaemonSet"],
            Self::Events => ["events", "events.k8s.io/v1", "Event"],
            Self::Policies => ["evictionpolicies", "evictd.io/v1alpha1", "EvictionPolicy"],
            Self::TenantPolicies => [
                "podevictionpolicies",
                "evictd.io/v1alpha1",
                "PodEvictionPolicy",
            ],
        }
    }

    fn base(self) -> String {
        match self.names() {
            [_, "v1", _] => "/api/v1".to_owned(),
            [_, version, _] => format!("/apis/{version}"),
        }
    }

    /// Path of an object of the collection; without a namespace if that is empty.
    pub fn path(self, namespace: &str, name: &str) -> String {
        let ([resource, ..], base) = (self.names(), self.base());
        match namespace {
            "" => format!("{base}/{resource}/{name}"),
            _ => format!("{base}/namespaces/{namespace}/{resource}/{name}"),
        }
    }

    /// Finds what a path names: a collection, of one namespace or of all, or an object of it.
    pub(super) fn find(path: &str) -> Option<(Self, Option<&str>, Option<&str>)> {
        Self::ALL.into_iter().find_map(|collection| {
            let rest = path.strip_prefix(&collection.base())?.strip_prefix('/')?;
            let in_namespace = rest.strip_prefix("namespaces/");
            let (namespace, rest) = match in_namespace.and_then(|rest| rest.split_once('/')) {
                Some((namespace, rest)) => (Some(namespace), rest),
                None => (None, rest),
            };
            let (resource, name) = match rest.split_once('/') {
                Some((resource, name)) => (resource, Some(name)),
                None => (rest, None),
            };
            (resource == collection.names()[0]).then_some((collection, namespace, name))
        })
    }
}

impl State {
    /// Adds or changes an object and tells the watchers. A changed `spec` is a new generation.
    pub fn put(&mut self, collection: Collection, mut object: Value) {
        let name = name_of(&object).to_owned();
        let path = collection.path(namespace_of(&object), &name);
        let before = self.objects.get(&path);
        // A pod's UID is what a test is about.
        if !matches!(collection, Collection::Pods | Collection::Nodes) {
            let generation =
                before.map_or(0, |b| b["metadata"]["generation"].as_i64().unwrap_or(0));
            let changed = before.is_none_or(|b| b["spec"] != object["spec"]);
            object["metadata"]["generation"] = (generation + i64::from(changed)).into();
            object["metadata"]["uid"] = format!("uid-of-{name}").into();
        }
        let change = if before.is_some() {
            "MODIFIED"
        } else {
            "ADDED"
        };
        let [_, api_version, kind] = collection.names();
        object["apiVersion"] = api_version.into();
        object["kind"] = kind.into();
        self.stamp(&mut object);
        self.tell(collection, change, &object);
        self.objects.insert(path, object);
    }

    /// Takes an object away and tells the watchers.
    pub fn remove(&mut self, collection: Collection, namespace: &str, name: &str) {
        let removed = self.objects.remove(&collection.path(namespace, name));
        if let Some(mut object) = removed {
            self.stamp(&mut object);
            self.tell(collection, "DELETED", &object);
        }
    }

    /// An object as it is; null if there is none.
    pub fn get(&self, collection: Collection, namespace: &str, name: &str) -> Value {
        let found = self.objects.get(&collection.path(namespace, name));
        found.cloned().unwrap_or_default()
    }

    pub fn all_of(&self, collection: Collection) -> impl Iterator<Item = &Value> {
        let is_of = move |path: &str| {
            Collection::find(path).is_some_and(|(of, _, name)| of == collection && name.is_some())
        };
        let objects = self.objects.iter();
        objects.filter_map(move |(path, object)| is_of(path).then_some(object))
    }

    /// Adds or changes a pod and tells the watchers.
    pub fn put_pod(&mut self, pod: Value) {
        self.put(Collection::Pods, pod);
    }

    /// Changes a pod of the namespace `default` and tells the watchers.
    pub fn change_pod(&mut self, name: &str, change: impl FnOnce(&mut Value)) {
        let mut pod = self.get(Collection::Pods, "default", name);
        change(&mut pod);
        self.put_pod(pod);
    }

    /// A ConfigMap as it is; null if there is none.
    pub fn config_map(&self, namespace: &str, name: &str) -> Value {
        self.get(Collection::ConfigMaps, namespace, name)
    }

    /// Adds or changes a ConfigMap with these entries.
    pub fn put_config_map(&mut self, namespace: &str, name: &str, data: Value) {
        let metadata = json!({"namespace": namespace, "name": name});
        let map = json!({"metadata": metadata, "data": data});
        self.put(Collection::ConfigMaps, map);
    }

    /// A policy with this `spec`; its status stays.
    pub fn put_policy(&mut self, name: &str, spec: Value) {
        let status = self.policy(name)["status"].clone();
        let policy = json!({"metadata": {"name": name}, "spec": scoped(spec), "status": status});
        self.put(Collection::Policies, policy);
    }

    /// A policy as it is; null if there is none.
    pub fn policy(&self, name: &str) -> Value {
        self.get(Collection::Policies, "", name)
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

    /// Events of a reason that are about a kind of object.
    pub fn events_of(&self, reason: &str, kind: &str) -> Vec<Value> {
        let is_it = |e: &&Value| e["reason"] == reason && e["regarding"]["kind"] == kind;
        let events = self.all_of(Collection::Events);
        events.filter(is_it).cloned().collect()
    }

    pub fn node(&self) -> &Value {
        &self.objects[&Collection::Nodes.path("", NODE)]
    }

    /// To be changed without a word to the watchers.
    pub fn node_mut(&mut self) -> &mut Value {
        let path = Collection::Nodes.path("", NODE);
        self.objects.entry(path).or_default()
    }

    /// Gives the Node an annotation or takes it away, and tells the watchers.
    pub fn annotate_node(&mut self, key: &str, value: Option<&str>) {
        let mut node = self.node().clone();
        let change = json!({"metadata": {"annotations": {key: value}}});
        json_patch::merge(&mut node, &change);
        self.put(Collection::Nodes, node);
    }

    /// Whether the node has this condition.
    pub fn has_condition(&self, kind: &str) -> bool {
        let all = self.node()["status"]["conditions"].as_array();
        all.into_iter()
            .flatten()
            .any(|c| c["type"] == kind && c["status"] == "True")
    }

    /// The keys of the node's taints.
    pub fn taints(&self) -> Vec<&str> {
        let all = self.node()["spec"]["taints"].as_array();
        let keys = all.into_iter().flatten().map(|t| t["key"].as_str());
        keys.flatten().collect()
    }
}

pub(super) fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

pub(super) fn namespace_of(object: &Value) -> &str {
    object["metadata"]["namespace"].as_str().unwrap_or_default()
}
