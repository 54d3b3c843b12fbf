//! What is known of files and objects, and what is in force by that.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde_json::{Value, json};

use super::{
    super::{EvictionPolicy, PodEvictionPolicy, PolicySet},
    PolicyStatus,
};
use crate::conflict::{self, Contradiction};

/// Policies of the API server that are kept; those beyond are left out, and that is said.
pub const MOST_OBJECTS: usize = 256;
/// Policies of namespaces that are kept.
const MOST_TENANTS: usize = 1024;
/// As many of one namespace: no tenant takes the places of others.
const MOST_OF_NAMESPACE: usize = 32;
/// Longest reason that is told, in characters: an expression may be quoted in it.
const LONGEST_REASON: usize = 1024;

#[derive(Default)]
pub(super) struct State {
    pub files: Vec<Arc<EvictionPolicy>>,
    /// The files' newest version cannot be used.
    pub files_refused: bool,
    /// By name.
    pub objects: BTreeMap<String, Object>,
    /// Policies of namespaces, by namespace and name.
    pub tenants: BTreeMap<(String, String), Arc<PodEvictionPolicy>>,
    /// Those of them whose newest version cannot be used.
    pub tenants_refused: BTreeSet<(String, String)>,
    /// Namespaces of which it was said that they have too many.
    crowded: BTreeSet<String>,
    /// Names of objects that a file overrides, said already.
    overridden: BTreeSet<String>,
    /// It was said that there are too many.
    too_many: bool,
    pub revision: u64,
    /// What was there when pods were last looked for: this revision, and that of the pod store.
    pub looked_at: Option<(u64, u64)>,
}

pub(super) struct Object {
    pub status: PolicyStatus,
    pub good: Option<Good>,
}

#[derive(Clone)]
pub(super) struct Good {
    policy: Arc<EvictionPolicy>,
    /// What it was read from, without what the API server keeps for itself.
    pub document: Value,
}

impl Object {
    /// Its newest version, if that can be used.
    pub fn newest(&self) -> Option<&Good> {
        self.good.as_ref().filter(|_| self.status.refused.is_none())
    }

    /// Whether a pod that comes may change what is thought of it.
    pub fn waits_for_pods(&self) -> bool {
        let status = &self.status;
        let may_contradict = status.contradicts.is_none() && !status.may_contradict.is_empty();
        self.newest().is_some() && (!status.selects || may_contradict)
    }
}

impl State {
    pub fn put(&mut self, document: &Value) -> Option<PolicyStatus> {
        let metadata = &document["metadata"];
        let text = |field: &str| metadata[field].as_str().unwrap_or_default().to_owned();
        let (name, uid) = (text("name"), text("uid"));
        let generation = metadata["generation"].as_i64();
        let known = self.objects.get(&name).filter(|o| o.status.uid == uid);
        if let Some(known) = known
            && generation.is_some()
            && known.status.generation == generation
        {
            return Some(known.status.clone());
        }
        // One that takes the place of another of its name needs no other.
        if !self.objects.contains_key(&name) && self.objects.len() >= MOST_OBJECTS {
            if !std::mem::replace(&mut self.too_many, true) {
                tracing::error!(
                    most = MOST_OBJECTS,
                    policy = name,
                    "there are too many policies: this one and others are left out"
                );
            }
            return None;
        }
        let last_good = known.and_then(|o| o.good.clone());
        let (refused, good) = match EvictionPolicy::read(document.clone()) {
            Ok(policy) => {
                tracing::info!(policy = name, generation, "a policy is in force");
                warn_of(&policy);
                let document = json!({
                    "apiVersion": document["apiVersion"],
                    "kind": document["kind"],
                    "metadata": {"name": name, "uid": uid, "generation": generation},
                    "spec": document["spec"],
                });
                let policy = Arc::new(policy);
                (None, Some(Good { policy, document }))
            }
            Err(error) => {
                let in_force = last_good.as_ref().and_then(|g| g.policy.generation);
                tracing::error!(
                    policy = name,
                    %error,
                    in_force,
                    "a policy cannot be used: its last good version, if there is one, stays in force"
                );
                let reason: String = error.to_string().chars().take(LONGEST_REASON).collect();
                (Some(reason), last_good)
            }
        };
        let newest = good.as_ref().filter(|_| refused.is_none());
        let newest = newest.map(|good: &Good| Arc::clone(&good.policy));
        let status = PolicyStatus {
            name: name.clone(),
            uid,
            generation,
            warning: newest.and_then(|policy| policy.warning()),
            refused,
            may_contradict: Arc::default(),
            contradicts: None,
            selects: false,
        };
        let object = Object {
            status: status.clone(),
            good,
        };
        self.objects.insert(name, object);
        Some(status)
    }

    /// A policy of a namespace, new or changed. One that cannot be used leaves the last good version in force.
    pub fn put_tenant(&mut self, document: &Value) {
        let key = tenant_key(document);
        let has_place = |all: usize, of_namespace: usize| {
            all < MOST_TENANTS && of_namespace < MOST_OF_NAMESPACE
        };
        let beside = self.tenants.keys().filter(|(of, _)| *of == key.0).count();
        if !self.tenants.contains_key(&key) && !has_place(self.tenants.len(), beside) {
            if self.crowded.len() < MOST_TENANTS && self.crowded.insert(key.0.clone()) {
                tracing::error!(
                    policy = ?key,
                    most = MOST_TENANTS,
                    of_namespace = MOST_OF_NAMESPACE,
                    "there are too many policies of namespaces: this one and others of its namespace are left out"
                );
            }
            return;
        }
        match PodEvictionPolicy::read(document.clone()) {
            Ok(policy) => {
                self.tenants_refused.remove(&key);
                self.tenants.insert(key, Arc::new(policy));
            }
            Err(error) => {
                let refused = &mut self.tenants_refused;
                let beside = refused.iter().filter(|(of, _)| *of == key.0).count();
                // A tenant with thousands of them does not fill the log either.
                if refused.contains(&key) || has_place(refused.len(), beside) {
                    tracing::error!(policy = ?key, %error, "a namespace's policy cannot be used");
                    refused.insert(key);
                }
            }
        }
    }

    /// Such a policy is gone.
    pub fn remove_tenant(&mut self, document: &Value) {
        let key = tenant_key(document);
        self.tenants.remove(&key);
        self.tenants_refused.remove(&key);
        self.crowded.remove(&key.0);
    }

    /// Finds which policies can contradict each other among the newest versions: a last good version that holds in place of a bad one is not
    /// known to every agent.
    pub fn compare(&mut self) {
        let newest = |o: &Object| Some(Arc::clone(&o.newest()?.policy));
        let newest: Vec<_> = self.objects.values().filter_map(newest).collect();
        let mut others: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for found in conflict::among(newest.iter().map(Arc::as_ref)) {
            for pair in [found.turned(), found] {
                let other = conflict::named(&pair.other.name, pair.other.generation);
                others.entry(&pair.one.name).or_default().push(other);
            }
        }
        for (name, object) in &mut self.objects {
            let others = others.remove(name.as_str()).unwrap_or_default();
            let status = &mut object.status;
            status
                .contradicts
                .take_if(|words| !others.iter().any(|other| words.contains(other)));
            status.may_contradict = others.into();
        }
    }

    /// Takes note of a contradiction on a pod; false if it is known, or none between objects as they are now.
    pub fn contradicts(&mut self, seen: &Contradiction<'_>) -> bool {
        let Some(object) = self.objects.get_mut(&seen.one.name) else {
            return false;
        };
        let is_newest = object
            .newest()
            .is_some_and(|good| *good.policy == *seen.one);
        let other = conflict::named(&seen.other.name, seen.other.generation);
        let status = &mut object.status;
        if !is_newest || status.contradicts.is_some() || !status.may_contradict.contains(&other) {
            return false;
        }
        status.contradicts = Some(seen.words().chars().take(LONGEST_REASON).collect());
        true
    }

    /// What is in force.
    pub fn set(&mut self) -> PolicySet {
        let mut policies = self.files.clone();
        let mut overridden = BTreeSet::new();
        for (name, object) in &self.objects {
            if self.files.iter().any(|f| f.name == *name) {
                overridden.insert(name.clone());
            } else {
                policies.extend(object.good.as_ref().map(|g| Arc::clone(&g.policy)));
            }
        }
        for policy in overridden.difference(&self.overridden) {
            tracing::warn!(
                policy,
                "a file holds a policy of the same name as the API server's: the file's is in force here"
            );
        }
        self.overridden = overridden;
        PolicySet::new(policies).with_tenants(self.tenants.values().cloned().collect())
    }
}

fn tenant_key(document: &Value) -> (String, String) {
    let text = |field: &str| document["metadata"][field].as_str().unwrap_or_default();
    (text("namespace").to_owned(), text("name").to_owned())
}

/// Says in the log what is unsafe about a policy that comes into force.
pub(super) fn warn_of(policy: &EvictionPolicy) {
    if let Some(warning) = policy.warning() {
        tracing::warn!(policy = policy.name, warning, "a policy in force is unsafe");
    }
}
