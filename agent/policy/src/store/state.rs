//! All known policies of files, objects and namespaces, and the set that is in force.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde_json::{Value, json};

use super::{
    super::{EvictionPolicy, PodEvictionPolicy, PolicySet},
    PolicyStatus,
};
use crate::conflict::{self, Conflict};

/// Most objects that are kept. Further ones are left out, and the log says so.
pub(super) const MAX_OBJECTS: usize = 256;
/// Most policies of namespaces that are kept.
const MAX_TENANTS: usize = 1024;
/// Most policies of one namespace: no tenant takes the places of others.
const MAX_OF_NAMESPACE: usize = 32;
/// Longest reason in a status, in characters: it may quote an expression.
const LONGEST_REASON: usize = 1024;

#[derive(Default)]
pub(super) struct State {
    pub files: Vec<Arc<EvictionPolicy>>,
    /// Whether the newest version of the files cannot be used.
    pub files_refused: bool,
    /// Objects of the API server, by name.
    pub objects: BTreeMap<String, Object>,
    /// Policies of namespaces, by namespace and name.
    pub tenants: BTreeMap<(String, String), Arc<PodEvictionPolicy>>,
    /// Policies of namespaces whose newest version cannot be used.
    pub tenants_refused: BTreeSet<(String, String)>,
    /// Names of objects that have no place.
    pub left_out: BTreeSet<String>,
    /// Policies of namespaces that have no place; of these too no more than have one.
    pub tenants_left_out: BTreeSet<(String, String)>,
    /// Whether a place is free for an object that was left out: a new list brings it.
    pub needs_list: bool,
    /// The same of the policies of namespaces.
    pub tenants_need_list: bool,
    /// Names of objects that a file overrides, logged already.
    overridden: BTreeSet<String>,
    /// Counts changes of the policies.
    pub revision: u64,
    /// `revision` and the evaluator's `pods_revision` at the last look for pods.
    pub looked_at: Option<(u64, u64)>,
}

pub(super) struct Object {
    pub status: PolicyStatus,
    /// The last version that can be used.
    pub good: Option<Good>,
}

#[derive(Clone)]
pub(super) struct Good {
    policy: Arc<EvictionPolicy>,
    /// The document of the policy, without the API server's own fields.
    pub document: Value,
}

impl Object {
    /// The newest version, if it can be used.
    pub fn newest(&self) -> Option<&Good> {
        self.good.as_ref().filter(|_| self.status.refused.is_none())
    }

    /// Whether a new pod may change the status.
    pub fn waits_for_pods(&self) -> bool {
        let status = &self.status;
        let may_contradict = status.contradicts.is_none() && !status.may_contradict.is_empty();
        self.newest().is_some() && (!status.selects || may_contradict)
    }
}

impl State {
    /// Takes a new or changed object. `None`: there are too many.
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
        // An object that replaces another one of its name takes its place.
        if !self.objects.contains_key(&name) && self.objects.len() >= MAX_OBJECTS {
            if self.left_out.is_empty() {
                tracing::error!(
                    most = MAX_OBJECTS,
                    policy = name,
                    "there are too many policies: this one and others are left out"
                );
            }
            self.left_out.insert(name);
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
        self.left_out.remove(&name);
        self.objects.insert(name, object);
        Some(status)
    }

    /// Forgets an object that is gone. Answers whether it was kept.
    pub fn remove(&mut self, name: &str) -> bool {
        self.left_out.remove(name);
        let is_known = self.objects.remove(name).is_some();
        self.needs_list = (self.needs_list || is_known) && !self.left_out.is_empty();
        is_known
    }

    /// Takes a new or changed policy of a namespace. If it cannot be used, its last good version stays in force.
    pub fn put_tenant(&mut self, document: &Value) {
        let key = tenant_key(document);
        let has_place =
            |all: usize, of_namespace: usize| all < MAX_TENANTS && of_namespace < MAX_OF_NAMESPACE;
        let count_beside = |known: &BTreeSet<(String, String)>| {
            known.iter().filter(|(of, _)| *of == key.0).count()
        };
        let beside = self.tenants.keys().filter(|(of, _)| *of == key.0).count();
        if !self.tenants.contains_key(&key) && !has_place(self.tenants.len(), beside) {
            let left_out = &mut self.tenants_left_out;
            let beside = count_beside(left_out);
            if has_place(left_out.len(), beside) {
                if beside == 0 {
                    tracing::error!(
                        policy = ?key,
                        most = MAX_TENANTS,
                        of_namespace = MAX_OF_NAMESPACE,
                        "there are too many policies of namespaces: this one and others of its namespace are left out"
                    );
                }
                left_out.insert(key);
            }
            return;
        }
        self.tenants_left_out.remove(&key);
        match PodEvictionPolicy::read(document.clone()) {
            Ok(policy) => {
                self.tenants_refused.remove(&key);
                self.tenants.insert(key, Arc::new(policy));
            }
            Err(error) => {
                let refused = &mut self.tenants_refused;
                let beside = count_beside(refused);
                // Beyond the limit nothing is logged, so that a tenant with thousands of policies cannot fill the log.
                if refused.contains(&key) || has_place(refused.len(), beside) {
                    tracing::error!(policy = ?key, %error, "a namespace's policy cannot be used");
                    refused.insert(key);
                }
            }
        }
    }

    /// Forgets a policy of a namespace that is gone.
    pub fn remove_tenant(&mut self, document: &Value) {
        let key = tenant_key(document);
        let is_full = self.tenants.len() >= MAX_TENANTS;
        // Not all that are left out are known: where one of these goes, others may have got a place nevertheless.
        let mut left_out = self.tenants_left_out.iter();
        self.tenants_need_list |= left_out.any(|(of, _)| is_full || *of == key.0);
        self.tenants_left_out.remove(&key);
        self.tenants.remove(&key);
        self.tenants_refused.remove(&key);
    }

    /// Finds which objects can contradict each other. Only newest versions are compared: an agent that started later
    /// does not know an older good version.
    pub fn find_possible_contradictions(&mut self) {
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

    /// Takes note of a conflict on a pod. Answers whether it is new, and one between the newest versions of two
    /// objects.
    pub fn add_conflict(&mut self, seen: &Conflict<'_>) -> bool {
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

    /// The policies in force.
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

pub(super) fn tenant_key(document: &Value) -> (String, String) {
    let text = |field: &str| document["metadata"][field].as_str().unwrap_or_default();
    (text("namespace").to_owned(), text("name").to_owned())
}

/// Logs what is unsafe about a policy that comes into force.
pub(super) fn warn_of(policy: &EvictionPolicy) {
    if let Some(warning) = policy.warning() {
        tracing::warn!(policy = policy.name, warning, "a policy in force is unsafe");
    }
}
