//! All policies of a node together: which rules hold for a pod.

use std::{collections::BTreeSet, sync::Arc};

use evictd_engine::Pod;

use super::{
    gate::Gate,
    model::{Evict, EvictionPolicy, Limit, Rule},
    namespaces::{NAMESPACE_NAME, Namespaces},
    tenant::{PodEvictionPolicy, Terms},
};

/// The policies in force. Those of higher precedence come first, equals by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PolicySet {
    policies: Vec<Arc<EvictionPolicy>>,
    tenants: Vec<Arc<PodEvictionPolicy>>,
}

/// The rules that hold for one pod.
#[derive(Clone, Debug, Default)]
pub struct Ruling {
    /// Rules of the highest precedence that has any: all of them hold, which means that the most sparing one decides.
    pub rules: Vec<Applied>,
    /// The same of policies in shadow mode, which change nothing.
    pub shadow: Vec<Applied>,
    /// What the pod's own namespace asks for.
    pub terms: Terms,
}

/// A rule that holds for a pod.
#[derive(Clone, Debug)]
pub struct Applied {
    /// Its policy.
    pub policy: Arc<EvictionPolicy>,
    index: usize,
}

impl Applied {
    /// The rule.
    pub fn rule(&self) -> &Rule {
        // Made from a position in the same list.
        &self.policy.rules[self.index]
    }

    /// Its position in the policy.
    pub fn index(&self) -> usize {
        self.index
    }

    /// `policy/rule`.
    pub fn name(&self) -> String {
        format!("{}/{}", self.policy.name, self.rule().name)
    }
}

impl Ruling {
    /// Whether no rule holds, not even in shadow mode.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty() && self.shadow.is_empty() && self.terms == Terms::default()
    }

    /// The order number: the highest that a rule gives, which spares the most, and what the namespace adds to that.
    pub fn order(&self) -> i16 {
        let order = self.rules.iter().map(|a| a.rule().order).max();
        self.terms.apply(order.unwrap_or(0))
    }

    /// The limits of all rules with what makes them one limit and not another.
    pub fn limits(&self) -> impl Iterator<Item = (&Applied, usize, &Limit)> {
        let limits = |a| -> Vec<(&Applied, usize, &Limit)> {
            let a: &Applied = a;
            a.rule()
                .limits
                .iter()
                .enumerate()
                .map(|(i, l)| (a, i, l))
                .collect()
        };
        self.rules.iter().flat_map(limits)
    }

    /// The gates that its rules ask, those in shadow mode included.
    pub fn gates(&self) -> impl Iterator<Item = (&Applied, &Gate)> {
        let gates = |a| -> Vec<(&Applied, &Gate)> {
            let a: &Applied = a;
            a.policy
                .gates_of(a.rule())
                .into_iter()
                .map(|g| (a, g))
                .collect()
        };
        self.rules.iter().chain(&self.shadow).flat_map(gates)
    }

    /// A gate that its rules ask, by the names of its policy and its own, with the gates whose answers it needs.
    pub fn gate<'a>(&'a self, (policy, name): &'a (String, String)) -> Option<Vec<&'a Gate>> {
        let mut gates = self.gates();
        let (applied, _) =
            gates.find(|(a, gate)| a.policy.name == *policy && gate.name == *name)?;
        Some(applied.policy.gates_named(vec![name]))
    }

    /// Whether a rule asks for anything about the pod that may change.
    pub fn needs_facts(&self) -> bool {
        let mut all = self.rules.iter().chain(&self.shadow);
        all.any(|a| matches!(a.rule().evict, Evict::When(_)))
    }

    /// Rules that say different things about the same pod: the most sparing decides, and it is told.
    pub fn contradictions(&self) -> impl Iterator<Item = (&Applied, &Applied)> {
        let pairs = self.rules.iter().enumerate().flat_map(|(i, one)| {
            let others = self.rules[i + 1..].iter();
            others.map(move |other| (one, other))
        });
        pairs.filter(|(one, other)| one.rule().contradicts(other.rule()))
    }
}

impl PolicySet {
    /// These policies.
    pub fn new(policies: impl IntoIterator<Item: Into<Arc<EvictionPolicy>>>) -> Self {
        let mut policies: Vec<_> = policies.into_iter().map(Into::into).collect();
        policies.sort_by(|a, b| (b.precedence, &a.name).cmp(&(a.precedence, &b.name)));
        Self {
            policies,
            tenants: Vec::new(),
        }
    }

    /// The same with policies of namespaces about their own pods.
    #[must_use]
    pub fn with_tenants(self, tenants: Vec<Arc<PodEvictionPolicy>>) -> Self {
        Self { tenants, ..self }
    }

    /// The policies.
    pub fn policies(&self) -> &[Arc<EvictionPolicy>] {
        &self.policies
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.policies.is_empty() && self.tenants.is_empty()
    }

    /// The labels of namespaces that policies ask for, beyond their name, which every namespace has as a label.
    pub fn namespace_keys(&self) -> BTreeSet<String> {
        let keys = self.policies.iter().flat_map(|p| p.namespaces.keys());
        keys.filter(|key| *key != NAMESPACE_NAME)
            .map(str::to_owned)
            .collect()
    }

    /// Each policy with the number of these pods that a rule of it matches, whether or not another policy decides.
    pub fn matched<'a>(
        &self,
        pods: impl Iterator<Item = &'a Pod> + Clone,
        namespaces: &Namespaces,
    ) -> Vec<(String, usize)> {
        let count = |policy: &EvictionPolicy| {
            let matches = |pod: &&Pod| policy.rule_of(pod, namespaces).is_some();
            pods.clone().filter(matches).count()
        };
        let policies = self.policies.iter();
        policies.map(|p| (p.name.clone(), count(p))).collect()
    }

    /// The rules that hold for a pod.
    pub fn ruling(&self, pod: &Pod, namespaces: &Namespaces) -> Ruling {
        let mut ruling = Ruling::default();
        let mut deciding = None;
        for policy in &self.policies {
            let Some(index) = policy.rule_of(pod, namespaces) else {
                continue;
            };
            let applied = Applied {
                policy: Arc::clone(policy),
                index,
            };
            if policy.shadow {
                ruling.shadow.push(applied);
            } else if *deciding.get_or_insert(policy.precedence) == policy.precedence {
                ruling.rules.push(applied);
            }
        }
        let tenants = self.tenants.iter().filter(|tenant| tenant.is_about(pod));
        ruling.terms = tenants.fold(Terms::default(), |all, one| all.and(one.terms));
        ruling
    }
}
