//! The answers of gates for one pod, and the result of a rule with these answers.

use std::collections::BTreeMap;

use cel::Value;
use evictd_engine::{
    permit::Permission,
    units::{SECOND, nanos},
};

use super::super::{
    gate::{Gate, OnUnknown},
    model::Evict,
    set::Applied,
};
use crate::expression::variables;

/// How long the permission of a condition counts without renewal, in nanoseconds: after this time the thread that
/// renews it has certainly failed.
const RENEWED_WITHIN: u64 = 30 * SECOND;

/// The names of a policy and of one of its gates.
pub type GateKey = (String, String);

/// The state of a gate for one pod. Times are nanoseconds of CLOCK_MONOTONIC.
#[derive(Clone, Debug, Default)]
pub struct GateState {
    /// Time at which the gate's last question was due, in nanoseconds of CLOCK_MONOTONIC.
    pub requested_at: u64,
    /// Whether its last question has no answer yet.
    pub pending: bool,
    /// The last usable answer, and when it was asked for.
    pub answer: Option<(u64, bool)>,
    /// The body of the last usable answer, where another gate needs it.
    pub body: Option<Value>,
    /// Why the last question got no usable answer.
    pub error: Option<String>,
}

impl GateState {
    /// Time at which the next question is due, in nanoseconds of CLOCK_MONOTONIC.
    pub fn due(&self, gate: &Gate) -> u64 {
        let interval = match self.error {
            Some(_) => gate.retry_interval(),
            None => gate.interval,
        };
        self.requested_at.saturating_add(nanos(interval))
    }

    /// The answer if it still counts, and until when.
    pub fn fresh(&self, gate: &Gate, now: u64) -> Option<(u64, bool)> {
        let (at, answer) = self.answer?;
        let end = at.saturating_add(nanos(gate.max_age));
        (now < end).then_some((end, answer))
    }
}

/// Answers by gate.
pub type Answers = BTreeMap<GateKey, GateState>;

/// The result of a rule at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleResult {
    /// Permission that the rule gives the pod.
    pub permission: Permission,
    /// Why the rule spares the pod; `None` if it does not.
    pub reason: Option<String>,
}

/// The variable `answers`: the bodies of gates' answers that still count.
pub(super) fn bodies(applied: &Applied, answers: &Answers, now: u64) -> Value {
    let body = |gate: &'_ Gate| {
        let known = answers.get(&(applied.policy.name.clone(), gate.name.clone()))?;
        known.fresh(gate, now)?;
        known.body.clone()
    };
    let gates = applied.policy.gates.iter();
    variables::map(gates.filter_map(|gate| Some((gate.name.as_str(), body(gate)?))))
}

/// The result of a rule for a pod.
pub fn evaluate(applied: &Applied, pod: &Value, answers: &Answers, now: u64) -> RuleResult {
    let no = |permission, reason| RuleResult {
        permission,
        reason: Some(reason),
    };
    let when = match &applied.rule().evict {
        Evict::Always => {
            return RuleResult {
                permission: Permission::Always,
                reason: None,
            };
        }
        Evict::Never => return no(Permission::Never, "the rule says Never".to_owned()),
        Evict::When(when) => when,
    };
    let asked = when.selected("gates");
    let gates = applied.policy.gates_of(applied.rule());
    let gates = gates
        .into_iter()
        .filter(|g| asked.contains(&g.name.as_str()));
    let (mut known, mut allowed) = (Vec::new(), Vec::new());
    let mut end = now.saturating_add(RENEWED_WITHIN);
    for gate in gates {
        let answer = answers.get(&(applied.policy.name.clone(), gate.name.clone()));
        match answer.and_then(|a| a.fresh(gate, now)) {
            Some((until, answer)) => {
                if gate.on_unknown == OnUnknown::Deny {
                    end = end.min(until);
                }
                known.push((gate.name.as_str(), answer));
            }
            // The gate is left out of `gates`, so that an expression that needs it fails.
            None if gate.on_unknown == OnUnknown::Deny => {}
            None => allowed.push(gate.name.as_str()),
        }
    }
    let yes = RuleResult {
        permission: Permission::Until(end),
        reason: None,
    };
    let mut last = String::new();
    // Gates with `onUnknown: allow`: try all their possible answers. One combination that lets the pod go is enough.
    for guess in 0..1_u32 << allowed.len() {
        let guessed = allowed
            .iter()
            .enumerate()
            .map(|(i, gate)| (*gate, guess >> i & 1 == 1));
        let gates = known
            .iter()
            .copied()
            .chain(guessed)
            .map(|(name, yes)| (name, Value::Bool(yes)));
        match when.is_true(&[("pod", pod.clone()), ("gates", variables::map(gates))]) {
            Ok(true) => return yes,
            Ok(false) => last = format!("{} is false", when.text().trim()),
            Err(error) => last = format!("{}: {error}", when.text().trim()),
        }
    }
    no(Permission::Denied, last)
}

/// The result of several rules together: the most sparing one decides.
pub fn most_restrictive(results: impl IntoIterator<Item = RuleResult>) -> RuleResult {
    let no_rule = RuleResult {
        permission: Permission::Always,
        reason: None,
    };
    let sparing = |result: &RuleResult| match result.permission {
        Permission::Always => (0, 0),
        Permission::Until(end) => (1, u64::MAX - end),
        Permission::Denied => (2, 0),
        Permission::Never => (3, 0),
    };
    results.into_iter().max_by_key(sparing).unwrap_or(no_rule)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::EvictionPolicy;

    /// A question that is never answered would leave the gate unknown for a whole interval.
    // R38
    #[test]
    fn a_question_without_an_answer_is_asked_again_sooner() {
        for (interval, expected) in [("1s", 1), ("10s", 10), ("1m", 10), ("2m", 12), ("1h", 360)] {
            let gate = json!({"name": "g", "interval": interval, "http": {"port": 80}});
            let rule = json!({"name": "r", "evict": "When", "when": "gates.g"});
            let policy = json!({
                "apiVersion": crate::API_VERSION,
                "kind": crate::KIND,
                "metadata": {"name": "p"},
                "spec": {"allNamespaces": "a test", "gates": [gate], "rules": [rule]},
            });
            let policy = EvictionPolicy::read(policy).unwrap();
            let gate = &policy.gates[0];
            let answered = GateState {
                requested_at: 7,
                ..GateState::default()
            };
            let failed = GateState {
                error: Some("timed out".to_owned()),
                ..answered.clone()
            };
            assert_eq!(answered.due(gate), 7 + nanos(gate.interval));
            assert_eq!(failed.due(gate), 7 + expected * SECOND, "{interval}");
        }
    }
}
