//! All policies that files and the API server have told of, and which version of each is in force.
//!
//! Of equal names the file's policy holds: it is the word of whoever looks after this one node, and it is there when the
//! API server is not. A policy that cannot be used leaves its last good version in force.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use serde_json::{Value, json};

use super::{
    EvictionPolicy, Keeper, PolicySet,
    contradiction::{self, Contradiction},
};

/// Policies of the API server that are kept; those beyond are left out, and that is said.
pub const MOST_OBJECTS: usize = 256;
/// Longest reason that is told, in characters: an expression may be quoted in it.
const LONGEST_REASON: usize = 1024;

/// What is thought of one version of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.generation`.
    pub generation: Option<i64>,
    /// The field and the reason why it cannot be used; `None` if it can.
    pub refused: Option<String>,
    /// Other objects that can say otherwise about the same pods with the same precedence, as [`contradiction::named`] names
    /// them. Files have no part in it: they differ from node to node.
    pub may_contradict: Arc<[String]>,
    /// What it says otherwise than one of them about a pod that was seen on this node.
    pub contradicts: Option<String>,
    /// A pod that it selects was seen on this node since it is in force here.
    pub selects: bool,
}

/// Keeps policies, and puts the good ones in force.
pub struct Catalogue {
    keeper: Arc<Keeper>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    files: Vec<Arc<EvictionPolicy>>,
    /// The files' newest version cannot be used.
    files_refused: bool,
    /// By name.
    objects: BTreeMap<String, Object>,
    /// Names of objects that a file overrides, said already.
    overridden: BTreeSet<String>,
    /// It was said that there are too many.
    too_many: bool,
    revision: u64,
    /// What was there when pods were last looked for: this revision, and the keeper's.
    looked_at: Option<(u64, u64)>,
}

struct Object {
    verdict: Verdict,
    good: Option<Good>,
}

#[derive(Clone)]
struct Good {
    policy: Arc<EvictionPolicy>,
    /// What it was read from, without what the API server keeps for itself.
    document: Value,
}

impl Object {
    /// Its newest version, if that can be used.
    fn newest(&self) -> Option<&Good> {
        self.good
            .as_ref()
            .filter(|_| self.verdict.refused.is_none())
    }

    /// Whether a pod that comes may change what is thought of it.
    fn waits_for_pods(&self) -> bool {
        let verdict = &self.verdict;
        let may_contradict = verdict.contradicts.is_none() && !verdict.may_contradict.is_empty();
        self.newest().is_some() && (!verdict.selects || may_contradict)
    }
}

impl Catalogue {
    /// Nothing is known yet.
    pub fn new(keeper: Arc<Keeper>) -> Self {
        Self {
            keeper,
            state: Mutex::default(),
        }
    }

    /// Who is told of the policies in force.
    pub fn keeper(&self) -> &Arc<Keeper> {
        &self.keeper
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // What a panic has left is still the last that was known.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The files' policies; `None`: they cannot be used, and the last good ones stay.
    pub fn set_files(&self, policies: Option<Vec<EvictionPolicy>>) {
        let mut state = self.state();
        state.files_refused = policies.is_none();
        if let Some(policies) = policies {
            state.files = policies.into_iter().map(Arc::new).collect();
            self.enforce(state);
        }
    }

    /// A new or changed object.
    pub fn put(&self, document: &Value) -> Option<Verdict> {
        let mut state = self.state();
        let before = state.objects.get(name(document)).map(|o| o.verdict.clone());
        let verdict = state.put(document)?;
        // A new status alone puts nothing else in force.
        if verdict.generation.is_none() || before.as_ref() != Some(&verdict) {
            self.enforce(state);
        } else {
            drop(state);
        }
        self.verdict(name(document))
    }

    /// What is thought of an object.
    pub fn verdict(&self, name: &str) -> Option<Verdict> {
        let state = self.state();
        state.objects.get(name).map(|o| o.verdict.clone())
    }

    /// What is thought of all objects, by name.
    pub fn verdicts(&self) -> Vec<Verdict> {
        let state = self.state();
        state.objects.values().map(|o| o.verdict.clone()).collect()
    }

    /// Looks whether pods have come that objects in force select, and whether that makes another verdict of any. Cheap as
    /// long as neither pods nor policies change.
    pub fn look_for_pods(&self) -> bool {
        let seen = self.keeper.presented();
        let mut state = self.state();
        let now = Some((state.revision, seen));
        if std::mem::replace(&mut state.looked_at, now) == now {
            return false;
        }
        let waiting = state.objects.values().any(Object::waits_for_pods);
        drop(state);
        if !waiting {
            return false;
        }
        let matched: BTreeMap<_, _> = self.keeper.matched().into_iter().collect();
        let contradictions = self.keeper.contradictions();
        let mut state = self.state();
        let mut changed = false;
        for (one, other) in &contradictions {
            let seen = Contradiction {
                one: &one.policy,
                rule: one.index(),
                other: &other.policy,
                other_rule: other.index(),
            };
            changed |= state.contradicts(&seen) | state.contradicts(&seen.turned());
        }
        let State { files, objects, .. } = &mut *state;
        for (name, object) in objects {
            let of_a_file = files.iter().any(|f| f.name == *name);
            let has_pods = matched.get(name).is_some_and(|pods| *pods > 0);
            if has_pods && !of_a_file && object.newest().is_some() && !object.verdict.selects {
                object.verdict.selects = true;
                changed = true;
            }
        }
        changed
    }

    /// All objects that there are: others are gone.
    pub fn replace(&self, documents: &[Value]) -> Vec<Verdict> {
        let mut state = self.state();
        let names: BTreeSet<&str> = documents.iter().map(name).collect();
        state
            .objects
            .retain(|known, _| names.contains(known.as_str()));
        documents.iter().for_each(|document| {
            state.put(document);
        });
        self.enforce(state);
        self.verdicts()
    }

    /// An object is gone.
    pub fn remove(&self, name: &str) {
        let mut state = self.state();
        if state.objects.remove(name).is_some() {
            self.enforce(state);
        }
    }

    /// What an earlier agent had in force; whatever the API server tells of replaces it.
    pub fn recall(&self, documents: &[Value]) {
        let mut state = self.state();
        for document in documents {
            // An object of a newer agent may be none to this one.
            if let Some(verdict) = state.put(document)
                && let Some(reason) = verdict.refused
            {
                tracing::warn!(
                    policy = verdict.name,
                    reason,
                    "a remembered policy cannot be used"
                );
                state.objects.remove(&verdict.name);
            }
        }
        self.enforce(state);
    }

    /// The API server's policies in force, for [`Self::recall`].
    pub fn remembered(&self) -> Vec<Value> {
        let state = self.state();
        let good = state.objects.values().filter_map(|o| o.good.as_ref());
        good.map(|g| g.document.clone()).collect()
    }

    /// Objects whose newest version cannot be used, and whether the files' cannot.
    pub fn refused(&self) -> (usize, bool) {
        let state = self.state();
        let objects = state.objects.values();
        let refused = objects.filter(|o| o.verdict.refused.is_some()).count();
        (refused, state.files_refused)
    }

    /// Another number after each change.
    pub fn revision(&self) -> u64 {
        self.state().revision
    }

    fn enforce(&self, mut state: MutexGuard<'_, State>) {
        state.revision += 1;
        state.compare();
        let set = state.set();
        drop(state);
        self.keeper.set_policies(set);
    }
}

impl State {
    fn put(&mut self, document: &Value) -> Option<Verdict> {
        let metadata = &document["metadata"];
        let text = |field: &str| metadata[field].as_str().unwrap_or_default().to_owned();
        let (name, uid) = (text("name"), text("uid"));
        let generation = metadata["generation"].as_i64();
        let known = self.objects.get(&name).filter(|o| o.verdict.uid == uid);
        if let Some(known) = known
            && generation.is_some()
            && known.verdict.generation == generation
        {
            return Some(known.verdict.clone());
        }
        if known.is_none() && self.objects.len() >= MOST_OBJECTS {
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
        let verdict = Verdict {
            name: name.clone(),
            uid,
            generation,
            refused,
            may_contradict: Arc::default(),
            contradicts: None,
            selects: false,
        };
        let object = Object {
            verdict: verdict.clone(),
            good,
        };
        self.objects.insert(name, object);
        Some(verdict)
    }

    /// Finds who can contradict whom among the newest versions: a last good version that holds in place of a bad one is not
    /// known to every agent.
    fn compare(&mut self) {
        let newest = |o: &Object| Some(Arc::clone(&o.newest()?.policy));
        let newest: Vec<_> = self.objects.values().filter_map(newest).collect();
        let mut others: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for found in contradiction::among(newest.iter().map(Arc::as_ref)) {
            for pair in [found.turned(), found] {
                let other = contradiction::named(&pair.other.name, pair.other.generation);
                others.entry(&pair.one.name).or_default().push(other);
            }
        }
        for (name, object) in &mut self.objects {
            let others = others.remove(name.as_str()).unwrap_or_default();
            let verdict = &mut object.verdict;
            verdict
                .contradicts
                .take_if(|words| !others.iter().any(|other| words.contains(other)));
            verdict.may_contradict = others.into();
        }
    }

    /// Takes note of a contradiction on a pod; false if it is known, or none between objects as they are now.
    fn contradicts(&mut self, seen: &Contradiction<'_>) -> bool {
        let Some(object) = self.objects.get_mut(&seen.one.name) else {
            return false;
        };
        let is_newest = object
            .newest()
            .is_some_and(|good| *good.policy == *seen.one);
        let other = contradiction::named(&seen.other.name, seen.other.generation);
        let verdict = &mut object.verdict;
        if !is_newest || verdict.contradicts.is_some() || !verdict.may_contradict.contains(&other) {
            return false;
        }
        verdict.contradicts = Some(seen.words().chars().take(LONGEST_REASON).collect());
        true
    }

    /// What is in force.
    fn set(&mut self) -> PolicySet {
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
        PolicySet::new(policies)
    }
}

fn name(document: &Value) -> &str {
    document["metadata"]["name"].as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests;
