//! Explains why a pod may be evicted or not, for logs, incidents and `evictd policy explain`.

use evictd_engine::{
    CandidateState,
    limiter::EvictionKind,
    permit::{LastResort, Permission},
    units::SECOND,
};
use evictd_sys::{clock::monotonic_ns, mutex::locked};
use serde::{Deserialize, Serialize};

use super::{EvaluatedPod, PolicyEvaluator, facts, restore::ENDING};
use crate::{
    Evict,
    evaluator::gate_state::evaluate,
    gate::{Gate, OnUnknown},
    set::Applied,
};

/// One pod under the policies.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// `namespace/name`.
    pub pod: String,
    /// UID of the pod.
    pub uid: String,
    /// Whether the pod may be evicted now.
    pub may_go: bool,
    /// Seconds for which the pod may be evicted, unless that is renewed; absent if only another policy can change it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub for_seconds: Option<u64>,
    /// Why the pod may not be evicted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The pod's order number.
    pub order: i16,
    /// The rules that hold for the pod.
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
    /// Whether its policy is in shadow mode.
    pub shadow: bool,
    /// Whether the rule lets the pod go at this moment.
    pub says_yes: bool,
    /// The gates that the rule asks.
    pub gates: Vec<GateView>,
}

/// A gate for one pod.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GateView {
    /// Name of the gate.
    pub gate: String,
    /// The last answer, as long as it counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<bool>,
    /// The age of the last answer, whether or not it still counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age_seconds: Option<f64>,
    /// Why the last question got no usable answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Meaning of a missing answer: `deny` or `allow`.
    pub on_unknown: String,
}

/// Why a pod that was chosen at the kubelet's pace is not evicted after all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlockReason {
    /// A pause of the node.
    #[error("evictions are paused on this node")]
    Paused,
    /// No policy is known yet.
    #[error("the policies are not known yet")]
    PoliciesUnknown,
    /// The fleet brake.
    #[error("the fleet brake holds back what is not urgent")]
    FleetBrake,
    /// The policies, or a limit without room.
    #[error("a policy or a limit denies the eviction")]
    Denied,
}

impl PolicyEvaluator {
    /// What holds a pod back at this moment, if anything does. A caller asks this before it acts on a decision that may
    /// be out of date. For a pod that this evaluator does not have the answer covers only what holds for all.
    pub fn block_reason(&self, uid: &str) -> Option<BlockReason> {
        let now = monotonic_ns();
        if self.limiter.is_paused() {
            return Some(BlockReason::Paused);
        }
        if self.limiter.awaits_policies(now) {
            return Some(BlockReason::PoliciesUnknown);
        }
        if !self.limiter.fleet_allows_paced(now) {
            return Some(BlockReason::FleetBrake);
        }
        let state = locked(&self.state);
        let pod = &state.pods.get(uid)?.pod;
        let may_go = self
            .limiter
            .allows(&**pod, now, EvictionKind::Urgent, LastResort::None);
        (!may_go).then_some(BlockReason::Denied)
    }

    /// Explains every pod.
    pub fn explain(&self) -> Vec<Explanation> {
        let state = locked(&self.state);
        let now = monotonic_ns();
        let pods = state.pods.values();
        pods.map(|held| self.explain_pod(held, now)).collect()
    }

    fn explain_pod(&self, held: &EvaluatedPod, now: u64) -> Explanation {
        let pod = held.pod.pod();
        let permit = held.pod.permit();
        let limiter = &self.limiter;
        let state = limiter.state_of(
            &*held.pod,
            now,
            EvictionKind::Urgent,
            LastResort::None,
            false,
        );
        let may_go = state == CandidateState::Eligible;
        let permission = permit.permission(now);
        let value = facts(held);
        let rules = held.matched.rules.iter().chain(&held.matched.shadow);
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
                .map(|gate| gate_view(held, applied, gate, now))
                .collect(),
        });
        Explanation {
            pod: pod.to_string(),
            uid: pod.uid.clone(),
            may_go,
            for_seconds: match permission {
                Permission::Until(until) if may_go => Some(until.saturating_sub(now) / SECOND),
                _ => None,
            },
            reason: match may_go {
                true => None,
                false => self.reason_of(held, permission, now),
            },
            order: permit.order(),
            rules: rules.collect(),
        }
    }

    /// Why a pod may not be evicted.
    fn reason_of(&self, held: &EvaluatedPod, permission: Permission, now: u64) -> Option<String> {
        let reason = if held.pod.eviction_state().is_ending() {
            ENDING
        } else if held.pod.eviction_state().is_being_killed(now) {
            "it is being evicted"
        } else if held.pod.is_protected() && held.pod.pod().has_critical_priority() {
            "its priority makes it critical"
        } else if held.pod.is_protected() {
            "it is a static pod"
        } else if self.limiter.is_paused() {
            "evictions are paused on this node"
        } else if matches!(permission, Permission::Always | Permission::Until(_)) {
            "a limit has no room"
        } else {
            return held.result.reason.clone();
        };
        Some(reason.to_owned())
    }
}

fn gate_view(held: &EvaluatedPod, applied: &Applied, gate: &Gate, now: u64) -> GateView {
    let key = (applied.policy.name.clone(), gate.name.clone());
    let known = held.answers.get(&key);
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
}
