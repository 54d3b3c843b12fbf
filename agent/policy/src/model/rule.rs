//! One rule of a policy.

use std::time::Duration;

use evictd_config::{ConfigError, decode::ObjectDecoder};
use evictd_engine::{Pod, permit::MAX_EVICTIONS_PER_QUOTA};
use serde_json::Value;

use super::bounded;
use crate::{
    Selector,
    expression::{
        Expression, Name,
        variables::{self, POD},
    },
    gate::Gate,
};

/// Time for which an eviction counts against a limit by default: long enough for the pod to be replaced.
const DEFAULT_PERIOD: Duration = Duration::from_secs(300);
/// Most gates whose answers are tried in all combinations to see whether a condition can hold at all.
const GATES_TRIED: usize = 4;
/// Order numbers lie between -`MAX_ORDER` and `MAX_ORDER`.
const MAX_ORDER: i32 = 1000;

/// Rule of a policy for the pods of one selector.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// `name`.
    pub name: String,
    /// `selector`: over the pod's labels, within what the policy selects.
    pub pods: Selector,
    /// `evict`, with `when`.
    pub evict: Evict,
    /// `order`: of pods that the strategy's first criterion ranks equal, those with a lower number go first.
    pub order: i16,
    /// `limits`.
    pub limits: Vec<Limit>,
    /// `noExecute`: how long a pod stays on a node that is not ready or cannot be reached.
    pub no_execute: NoExecute,
}

/// Whether pods may be evicted.
#[derive(Clone, Debug, PartialEq)]
pub enum Evict {
    /// Whenever the strategy chooses them.
    Always,
    /// Pods are never evicted for pressure.
    Never,
    /// Pods may be evicted while this expression is true.
    When(Expression),
}

impl Evict {
    /// The word in the policy.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::Never => "Never",
            Self::When(_) => "When",
        }
    }
}

impl Rule {
    /// Whether the two rules say different things about the same pod; the more sparing one then decides. Two conditions
    /// do not contradict each other, since both can hold.
    pub fn contradicts(&self, other: &Self) -> bool {
        self.evict.word() != other.evict.word() || self.order != other.order
    }
}

/// Limit on the evictions of pods of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// `groupBy`: the label whose value makes the group; none is all pods of the rule.
    pub group_by: Option<String>,
    /// `maxEvictedAtOnce`: most evictions within `period`.
    pub max_evicted_at_once: Option<u32>,
    /// `period`: how long an eviction counts.
    pub period: Duration,
    /// `minAvailable`: how many ready pods of the group must stay on this node.
    pub min_available: Option<u32>,
}

impl Limit {
    /// The value that tells the pod's group from others.
    pub fn value_for<'a>(&self, pod: &'a Pod) -> &'a str {
        let label = self.group_by.as_ref();
        label.map_or("", |label| pod.labels.get(label).map_or("", |v| v))
    }
}

/// Tolerations of the two taints with which Kubernetes empties a lost node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NoExecute {
    /// `unreachable`: of `node.kubernetes.io/unreachable`.
    pub unreachable: Option<Wait>,
    /// `notReady`: of `node.kubernetes.io/not-ready`.
    pub not_ready: Option<Wait>,
}

/// Time for which a taint is tolerated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Whole seconds.
    Seconds(u64),
    /// Tolerated for ever: a toleration without seconds.
    Forever,
}

pub(super) fn read(mut fields: ObjectDecoder, gates: &[Gate]) -> Result<Rule, ConfigError> {
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
        limits.push(limit(ObjectDecoder::open(&path, item)?)?);
    }
    let no_execute = fields.section("noExecute", |object| {
        Ok(NoExecute {
            unreachable: wait(object, "unreachable")?,
            not_ready: wait(object, "notReady")?,
        })
    })?;
    fields.deny_unknown_fields()?;
    Ok(Rule {
        name,
        pods,
        evict,
        order,
        limits,
        no_execute: no_execute.unwrap_or_default(),
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

fn evict(fields: &mut ObjectDecoder, gates: &[Gate]) -> Result<Evict, ConfigError> {
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
    // An expression with a result without variables is constant: `Always` or `Never` says the same.
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

/// Whether a condition is false whatever its gates answer and whatever the pod is. An expression that handles a missing
/// answer (`has`, `?`) is not examined.
fn never_holds(when: &Expression) -> bool {
    let gates = when.selected("gates");
    let handles_absence = when.text().contains("has(") || when.text().contains('?');
    if gates.is_empty() || gates.len() > GATES_TRIED || handles_absence {
        return false;
    }
    (0..1_u32 << gates.len()).all(|way| {
        let answers = gates.iter().enumerate();
        let answers = answers.map(|(i, gate)| (*gate, cel::Value::Bool(way >> i & 1 == 1)));
        when.is_true(&[("gates", variables::map(answers))]) == Ok(false)
    })
}

fn limit(mut fields: ObjectDecoder) -> Result<Limit, ConfigError> {
    let path = fields.path_of("maxEvictedAtOnce");
    let limit = Limit {
        group_by: fields.text("groupBy")?,
        max_evicted_at_once: fields.whole("maxEvictedAtOnce", 1..=MAX_EVICTIONS_PER_QUOTA)?,
        period: fields.duration("period")?.unwrap_or(DEFAULT_PERIOD),
        min_available: fields.whole("minAvailable", 1..=MAX_EVICTIONS_PER_QUOTA)?,
    };
    if limit.max_evicted_at_once.is_none() && limit.min_available.is_none() {
        return Err(ConfigError::value(
            path,
            &Value::Null,
            "is missing, and so is minAvailable: one must be set",
        ));
    }
    fields.deny_unknown_fields()?;
    Ok(limit)
}

fn wait(fields: &mut ObjectDecoder, name: &str) -> Result<Option<Wait>, ConfigError> {
    let path = fields.path_of(name);
    match fields.optional(name) {
        None => Ok(None),
        Some(Value::String(text)) if text == "Forever" => Ok(Some(Wait::Forever)),
        Some(Value::String(text)) => {
            let parsed = evictd_config::duration::parse(&text)
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
