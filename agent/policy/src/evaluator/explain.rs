//! Says why a pod may go or not: for people, and for `evictd policy explain`.

use evictd_engine::permit::{LastResort, Permission};
use evictd_sys::clock::monotonic_ns;
use serde::{Deserialize, Serialize};

use super::{PolicyEvaluator, State, facts, past::ENDING};
use crate::{Evict, evaluator::gate_state::evaluate, gate::OnUnknown};

/// One pod under the policies.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// `namespace/name`.
    pub pod: String,
    /// Its UID.
    pub uid: String,
    /// Whether it could be evicted now.
    pub may_go: bool,
    /// For how many seconds that holds unless it is renewed; absent if nothing but a policy can change it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub for_seconds: Option<u64>,
    /// Why it could not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Its order number.
    pub order: i16,
    /// The rules that hold for it.
    pub rules: Vec<RuleView>,
}

/// A rule that holds for a pod.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RuleView {
    /// `policy/rule`.
    pub rule: String,
    /// `Always`, `Never`, or the expression.
    pub evict: String,
    /// It changes nothing.
    pub shadow: bool,
    /// What it says at this moment.
    pub says_yes: bool,
    /// The gates that it asks.
    pub gates: Vec<GateView>,
}

/// A gate for one pod.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GateView {
    /// Its name.
    pub gate: String,
    /// The answer as long as it counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<bool>,
    /// How old the last answer is, whether or not it still counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age_seconds: Option<f64>,
    /// Why the last attempt gave no answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What no answer means.
    pub on_unknown: String,
}

/// What holds a pod back that was chosen at the kubelet's pace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeldBack {
    /// A pause of the node.
    #[error("evictions are paused on this node")]
    Paused,
    /// The fleet brake.
    #[error("the fleet brake holds back what is not urgent")]
    Fleet,
    /// The policies, or a limit without room.
    #[error("a policy or a limit spares it")]
    Spared,
}

impl PolicyEvaluator {
    /// What holds a pod back at this moment, if anything does: for those that act on a decision that has become old meanwhile.
    /// Of a pod that is not here it is only known what holds for all of them.
    pub fn held_back(&self, uid: &str) -> Option<HeldBack> {
        let now = monotonic_ns();
        if self.limiter.is_paused() {
            return Some(HeldBack::Paused);
        }
        if !self.limiter.allows_paced(now) {
            return Some(HeldBack::Fleet);
        }
        let state = self.state();
        let permit = state.pods.get(uid)?.pod.permit();
        let may_go = self.limiter.allows(permit, now, LastResort::None);
        (!may_go).then_some(HeldBack::Spared)
    }

    /// Explains every pod.
    pub fn explain(&self) -> Vec<Explanation> {
        let state = self.state();
        let State { pods, .. } = &*state;
        let now = monotonic_ns();
        let explain = |held: &super::EvaluatedPod| {
            let pod = held.pod.pod();
            let permit = held.pod.permit();
            let may_go =
                !held.pod.is_protected() && self.limiter.allows(permit, now, LastResort::None);
            let permission = permit.permission(now);
            let reason = match permission {
                _ if may_go => None,
                _ if permit.is_ending() => Some(ENDING.to_owned()),
                _ if held.pod.is_protected() && pod.has_critical_priority() => {
                    Some("its priority makes it critical".to_owned())
                }
                _ if held.pod.is_protected() => Some("it is a static pod".to_owned()),
                _ if self.limiter.is_paused() => {
                    Some("evictions are paused on this node".to_owned())
                }
                Permission::Always | Permission::Until(_) => Some("a limit has no room".to_owned()),
                _ => held.said.reason.clone(),
            };
            let value = facts(held);
            let rules = held.ruling.rules.iter().chain(&held.ruling.shadow);
            let rules = rules.map(|applied| RuleView {
                rule: applied.name(),
                evict: match &applied.rule().evict {
                    Evict::Always => "Always".to_owned(),
                    Evict::Never => "Never".to_owned(),
                    Evict::When(when) => format!("When {}", when.text().trim()),
                },
                shadow: applied.policy.shadow,
                says_yes: evaluate(applied, &value, &held.answers, now)
                    .reason
                    .is_none(),
                gates: (applied.policy.gates_of(applied.rule()).into_iter())
                    .map(|gate| {
                        let known = held
                            .answers
                            .get(&(applied.policy.name.clone(), gate.name.clone()));
                        let answer = known.and_then(|k| k.fresh(gate, now));
                        let age = known
                            .and_then(|k| k.answer)
                            .map(|(at, _)| now.saturating_sub(at));
                        GateView {
                            gate: gate.name.clone(),
                            answer: answer.map(|(_, yes)| yes),
                            age_seconds: age.map(|ns| (ns / 1_000_000) as f64 / 1000.0),
                            error: known.and_then(|k| k.error.clone()),
                            on_unknown: match gate.on_unknown {
                                OnUnknown::Deny => "deny".to_owned(),
                                OnUnknown::Allow => "allow".to_owned(),
                            },
                        }
                    })
                    .collect(),
            });
            Explanation {
                pod: pod.to_string(),
                uid: pod.uid.clone(),
                may_go,
                for_seconds: match permission {
                    Permission::Until(until) if may_go => {
                        Some(until.saturating_sub(now) / 1_000_000_000)
                    }
                    _ => None,
                },
                reason,
                order: permit.order(),
                rules: rules.collect(),
            }
        };
        pods.values().map(explain).collect()
    }
}
