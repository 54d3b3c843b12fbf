//! Keeps every pod's permit up to date: matches policies, asks gates, counts groups. None of this runs on the fast
//! path.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use evictd_engine::{
    ManagedPod, Pod,
    limiter::{EvictionLimiter, Rate, RestoredEviction},
    permit::{LastResort, Permission},
    units::signed,
};
use evictd_sys::{clock::monotonic_ns, mutex::locked};
use futures::future::BoxFuture;

use super::{
    gate::{self, ClusterAddresses, Secrets},
    set::{Applied, MatchedRules, PolicySet},
};
use crate::{
    Namespaces,
    evaluator::gate_state::{Answers, RuleResult, evaluate, most_restrictive},
    expression::variables,
};
use quotas::Quotas;

mod explain;
mod gate_state;
mod limits;
mod namespaces;
mod quotas;
mod restore;
mod worker;

pub use explain::{BlockReason, Explanation, GateView, RuleView};
pub use gate_state::GateState;
pub use worker::{THREAD, Worker};

/// Most pairs of policies whose conflicts are kept.
const MAX_REPORTED: usize = 1024;

/// Settings of the agent's configuration, which hold beside all policies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicySettings {
    /// The rate for all pods of the node.
    pub node_rate: Option<Rate>,
    /// The rate for the pods of each owner.
    pub owner_rate: Option<Rate>,
    /// Selection of the pods that the last resort may take.
    pub last_resort: LastResort,
    /// The longest grace that a namespace's own policy gets; none by default.
    pub max_grace: Duration,
}

/// Reads objects of the API server for gates.
pub trait ObjectReader: Send + Sync {
    /// Reads the object at this path. A missing object is an answer with status 404.
    fn get(&self, path: String) -> BoxFuture<'_, Result<gate::Answer, String>>;
}

/// Reads the evictions that count: those of earlier agents and of this one.
type History = Box<dyn Fn() -> Vec<RestoredEviction> + Send + Sync>;

/// Keeps every pod's permit up to date.
pub struct PolicyEvaluator {
    settings: PolicySettings,
    limiter: Arc<EvictionLimiter>,
    secrets: Secrets,
    state: Mutex<State>,
    history: std::sync::OnceLock<History>,
    objects: std::sync::OnceLock<Arc<dyn ObjectReader>>,
    cluster: tokio::sync::watch::Sender<Option<Arc<ClusterAddresses>>>,
    cluster_wanted: tokio::sync::Notify,
    changed: tokio::sync::Notify,
    replaced: tokio::sync::Notify,
}

#[derive(Default)]
struct State {
    set: PolicySet,
    namespaces: Namespaces,
    namespaces_revision: u64,
    /// Evaluated pods, by UID.
    pods: BTreeMap<String, EvaluatedPod>,
    /// Counts changes of the pods and of their namespaces' labels.
    pods_revision: u64,
    quotas: Quotas,
    /// Evictions of earlier agents, the oldest first.
    restored: Vec<RestoredEviction>,
    /// Pods that an earlier agent has killed and that may have processes left, by UID: the time of the signal, in
    /// nanoseconds of CLOCK_MONOTONIC.
    ending: BTreeMap<String, u64>,
    /// The first rules of two policies that contradicted each other on a pod, by the policies' names.
    reported_contradictions: BTreeMap<(String, String), (Applied, Applied)>,
}

/// A pod of this node.
struct EvaluatedPod {
    pod: Arc<dyn ManagedPod>,
    /// Time since which the pod is known here, in nanoseconds of CLOCK_MONOTONIC.
    since: u64,
    matched: MatchedRules,
    answers: Answers,
    /// The result of all rules that hold.
    result: RuleResult,
    /// The result of the rules in shadow mode.
    shadow: RuleResult,
}

impl PolicyEvaluator {
    /// Without policies and pods: every pod may be evicted.
    pub fn new(settings: PolicySettings, secrets: Secrets) -> Arc<Self> {
        let limiter = Arc::new(EvictionLimiter::default());
        limiter.set_last_resort(settings.last_resort);
        Arc::new(Self {
            settings,
            limiter,
            secrets,
            state: Mutex::default(),
            history: std::sync::OnceLock::new(),
            objects: std::sync::OnceLock::new(),
            cluster: tokio::sync::watch::Sender::new(None),
            cluster_wanted: tokio::sync::Notify::new(),
            changed: tokio::sync::Notify::new(),
            replaced: tokio::sync::Notify::new(),
        })
    }

    /// Pause, rates and limits, which the fast path reads besides the permits.
    pub fn limiter(&self) -> &Arc<EvictionLimiter> {
        &self.limiter
    }

    /// Lets gates read objects from now on.
    pub fn connect(&self, objects: Arc<dyn ObjectReader>) {
        // The first one stays: there is only one cluster.
        let _ = self.objects.set(objects);
    }

    /// Sets the addresses that gates may ask only where their policy names them. Until then no gate asks any server.
    pub fn set_cluster_addresses(&self, addresses: ClusterAddresses) {
        self.cluster.send_replace(Some(Arc::new(addresses)));
    }

    /// Waits until a gate needs the cluster's addresses. For one waiter.
    pub async fn cluster_addresses_wanted(&self) {
        self.cluster_wanted.notified().await;
    }

    /// Puts policies in force.
    pub fn set_policies(&self, set: PolicySet) {
        let mut state = locked(&self.state);
        if state.set == set {
            return;
        }
        state.set = set;
        state.reported_contradictions.clear();
        state.match_all();
        self.evaluate_all(&mut state);
        drop(state);
        self.changed.notify_one();
        self.replaced.notify_one();
    }

    /// Waits until other policies are in force. For one waiter.
    pub async fn replaced(&self) {
        self.replaced.notified().await;
    }

    /// Takes the pods of this node. All are evaluated when this returns, so that the fast path never sees a pod without
    /// a result.
    pub fn set_pods<P: ManagedPod + 'static>(&self, pods: &[Arc<P>]) {
        let mut state = locked(&self.state);
        let mut before = std::mem::take(&mut state.pods);
        for managed in pods {
            let pod = managed.pod();
            let held = before.remove(&pod.uid);
            let (answers, since) = match held {
                Some(held) => (held.answers, held.since),
                None => {
                    // Later tables have the same state of it, with what has happened since.
                    state.restore_pod(&**managed);
                    (Answers::default(), monotonic_ns())
                }
            };
            let matched = state.matched(pod);
            let free = || RuleResult {
                permission: Permission::Always,
                reason: None,
            };
            let held = EvaluatedPod {
                pod: Arc::clone(managed) as Arc<dyn ManagedPod>,
                since,
                matched,
                answers,
                result: free(),
                shadow: free(),
            };
            state.pods.insert(pod.uid.clone(), held);
        }
        state.pods_revision += 1;
        self.evaluate_all(&mut state);
        drop(state);
        self.changed.notify_one();
    }

    /// Evaluates all pods anew: answers get old, pods get older, usage changes.
    pub fn evaluate(&self) {
        self.evaluate_all(&mut locked(&self.state));
    }

    fn evaluate_all(&self, state: &mut State) {
        let now = monotonic_ns();
        state.quotas.begin(&self.limiter, now);
        let quotas = self.set_quotas(state, now);
        let wall = seconds_since_1970();
        for held in state.pods.values_mut() {
            let value = facts(held);
            let ask = |applied| evaluate(applied, &value, &held.answers, now);
            held.result = most_restrictive(held.matched.rules.iter().map(ask));
            let created = held.pod.pod().created;
            let request = held.matched.tenant_request;
            let known_for = Duration::from_nanos(now.saturating_sub(held.since));
            let most = self.settings.max_grace;
            if request.spares(created, wall, known_for, most) {
                // Without the time that is left: the status file would change every second.
                let reason = format!(
                    "it is in the grace of {} s that its namespace asks for",
                    request.grace.min(most).as_secs()
                );
                let grace = RuleResult {
                    permission: Permission::Denied,
                    reason: Some(reason),
                };
                held.result = most_restrictive([held.result.clone(), grace]);
            }
            held.shadow = most_restrictive(held.matched.shadow.iter().map(ask));
            let quotas = quotas.get(&held.pod.pod().uid);
            if quotas.is_some_and(|quotas| !quotas.is_complete) {
                let reason = "there are more limits on this node than are kept".to_owned();
                let spared = RuleResult {
                    permission: Permission::Denied,
                    reason: Some(reason),
                };
                held.result = most_restrictive([held.result.clone(), spared]);
            }
            let indexes = quotas.map_or(&[][..], |quotas| &quotas.indexes);
            let permit = held.pod.permit();
            permit.set(held.result.permission, held.matched.order(), indexes);
        }
        state.report_conflicts();
    }

    /// Whether a pod of this node runs, and all that ran at a moment is gone, in nanoseconds of CLOCK_MONOTONIC.
    pub fn runs_anew(&self, uid: &str, since: u64) -> bool {
        let pod = locked(&self.state)
            .pods
            .get(uid)
            .map(|held| Arc::clone(&held.pod));
        pod.is_some_and(|pod| pod.is_younger_than(since))
    }

    /// Why policies in shadow mode would have spared a pod.
    pub fn shadow_objection(&self, uid: &str) -> Option<String> {
        let state = locked(&self.state);
        let held = state.pods.get(uid)?;
        let reason = held.shadow.reason.clone()?;
        let rules: Vec<String> = held.matched.shadow.iter().map(|a| a.name()).collect();
        Some(format!("{}: {reason}", rules.join(", ")))
    }
}

/// The pod as rules see it; null where no rule has a condition, because this reads the pod's usage.
fn facts(held: &EvaluatedPod) -> cel::Value {
    if held.matched.needs_facts() {
        pod_value(&*held.pod)
    } else {
        cel::Value::Null
    }
}

fn pod_value(managed: &dyn ManagedPod) -> cel::Value {
    variables::pod(managed.pod(), seconds_since_1970(), managed.memory_usage())
}

fn seconds_since_1970() -> i64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |d| signed(d.as_secs()))
}

impl State {
    fn matched(&self, pod: &Pod) -> MatchedRules {
        self.set.match_pod(pod, &self.namespaces)
    }

    fn match_all(&mut self) {
        let mut pods = std::mem::take(&mut self.pods);
        for held in pods.values_mut() {
            let matched = self.matched(held.pod.pod());
            let before = std::mem::replace(&mut held.matched, matched);
            // An answer counts only for the same question.
            held.answers.retain(|key, _| {
                let gate = held.matched.gate(key);
                gate.is_some() && before.gate(key) == gate
            });
        }
        self.pods = pods;
    }

    fn report_conflicts(&mut self) {
        for held in self.pods.values() {
            for (one, other) in held.matched.conflicts() {
                let pair = (one.policy.name.clone(), other.policy.name.clone());
                if self.reported_contradictions.contains_key(&pair)
                    || self.reported_contradictions.len() >= MAX_REPORTED
                {
                    continue;
                }
                let (pod, first, second) = (held.pod.pod(), one.name(), other.name());
                tracing::warn!(
                    %pod, first, second,
                    "two rules of the same precedence contradict each other: the more sparing one decides"
                );
                self.reported_contradictions
                    .insert(pair, (one.clone(), other.clone()));
            }
        }
    }
}
