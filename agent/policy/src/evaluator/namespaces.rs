//! The labels of namespaces, and the pods that policies match.

use std::collections::BTreeSet;

use evictd_sys::mutex::locked;

use super::PolicyEvaluator;
use crate::{Namespaces, set::Applied};

impl PolicyEvaluator {
    /// The labels of namespaces that policies ask for, without the label that holds the name.
    pub fn namespace_keys(&self) -> BTreeSet<String> {
        locked(&self.state).set.namespace_keys()
    }

    /// Takes the labels of the namespaces.
    pub fn set_namespaces(&self, namespaces: Namespaces) {
        let mut state = locked(&self.state);
        if state.namespaces != namespaces {
            state.namespaces = namespaces;
            state.namespaces_revision += 1;
            state.pods_revision += 1;
            state.match_all();
            self.evaluate_all(&mut state);
            drop(state);
            self.changed.notify_one();
        }
    }

    /// The labels of the namespaces.
    pub fn namespaces(&self) -> Namespaces {
        locked(&self.state).namespaces.clone()
    }

    /// Counts changes of the namespaces' labels.
    pub fn namespaces_revision(&self) -> u64 {
        locked(&self.state).namespaces_revision
    }

    /// Rules that have contradicted each other on a pod since these policies came into force: the first pair of rules
    /// for each pair of policies.
    pub fn conflicts(&self) -> Vec<(Applied, Applied)> {
        locked(&self.state)
            .reported_contradictions
            .values()
            .cloned()
            .collect()
    }

    /// Those of [`Self::conflicts`] whose policies contradict each other on a pod that is here now.
    pub fn present_conflicts(&self) -> Vec<(Applied, Applied)> {
        let state = locked(&self.state);
        let pods = state.pods.values();
        let pairs = pods.flat_map(|held| held.matched.conflicts());
        let present: BTreeSet<_> = pairs
            .map(|(one, other)| (&one.policy.name, &other.policy.name))
            .collect();
        let reported = state.reported_contradictions.iter();
        reported
            .filter(|((one, other), _)| present.contains(&(one, other)))
            .map(|(_, rules)| rules.clone())
            .collect()
    }

    /// Counts changes of the pods on this node and of their namespaces' labels.
    pub fn pods_revision(&self) -> u64 {
        locked(&self.state).pods_revision
    }

    /// Each policy in force with the number of this node's pods that it matches.
    pub fn matched(&self) -> Vec<(String, usize)> {
        let state = locked(&self.state);
        let pods = state.pods.values().map(|held| held.pod.pod());
        state.set.matched(pods, &state.namespaces)
    }
}
