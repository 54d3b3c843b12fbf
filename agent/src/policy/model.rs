//! An `EvictionPolicy` as it is written: read field by field, so that every mistake has a place.

use std::time::Duration;

use serde_json::Value;

use super::{
    expression::{Expression, Name},
    facts::{self, POD},
    gate::Gate,
    selector::{Labels, Selector},
};
use crate::{
    config::{ConfigError, fields::Fields},
    engine::Pod,
};

/// `apiVersion` of a policy.
pub const API_VERSION: &str = "evictd.io/v1alpha1";
/// `kind` of a policy.
pub const KIND: &str = "EvictionPolicy";

/// Evictions that one limit may allow at once: as many as are remembered without allocating.
pub const MOST_AT_ONCE: u64 = 16;
/// How long an eviction counts against a limit unless the limit says otherwise: long enough to be replaced.
const DEFAULT_PERIOD: Duration = Duration::from_secs(300);
/// Rules of one policy.
const MAX_RULES: usize = 64;
/// Gates of one policy.
const MAX_GATES: usize = 8;
/// Steps of the search for pods that a rule is left with by those before it.
const STEPS: u32 = 1000;
/// Answers of so many gates are tried in all ways to see whether a condition can hold at all.
const GATES_TRIED: usize = 4;
/// Order numbers lie between minus this and this.
const MAX_ORDER: i32 = 1000;

/// What an operator knows about workloads.
#[derive(Clone, Debug, PartialEq)]
pub struct EvictionPolicy {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.generation`, where the API server keeps it.
    pub generation: Option<i64>,
    /// `spec.precedence`: among policies that match a pod the highest decides.
    pub precedence: i32,
    /// `spec.shadow`: it is evaluated and reported, and changes nothing (R47).
    pub shadow: bool,
    /// `spec.namespaceSelector`: over the labels of the pod's namespace.
    pub namespaces: Selector,
    /// `spec.selector`: over the pod's labels.
    pub pods: Selector,
    /// `spec.gates`: questions that rules ask.
    pub gates: Vec<Gate>,
    /// `spec.rules`: the first one that matches a pod decides.
    pub rules: Vec<Rule>,
}

/// What holds for some pods.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// `name`.
    pub name: String,
    /// `selector`: over the pod's labels, within what the policy selects.
    pub pods: Selector,
    /// `evict`, with `when`.
    pub evict: Evict,
    /// `order`: pods with a lower number go first, where the strategy's first criterion holds them equal.
    pub order: i16,
    /// `limits`.
    pub limits: Vec<Limit>,
    /// `noExecute`: how long a pod stays on a node that is not ready or cannot be reached.
    pub no_execute: NoExecute,
}

/// Whether pods may be evicted.
#[derive(Clone, Debug, PartialEq)]
pub enum Evict {
    /// Whenever the strategy says so.
    Always,
    /// Not for pressure.
    Never,
    /// While this holds.
    When(Expression),
}

impl Evict {
    /// The word of the policy.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::Never => "Never",
            Self::When(_) => "When",
        }
    }
}

impl Rule {
    /// Whether both cannot mean what they say about the same pod: the more sparing one decides then. Two conditions do
    /// not contradict each other, since both can hold.
    pub fn contradicts(&self, other: &Self) -> bool {
        self.evict.word() != other.evict.word() || self.order != other.order
    }
}

/// How many pods of a group may go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// `groupBy`: the label whose value makes the group; none is all pods of the rule.
    pub group_by: Option<String>,
    /// `maxEvictedAtOnce`: so many evictions within `period`.
    pub max_evicted_at_once: Option<u32>,
    /// `period`: how long an eviction counts.
    pub period: Duration,
    /// `minAvailable`: so many pods of the group stay on this node and are ready.
    pub min_available: Option<u32>,
}

/// Tolerations of the two taints with which Kubernetes empties a lost node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NoExecute {
    /// `unreachable`: of `node.kubernetes.io/unreachable`.
    pub unreachable: Option<Wait>,
    /// `notReady`: of `node.kubernetes.io/not-ready`.
    pub not_ready: Option<Wait>,
}

/// How long a taint is tolerated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Whole seconds.
    Seconds(u64),
    /// For ever: a toleration without seconds.
    Forever,
}

impl EvictionPolicy {
    /// Reads a policy as the API server or a file has it.
    ///
    /// # Errors
    /// The first mistake, with its field.
    pub fn read(document: Value) -> Result<Self, ConfigError> {
        let mut fields = Fields::open("", document)?;
        for (field, expected) in [("apiVersion", API_VERSION), ("kind", KIND)] {
            let found = fields.required_text(field)?;
            if found != expected {
                return Err(ConfigError::text(
                    field,
                    &found,
                    format!("must be {expected}"),
                ));
            }
        }
        let missing = |field: &str| ConfigError::value(field, &Value::Null, "is missing");
        let mut metadata = fields
            .object("metadata")?
            .ok_or_else(|| missing("metadata"))?;
        let name = metadata.required_text("name")?;
        let generation = metadata.take("generation").and_then(|g| g.as_i64());
        // The API server's own.
        fields.take("status");
        let mut spec = fields.object("spec")?.ok_or_else(|| missing("spec"))?;
        fields.finish()?;
        let gates = gates(&mut spec)?;
        let policy = Self {
            name,
            generation,
            precedence: spec.int32("precedence")?.unwrap_or(0),
            shadow: spec.boolean("shadow")?.unwrap_or(false),
            namespaces: Selector::take(&mut spec, "namespaceSelector")?,
            pods: Selector::take(&mut spec, "selector")?,
            rules: rules(&mut spec, &gates)?,
            gates,
        };
        spec.finish()?;
        policy.check_use_of_gates()?;
        for i in 0..policy.rules.len() {
            policy.check_use_of_rule(i)?;
        }
        Ok(policy)
    }

    /// A rule for pods that the policy itself does not select, or that the rules before it take, would never apply.
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
        let who = takes_all.map_or_else(
            || "the rules before it take all its pods".to_owned(),
            |r| format!("rule {} takes all its pods before", r.name),
        );
        Err(ConfigError::text(
            path,
            &rule.name,
            format!("can never apply: {who}"),
        ))
    }

    /// The position of the rule that holds for a pod in a namespace with these labels, its name among them.
    pub fn rule_of(&self, pod: &Pod, namespace: &Labels) -> Option<usize> {
        if !self.namespaces.matches(namespace) || !self.pods.matches(&pod.labels) {
            return None;
        }
        let mut rules = self.rules.iter();
        rules.position(|rule| rule.pods.matches(&pod.labels))
    }

    /// The gates that a rule asks, with those whose answers they need.
    pub fn gates_of(&self, rule: &Rule) -> Vec<&Gate> {
        let Evict::When(when) = &rule.evict else {
            return Vec::new();
        };
        let mut wanted: Vec<&str> = when.selected("gates");
        // A gate needs answers of earlier ones only.
        for gate in self.gates.iter().rev() {
            if wanted.contains(&gate.name.as_str()) {
                wanted.extend(gate.needs());
            }
        }
        let asked = |gate: &&Gate| wanted.contains(&gate.name.as_str());
        self.gates.iter().filter(asked).collect()
    }

    /// A gate that nobody asks would be probed for nothing, or is a rule's slip of the pen.
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

fn gates(spec: &mut Fields) -> Result<Vec<Gate>, ConfigError> {
    let items = bounded(spec, "gates", MAX_GATES)?;
    let mut gates: Vec<Gate> = Vec::new();
    for (path, item) in items {
        let gate = Gate::read(Fields::open(&path, item)?, &gates)?;
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

fn rules(spec: &mut Fields, gates: &[Gate]) -> Result<Vec<Rule>, ConfigError> {
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
        let rule = rule(Fields::open(&path, item)?, gates)?;
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

fn rule(mut fields: Fields, gates: &[Gate]) -> Result<Rule, ConfigError> {
    let name = fields.required_text("name")?;
    if !is_dns_label(&name) {
        let reason = "must be a DNS label: small letters, digits and -, at most 63";
        return Err(ConfigError::text(fields.path_of("name"), &name, reason));
    }
    let pods = Selector::take(&mut fields, "selector")?;
    let evict = evict(&mut fields, gates)?;
    let path = fields.path_of("order");
    let order = fields.int32("order")?.unwrap_or(0);
    let small = i16::try_from(order)
        .ok()
        .filter(|_| order.abs() <= MAX_ORDER);
    let order = small.ok_or_else(|| {
        let reason = format!("must lie between -{MAX_ORDER} and {MAX_ORDER}");
        ConfigError::value(path, &order.into(), reason)
    })?;
    let mut limits = Vec::new();
    for (path, item) in bounded(&mut fields, "limits", 2)? {
        limits.push(limit(Fields::open(&path, item)?)?);
    }
    let no_execute = match fields.object("noExecute")? {
        Some(mut object) => {
            let taken = NoExecute {
                unreachable: wait(&mut object, "unreachable")?,
                not_ready: wait(&mut object, "notReady")?,
            };
            object.finish()?;
            taken
        }
        None => NoExecute::default(),
    };
    fields.finish()?;
    Ok(Rule {
        name,
        pods,
        evict,
        order,
        limits,
        no_execute,
    })
}

/// Rule names become part of objects' names (RFC 1123).
fn is_dns_label(name: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=63).contains(&name.len())
        && name.bytes().all(inner)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

fn evict(fields: &mut Fields, gates: &[Gate]) -> Result<Evict, ConfigError> {
    #[derive(Clone, Copy, PartialEq)]
    enum Word {
        Always,
        Never,
        When,
    }
    const WORDS: [(&str, Word); 3] = [
        ("Always", Word::Always),
        ("Never", Word::Never),
        ("When", Word::When),
    ];
    let path = fields.path_of("evict");
    let word = fields.choice("evict", &WORDS)?;
    let word = word.ok_or_else(|| {
        ConfigError::value(path, &Value::Null, "is missing: Always, Never or When")
    })?;
    let path = fields.path_of("when");
    let text = fields.text("when")?;
    let text = match (word, text) {
        (Word::Always, None) => return Ok(Evict::Always),
        (Word::Never, None) => return Ok(Evict::Never),
        (Word::When, Some(text)) => text,
        (Word::When, None) => {
            return Err(ConfigError::value(
                path,
                &Value::Null,
                "is missing: evict is When",
            ));
        }
        (_, Some(text)) => {
            return Err(ConfigError::text(
                path,
                &text,
                "means nothing unless evict is When",
            ));
        }
    };
    let known: Vec<&str> = gates.iter().map(|g| g.name.as_str()).collect();
    let names = [
        POD,
        Name {
            variable: "gates",
            fields: Some(&known),
        },
    ];
    let when = Expression::parse(&text, &names).map_err(|e| ConfigError::text(&path, &text, e))?;
    // Without variables the answer is known already; a constant yes or no has words of its own.
    match when.is_true(&[]) {
        Ok(true) => Err(ConfigError::text(
            path,
            &text,
            "is always true: say evict: Always",
        )),
        Ok(false) => Err(ConfigError::text(
            path,
            &text,
            "can never be true: say evict: Never",
        )),
        Err(_) if never_holds(&when) => Err(ConfigError::text(
            path,
            &text,
            "can never be true, whatever the gates answer",
        )),
        Err(_) => Ok(Evict::When(when)),
    }
}

/// Whether a condition is false whatever its gates answer and whatever the pod is. A gate without an answer makes it fail,
/// unless it asks for that (`has`, `?`): then nothing is claimed.
fn never_holds(when: &Expression) -> bool {
    let gates = when.selected("gates");
    let asks_for_absence = when.text().contains("has(") || when.text().contains('?');
    if gates.is_empty() || gates.len() > GATES_TRIED || asks_for_absence {
        return false;
    }
    (0..1_u32 << gates.len()).all(|way| {
        let answers = gates.iter().enumerate();
        let answers = answers.map(|(i, gate)| (*gate, cel::Value::Bool(way >> i & 1 == 1)));
        when.is_true(&[("gates", facts::map(answers))]) == Ok(false)
    })
}

fn limit(mut fields: Fields) -> Result<Limit, ConfigError> {
    let count = |fields: &mut Fields, name: &str, least: u64| -> Result<Option<u32>, ConfigError> {
        let path = fields.path_of(name);
        let Some(value) = fields.take(name) else {
            return Ok(None);
        };
        let number = value
            .as_u64()
            .filter(|n| (least..=MOST_AT_ONCE).contains(n));
        let number = number.and_then(|n| u32::try_from(n).ok());
        let reason = format!("must be a whole number between {least} and {MOST_AT_ONCE}");
        number
            .map(Some)
            .ok_or_else(|| ConfigError::value(path, &value, reason))
    };
    let path = fields.path_of("maxEvictedAtOnce");
    let limit = Limit {
        group_by: fields.text("groupBy")?,
        max_evicted_at_once: count(&mut fields, "maxEvictedAtOnce", 1)?,
        period: fields.duration("period")?.unwrap_or(DEFAULT_PERIOD),
        min_available: count(&mut fields, "minAvailable", 1)?,
    };
    if limit.max_evicted_at_once.is_none() && limit.min_available.is_none() {
        return Err(ConfigError::value(
            path,
            &Value::Null,
            "is missing, and so is minAvailable: one must be set",
        ));
    }
    fields.finish()?;
    Ok(limit)
}

fn wait(fields: &mut Fields, name: &str) -> Result<Option<Wait>, ConfigError> {
    let path = fields.path_of(name);
    match fields.take(name) {
        None => Ok(None),
        Some(Value::String(text)) if text == "Forever" => Ok(Some(Wait::Forever)),
        Some(Value::String(text)) => {
            let parsed = crate::config::duration::parse(&text)
                .map_err(|e| ConfigError::text(&path, &text, e))?;
            if parsed.subsec_nanos() != 0 {
                return Err(ConfigError::text(path, &text, "must be whole seconds"));
            }
            Ok(Some(Wait::Seconds(parsed.as_secs())))
        }
        Some(other) => Err(ConfigError::value(
            path,
            &other,
            "must be a duration such as 5m, or Forever",
        )),
    }
}

/// The items of a list with their paths.
fn bounded(
    fields: &mut Fields,
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
