//! All policies of a node together: which rules hold for a pod.

use std::{collections::BTreeSet, sync::Arc};

use evictd_engine::Pod;

use super::{
    gate::Gate,
    model::{Evict, EvictionPolicy, Limit, Rule},
    namespaces::{NAMESPACE_NAME, Namespaces},
    tenant::{PodEvictionPolicy, TenantRequest},
};

/// The policies in force, by falling precedence, then by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PolicySet {
    pub(crate) policies: Vec<Arc<EvictionPolicy>>,
    tenants: Vec<Arc<PodEvictionPolicy>>,
}

/// The rules that hold for one pod.
#[derive(Clone, Debug, Default)]
pub struct MatchedRules {
    /// The rules of the highest precedence that matches the pod. All of them hold, so the most sparing one decides.
    pub rules: Vec<Applied>,
    /// The matching rules of policies in shadow mode, which change nothing.
    pub shadow: Vec<Applied>,
    /// Requests of the policies of the pod's own namespace.
    pub tenant_request: TenantRequest,
}

/// A rule that holds for a pod.
#[derive(Clone, Debug)]
pub struct Applied {
    /// Policy that the rule belongs to.
    pub policy: Arc<EvictionPolicy>,
    index: usize,
}

impl Applied {
    /// The rule.
    pub fn rule(&self) -> &Rule {
        // `index` comes from a search in this very list.
        &self.policy.rules[self.index]
    }

    /// The rule's position in the policy.
    pub fn index(&self) -> usize {
        self.index
    }

    /// `policy/rule`.
    pub fn name(&self) -> String {
        format!("{}/{}", self.policy.name, self.rule().name)
    }
}

impl MatchedRules {
    /// Whether no rule holds, not even in shadow mode.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
            && self.shadow.is_empty()
            && self.tenant_request == TenantRequest::default()
    }

    /// The order number: the highest one of the rules, which spares the pod most, plus the number that its namespace
    /// adds.
    pub fn order(&self) -> i16 {
        let order = self.rules.iter().map(|a| a.rule().order).max();
        self.tenant_request.apply(order.unwrap_or(0))
    }

    /// The limits of all rules, each with its rule and its position there: together they identify the limit.
    pub fn limits(&self) -> impl Iterator<Item = (&Applied, usize, &Limit)> {
        self.rules.iter().flat_map(|a| {
            let limits = a.rule().limits.iter().enumerate();
            limits.map(move |(i, limit)| (a, i, limit))
        })
    }

    /// The gates that the rules ask, also the rules in shadow mode.
    pub fn gates(&self) -> impl Iterator<Item = (&Applied, &Gate)> {
        let all = self.rules.iter().chain(&self.shadow);
        all.flat_map(|a| {
            let gates = a.policy.gates_of(a.rule()).into_iter();
            gates.map(move |gate| (a, gate))
        })
    }

    /// A gate that the rules ask, by the names of its policy and its own, with the gates whose answers it needs.
    pub fn gate<'a>(&'a self, (policy, name): &'a (String, String)) -> Option<Vec<&'a Gate>> {
        let mut gates = self.gates();
        let (applied, _) =
            gates.find(|(a, gate)| a.policy.name == *policy && gate.name == *name)?;
        Some(applied.policy.gates_named(vec![name]))
    }

    /// Whether a rule has a condition, which reads facts of the pod.
    pub fn needs_facts(&self) -> bool {
        let mut all = self.rules.iter().chain(&self.shadow);
        all.any(|a| matches!(a.rule().evict, Evict::When(_)))
    }

    /// Pairs of rules that say different things about the pod. The more sparing one decides.
    pub fn conflicts(&self) -> impl Iterator<Item = (&Applied, &Applied)> {
        let pairs = self.rules.iter().enumerate().flat_map(|(i, one)| {
            let others = self.rules[i + 1..].iter();
            others.map(move |other| (one, other))
        });
        pairs.filter(|(one, other)| one.rule().contradicts(other.rule()))
    }
}

impl PolicySet {
    /// Puts these policies into the order in which they decide.
    pub fn new(policies: impl IntoIterator<Item: Into<Arc<EvictionPolicy>>>) -> Self {
        let mut policies: Vec<_> = policies.into_iter().map(Into::into).collect();
        policies.sort_by(|a, b| (b.precedence, &a.name).cmp(&(a.precedence, &b.name)));
        Self {
            policies,
            tenants: Vec::new(),
        }
    }

    /// Adds the policies of namespaces about their own pods.
    #[must_use]
    pub fn with_tenants(self, tenants: Vec<Arc<PodEvictionPolicy>>) -> Self {
        Self { tenants, ..self }
    }

    /// The labels of namespaces that policies ask for, without the label that holds the name.
    pub fn namespace_keys(&self) -> BTreeSet<String> {
        let keys = self.policies.iter().flat_map(|p| p.namespaces.keys());
        keys.filter(|key| *key != NAMESPACE_NAME)
            .map(str::to_owned)
            .collect()
    }

    /// Each policy with the number of these pods that one of its rules matches, whether or not another policy decides.
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
    pub fn match_pod(&self, pod: &Pod, namespaces: &Namespaces) -> MatchedRules {
        let mut matched = MatchedRules::default();
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
                matched.shadow.push(applied);
            } else if *deciding.get_or_insert(policy.precedence) == policy.precedence {
                matched.rules.push(applied);
            }
        }
        let tenants = self.tenants.iter().filter(|tenant| tenant.is_about(pod));
        matched.tenant_request =
            tenants.fold(TenantRequest::default(), |all, one| all.and(one.request));
        matched
    }
}
