//! An `EvictionPolicy`, read field by field, so that every error names its field.

use evictd_config::{ConfigError, decode::ObjectDecoder};
use evictd_engine::Pod;
use serde_json::Value;

use super::{gate::Gate, namespaces::Namespaces, selector::Selector};

mod rule;

pub use rule::{Evict, Limit, NoExecute, Rule, Wait};

/// `apiVersion` of a policy.
pub const API_VERSION: &str = "evictd.io/v1alpha1";
/// `kind` of a policy.
pub const KIND: &str = "EvictionPolicy";

/// Most rules of one policy.
const MAX_RULES: usize = 64;
/// Most gates of one policy.
const MAX_GATES: usize = 8;
/// Most steps of the search for pods that the earlier rules leave to a rule.
const STEPS: u32 = 1000;

/// Policy in which an operator states what is known about workloads.
#[derive(Clone, Debug, PartialEq)]
pub struct EvictionPolicy {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.generation`; `None` for a policy from a file.
    pub generation: Option<i64>,
    /// `spec.precedence`: among policies that match a pod the highest decides.
    pub precedence: i32,
    /// `spec.shadow`: the policy is evaluated and reported, and changes nothing.
    pub shadow: bool,
    /// `spec.namespaceSelector`: over the labels of the pod's namespace.
    pub namespaces: Selector,
    /// `spec.allNamespaces`: why there is no `namespaceSelector`, in words.
    pub all_namespaces: Option<String>,
    /// `spec.selector`: over the pod's labels.
    pub pods: Selector,
    /// `spec.gates`: questions that rules ask.
    pub gates: Vec<Gate>,
    /// `spec.rules`: the first one that matches a pod decides.
    pub rules: Vec<Rule>,
}

impl EvictionPolicy {
    /// Reads a policy as the API server or a file has it.
    ///
    /// # Errors
    /// The first mistake, with its field.
    pub fn read(document: Value) -> Result<Self, ConfigError> {
        let (mut fields, mut metadata) = open(document, KIND)?;
        let name = metadata.required_text("name")?;
        let generation = metadata.optional("generation").and_then(|g| g.as_i64());
        // Agents write the status; the policy does not depend on it.
        fields.optional("status");
        let mut spec = fields.required_object("spec")?;
        fields.deny_unknown_fields()?;
        let gates = gates(&mut spec)?;
        let policy = Self {
            name,
            generation,
            precedence: spec.int32("precedence")?.unwrap_or(0),
            shadow: spec.boolean("shadow")?.unwrap_or(false),
            namespaces: Selector::take(&mut spec, "namespaceSelector")?,
            all_namespaces: spec.text("allNamespaces")?,
            pods: Selector::take(&mut spec, "selector")?,
            rules: rules(&mut spec, &gates)?,
            gates,
        };
        spec.deny_unknown_fields()?;
        policy.check_namespaces()?;
        policy.check_use_of_gates()?;
        for i in 0..policy.rules.len() {
            policy.check_use_of_rule(i)?;
        }
        Ok(policy)
    }

    /// The author of a pod chooses its labels and can influence its gates' answers. A policy that depends on them has
    /// to name the namespaces whose authors it trusts.
    fn check_namespaces(&self) -> Result<(), ConfigError> {
        let missing = |reason: String| {
            let field = "spec.namespaceSelector";
            Err(ConfigError::value(field, &Value::Null, reason))
        };
        match &self.all_namespaces {
            Some(why) if why.trim().is_empty() => {
                let reason = "must say why the policy holds in all namespaces";
                return Err(ConfigError::text("spec.allNamespaces", why, reason));
            }
            Some(why) if !self.namespaces.is_empty() => {
                let reason = "cannot be used together with spec.namespaceSelector";
                return Err(ConfigError::text("spec.allNamespaces", why, reason));
            }
            _ => {}
        }
        if !self.namespaces.is_empty() {
            return Ok(());
        }
        if let Some(gate) = self.gates.iter().find(|gate| gate.sends_token()) {
            return missing(format!(
                "is missing: gate {} sends a token; name the namespaces whose pods it may ask about",
                gate.name
            ));
        }
        let reads_labels = |when: &Evict| match when {
            Evict::When(when) => {
                let fields = when.selected("pod");
                fields.iter().any(|f| ["labels", "annotations"].contains(f))
            }
            Evict::Always | Evict::Never => false,
        };
        let depends_on_labels = |rule: &Rule| {
            let has_group = rule.limits.iter().any(|limit| limit.group_by.is_some());
            has_group || !rule.pods.is_empty() || reads_labels(&rule.evict)
        };
        let trusts_no_author = self.pods.is_empty()
            && self.gates.is_empty()
            && !self.rules.iter().any(depends_on_labels);
        if trusts_no_author || self.all_namespaces.is_some() {
            return Ok(());
        }
        missing(
            "is missing: each author of a pod can give it the labels that this policy goes by; name the namespaces, or \
             say in spec.allNamespaces why it holds in all of them"
                .to_owned(),
        )
    }

    /// Warning about what is unsafe in the policy although it can be used; `None` where nothing is.
    pub fn warning(&self) -> Option<String> {
        let insecure = self.gates.iter().filter(|g| g.sends_token_insecurely());
        let names: Vec<&str> = insecure.map(|g| g.name.as_str()).collect();
        (!names.is_empty()).then(|| {
            let names = names.join(", ");
            format!("allowInsecure: anyone in the way can read the token of these gates: {names}")
        })
    }

    /// Refuses a rule that can never apply: the policy does not select its pods, or earlier rules take them all.
    fn check_use_of_rule(&self, at: usize) -> Result<(), ConfigError> {
        let (before, rule) = (&self.rules[..at], &self.rules[at]);
        let path = format!("spec.rules[{at}].selector");
        let selected = self.pods.and(&rule.pods, &path)?;
        let beyond = |others: &[&Selector]| selected.selects_beyond(others, &mut { STEPS });
        let earlier: Vec<&Selector> = before.iter().map(|r| &r.pods).collect();
        if beyond(&earlier) {
            return Ok(());
        }
        let takes_all = before.iter().find(|r| !beyond(&[&r.pods]));
        let reason = takes_all.map_or_else(
            || "the rules before it take all its pods".to_owned(),
            |r| format!("rule {} takes all its pods before", r.name),
        );
        Err(ConfigError::text(
            path,
            &rule.name,
            format!("can never apply: {reason}"),
        ))
    }

    /// The position of the rule that holds for a pod.
    pub fn rule_of(&self, pod: &Pod, namespaces: &Namespaces) -> Option<usize> {
        let is_selected = namespaces.selects(&self.namespaces, &pod.namespace);
        if !is_selected || !self.pods.matches(&pod.labels) {
            return None;
        }
        let mut rules = self.rules.iter();
        rules.position(|rule| rule.pods.matches(&pod.labels))
    }

    /// The gates that a rule asks, and the gates whose answers these need.
    pub fn gates_of<'a>(&'a self, rule: &'a Rule) -> Vec<&'a Gate> {
        let Evict::When(when) = &rule.evict else {
            return Vec::new();
        };
        self.gates_named(when.selected("gates"))
    }

    /// The gates of these names, and the gates whose answers these need.
    pub fn gates_named<'a>(&'a self, mut wanted: Vec<&'a str>) -> Vec<&'a Gate> {
        // A gate needs answers of earlier gates only.
        for gate in self.gates.iter().rev() {
            if wanted.contains(&gate.name.as_str()) {
                wanted.extend(gate.needs());
            }
        }
        let asked = |gate: &&Gate| wanted.contains(&gate.name.as_str());
        self.gates.iter().filter(asked).collect()
    }

    /// Refuses a gate that no rule asks: it would be probed for nothing, or a rule has a typo in its name.
    fn check_use_of_gates(&self) -> Result<(), ConfigError> {
        let asked: Vec<&str> = (self.rules.iter())
            .flat_map(|rule| self.gates_of(rule))
            .map(|gate| gate.name.as_str())
            .collect();
        let unused = self
            .gates
            .iter()
            .position(|g| !asked.contains(&g.name.as_str()));
        match unused {
            Some(i) => Err(ConfigError::text(
                format!("spec.gates[{i}].name"),
                &self.gates[i].name,
                "is asked by no rule",
            )),
            None => Ok(()),
        }
    }
}

/// Opens a policy of a kind: its fields and those of its metadata.
pub(crate) fn open(
    document: Value,
    kind: &str,
) -> Result<(ObjectDecoder, ObjectDecoder), ConfigError> {
    let mut fields = ObjectDecoder::open("", document)?;
    for (field, expected) in [("apiVersion", API_VERSION), ("kind", kind)] {
        let found = fields.required_text(field)?;
        if found != expected {
            let reason = format!("must be {expected}");
            return Err(ConfigError::text(field, &found, reason));
        }
    }
    let metadata = fields.required_object("metadata")?;
    Ok((fields, metadata))
}

fn gates(spec: &mut ObjectDecoder) -> Result<Vec<Gate>, ConfigError> {
    let items = bounded(spec, "gates", MAX_GATES)?;
    let mut gates: Vec<Gate> = Vec::new();
    for (path, item) in items {
        let gate = Gate::read(ObjectDecoder::open(&path, item)?, &gates)?;
        if gates.iter().any(|g| g.name == gate.name) {
            return Err(ConfigError::text(
                format!("{path}.name"),
                &gate.name,
                "is the name of another gate already",
            ));
        }
        gates.push(gate);
    }
    Ok(gates)
}

fn rules(spec: &mut ObjectDecoder, gates: &[Gate]) -> Result<Vec<Rule>, ConfigError> {
    let path = spec.path_of("rules");
    let items = bounded(spec, "rules", MAX_RULES)?;
    if items.is_empty() {
        return Err(ConfigError::value(
            path,
            &Value::Null,
            "must have at least one rule",
        ));
    }
    let mut rules: Vec<Rule> = Vec::new();
    for (path, item) in items {
        let rule = rule::read(ObjectDecoder::open(&path, item)?, gates)?;
        if rules.iter().any(|r| r.name == rule.name) {
            return Err(ConfigError::text(
                format!("{path}.name"),
                &rule.name,
                "is the name of another rule already",
            ));
        }
        rules.push(rule);
    }
    Ok(rules)
}

/// The items of a list with their paths.
fn bounded(
    fields: &mut ObjectDecoder,
    name: &str,
    most: usize,
) -> Result<Vec<(String, Value)>, ConfigError> {
    let path = fields.path_of(name);
    let items = fields.list(name)?;
    if items.len() > most {
        return Err(ConfigError::value(
            path,
            &items.len().into(),
            format!("must not have more than {most} items"),
        ));
    }
    let items = items.into_iter().enumerate();
    Ok(items
        .map(|(i, item)| (format!("{path}[{i}]"), item))
        .collect())
}

#[cfg(test)]
mod tests;
