//! All policies of files and of the API server, and which version of each is in force.
//!
//! Where a file and an object have the same name, the file's policy holds: it comes from the administrator of this one
//! node, and it is there when the API server is not. While a policy's newest version cannot be used, its last good
//! version stays in force.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard},
};

use evictd_sys::mutex::locked;
use serde_json::Value;

use super::{EvictionPolicy, PolicyEvaluator};
use crate::conflict::Conflict;
use state::{Object, State, tenant_key};

mod state;

/// The status of one version of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyStatus {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.generation`.
    pub generation: Option<i64>,
    /// The field and the reason why this version cannot be used; `None` if it can.
    pub refused: Option<String>,
    /// Warning about what is unsafe in this version although it is in force.
    pub warning: Option<String>,
    /// Other objects that can contradict this one, as [`crate::conflict::named`] names them. Policies of files do
    /// not count: they differ from node to node.
    pub may_contradict: Arc<[String]>,
    /// A conflict with one of these objects about a pod of this node, in words.
    pub contradicts: Option<String>,
    /// Whether this agent has seen a pod that this version selects.
    pub selects: bool,
}

/// Keeps policies, and puts the good ones in force.
pub struct PolicyStore {
    evaluator: Arc<PolicyEvaluator>,
    state: Mutex<State>,
}

impl PolicyStore {
    /// Creates a store that knows of no policy yet.
    pub fn new(evaluator: Arc<PolicyEvaluator>) -> Self {
        Self {
            evaluator,
            state: Mutex::default(),
        }
    }

    /// The evaluator of the policies in force.
    pub fn evaluator(&self) -> &Arc<PolicyEvaluator> {
        &self.evaluator
    }

    /// Takes the files' policies; `None`: the files cannot be used, and their last good policies stay.
    pub fn set_files(&self, policies: Option<Vec<EvictionPolicy>>) {
        let mut state = locked(&self.state);
        state.files_refused = policies.is_none();
        if let Some(policies) = policies {
            policies.iter().for_each(state::warn_of);
            state.files = policies.into_iter().map(Arc::new).collect();
            self.enforce(state);
        }
    }

    /// Takes a new or changed object.
    pub fn put(&self, document: &Value) -> Option<PolicyStatus> {
        let mut state = locked(&self.state);
        let before = state.objects.get(name(document)).map(|o| o.status.clone());
        let status = state.put(document)?;
        // The same version came again, with only its status changed: the policies in force stay.
        if status.generation.is_none() || before.as_ref() != Some(&status) {
            self.enforce(state);
        } else {
            drop(state);
        }
        self.status(name(document))
    }

    /// The status of an object.
    pub fn status(&self, name: &str) -> Option<PolicyStatus> {
        let state = locked(&self.state);
        state.objects.get(name).map(|o| o.status.clone())
    }

    /// The statuses of all objects, by name.
    pub fn statuses(&self) -> Vec<PolicyStatus> {
        let state = locked(&self.state);
        state.objects.values().map(|o| o.status.clone()).collect()
    }

    /// Looks whether objects in force select or contradict each other on pods of this node. Answers whether a status
    /// has changed. Cheap as long as neither pods nor policies change.
    pub fn look_for_pods(&self) -> bool {
        let seen = self.evaluator.pods_revision();
        let mut state = locked(&self.state);
        let now = Some((state.revision, seen));
        if std::mem::replace(&mut state.looked_at, now) == now {
            return false;
        }
        let waiting = state.objects.values().any(Object::waits_for_pods);
        drop(state);
        if !waiting {
            return false;
        }
        let matched: BTreeMap<_, _> = self.evaluator.matched().into_iter().collect();
        let conflicts = self.evaluator.conflicts();
        let mut state = locked(&self.state);
        let mut changed = false;
        for (one, other) in &conflicts {
            let seen = Conflict {
                one: &one.policy,
                rule: one.index(),
                other: &other.policy,
                other_rule: other.index(),
            };
            changed |= state.add_conflict(&seen) | state.add_conflict(&seen.turned());
        }
        let State { files, objects, .. } = &mut *state;
        for (name, object) in objects {
            let of_a_file = files.iter().any(|f| f.name == *name);
            let has_pods = matched.get(name).is_some_and(|pods| *pods > 0);
            if has_pods && !of_a_file && object.newest().is_some() && !object.status.selects {
                object.status.selects = true;
                changed = true;
            }
        }
        changed
    }

    /// Takes the complete list of objects; all others are gone.
    pub fn replace(&self, documents: &[Value]) -> Vec<PolicyStatus> {
        let mut state = locked(&self.state);
        let names: BTreeSet<&str> = documents.iter().map(name).collect();
        state.left_out.clear();
        state.needs_list = false;
        state
            .objects
            .retain(|known, _| names.contains(known.as_str()));
        documents.iter().for_each(|document| {
            state.put(document);
        });
        self.enforce(state);
        self.statuses()
    }

    /// Forgets an object that is gone.
    pub fn remove(&self, name: &str) {
        let mut state = locked(&self.state);
        if state.remove(name) {
            self.enforce(state);
        }
    }

    /// Whether a new list brings objects for which there was no place before.
    pub fn needs_list(&self) -> bool {
        locked(&self.state).needs_list
    }

    /// Takes the complete list of the policies of namespaces.
    pub fn replace_tenants(&self, documents: &[Value]) {
        let mut state = locked(&self.state);
        let before = std::mem::take(&mut state.tenants);
        state.tenants_refused.clear();
        state.tenants_left_out.clear();
        state.tenants_need_list = false;
        // Those that have places keep them; of the others every agent that starts takes the same.
        let mut documents = Vec::from_iter(documents.iter().map(|d| (tenant_key(d), d)));
        documents.sort_by(|(one, _), (other, _)| {
            let is_new = |key| !before.contains_key(key);
            (is_new(one), one).cmp(&(is_new(other), other))
        });
        for (_, document) in documents {
            state.put_tenant(document);
        }
        // Where a new version cannot be used, the last good one stays.
        let refused: Vec<_> = state.tenants_refused.iter().cloned().collect();
        for key in refused {
            if let Some(good) = before.get(&key) {
                state.tenants.insert(key, Arc::clone(good));
            }
        }
        self.enforce(state);
    }

    /// Takes a new or changed policy of a namespace.
    pub fn put_tenant(&self, document: &Value) {
        let mut state = locked(&self.state);
        state.put_tenant(document);
        self.enforce(state);
    }

    /// Forgets a policy of a namespace that is gone.
    pub fn remove_tenant(&self, document: &Value) {
        let mut state = locked(&self.state);
        state.remove_tenant(document);
        self.enforce(state);
    }

    /// Whether a new list brings policies of namespaces for which there was no place before.
    pub fn tenants_need_list(&self) -> bool {
        locked(&self.state).tenants_need_list
    }

    /// Number of policies of namespaces whose newest version cannot be used or that have no place.
    pub fn tenants_refused(&self) -> usize {
        let state = locked(&self.state);
        state.tenants_refused.len() + state.tenants_left_out.len()
    }

    /// Takes over the objects and the namespaces' policies that an earlier agent had in force, until the API server's
    /// own list replaces them.
    pub fn restore(&self, documents: &[Value], tenants: &[Value]) {
        let mut state = locked(&self.state);
        for document in documents {
            // A newer agent may have remembered an object that this version cannot read.
            if let Some(status) = state.put(document)
                && let Some(reason) = status.refused
            {
                tracing::warn!(
                    policy = status.name,
                    reason,
                    "a remembered policy cannot be used"
                );
                state.objects.remove(&status.name);
            }
        }
        for document in tenants {
            let mut document = document.clone();
            let Some(full_name) = document.pointer_mut("/metadata/name") else {
                tracing::warn!("a remembered policy of a namespace has no name");
                continue;
            };
            let name = full_name.as_str().unwrap_or_default();
            let name = name.rsplit('/').next().unwrap_or_default();
            *full_name = name.to_owned().into();
            state.put_tenant(&document);
        }
        self.enforce(state);
    }

    /// The objects in force, for [`Self::restore`].
    pub fn remembered(&self) -> Vec<Value> {
        let state = locked(&self.state);
        let good = state.objects.values().filter_map(|o| o.good.as_ref());
        good.map(|g| g.document.clone()).collect()
    }

    /// The namespaces' policies in force, for [`Self::restore`]. An older agent takes each for an EvictionPolicy that
    /// it cannot use, and drops the policy of that name. The name has the namespace in front, so that no EvictionPolicy
    /// has the same.
    pub fn remembered_tenants(&self) -> Vec<Value> {
        let state = locked(&self.state);
        let tenants = state.tenants.values();
        let named = tenants.map(|tenant| {
            let mut document = tenant.to_document();
            let name = format!("{}/{}", tenant.namespace, tenant.name);
            document["metadata"]["name"] = name.into();
            document
        });
        named.collect()
    }

    /// How many objects have a newest version that cannot be used or have no place, and whether the files cannot be used.
    pub fn refused(&self) -> (usize, bool) {
        let state = locked(&self.state);
        let objects = state.objects.values();
        let refused = objects.filter(|o| o.status.refused.is_some()).count();
        (refused + state.left_out.len(), state.files_refused)
    }

    /// Counts changes of the policies.
    pub fn revision(&self) -> u64 {
        locked(&self.state).revision
    }

    fn enforce(&self, mut state: MutexGuard<'_, State>) {
        state.revision += 1;
        state.find_possible_contradictions();
        let set = state.set();
        drop(state);
        self.evaluator.set_policies(set);
    }
}

fn name(document: &Value) -> &str {
    document["metadata"]["name"].as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests;
