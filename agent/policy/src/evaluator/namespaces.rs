//! What is known of namespaces, and which pods the policies match.

use std::collections::BTreeSet;

use super::PolicyEvaluator;
use crate::{Namespaces, set::Applied};

impl PolicyEvaluator {
    /// The labels of namespaces that are asked for, beyond their name.
    pub fn namespace_keys(&self) -> BTreeSet<String> {
        self.state().set.namespace_keys()
    }

    /// Takes note of namespaces.
    pub fn set_namespaces(&self, namespaces: Namespaces) {
        let mut state = self.state();
        if state.namespaces != namespaces {
            state.namespaces = namespaces;
            state.namespaces_revision += 1;
            state.presented += 1;
            state.match_all();
            self.judge_all(&mut state);
            drop(state);
            self.changed.notify_one();
        }
    }

    /// What is known of namespaces.
    pub fn namespaces(&self) -> Namespaces {
        self.state().namespaces.clone()
    }

    /// Another number after each change of them.
    pub fn namespaces_revision(&self) -> u64 {
        self.state().namespaces_revision
    }

    /// Rules of the same precedence that contradicted each other on a pod since these policies are in force: the first of
    /// each pair of policies.
    pub fn contradictions(&self) -> Vec<(Applied, Applied)> {
        self.state().reported_conflicts.values().cloned().collect()
    }

    /// Another number after each change of the pods that are here, or of what is known of their namespaces.
    pub fn presented(&self) -> u64 {
        self.state().presented
    }

    /// Each policy in force with the number of pods that are here and that it matches.
    pub fn matched(&self) -> Vec<(String, usize)> {
        let state = self.state();
        let pods = state.pods.values().map(|held| held.pod.pod());
        state.set.matched(pods, &state.namespaces)
    }
}
