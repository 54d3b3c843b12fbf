//! Pods with cgroups of their own, under policies whose gates are asked, without an agent.

use evictd_engine::{
    ManagedPod, Owner,
    fleet::FleetRules,
    limiter::{EvictionKind, EvictionLimiter},
    permit::LastResort,
};
pub use evictd_judge::BarePod;
use evictd_node::pods::table::{PodEntry, PodTable};
use evictd_policy::{
    EvictionPolicy, PolicyEvaluator, PolicySet,
    evaluator::{Explanation, PolicySettings, Worker},
    gate::{ClusterAddresses, Secrets},
};

use crate::{policies::document, prelude::*};

/// Evaluator that keeps permits, and the pods that have them.
pub struct PolicyFixture {
    pub evaluator: Arc<PolicyEvaluator>,
    pub table: Box<PodTable>,
    pub node: Node,
    // Asks until it is dropped.
    _worker: Worker,
}

pub fn labels(labels: &[(&str, &str)]) -> BTreeMap<String, String> {
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    labels.iter().map(owned).collect()
}

pub fn policy(name: &str, spec: Value) -> EvictionPolicy {
    EvictionPolicy::read(document(name, spec)).expect("a policy")
}

/// A spec with one rule: pods may go within these limits.
pub fn always(limits: &Value) -> Value {
    json!({"rules": [{"name": "r", "evict": "Always", "limits": limits}]})
}

/// A policy of one gate, which decides alone.
pub fn gated(mut gate: Value) -> EvictionPolicy {
    gate["name"] = "g".into();
    gate["interval"] = "100ms".into();
    let rule = json!({"name": "r", "evict": "When", "when": "gates.g"});
    policy("p", json!({"gates": [gate], "rules": [rule]}))
}

/// The fast path evicts this pod now.
pub fn charge(limiter: &EvictionLimiter, pod: &dyn ManagedPod) {
    limiter.charge(EvictionKind::Urgent, pod, monotonic_ns());
}

/// Rules of a fleet that is slow with one node and pauses with two, each for a minute.
pub const FLEET_RULES: FleetRules = FleetRules {
    window: MINUTE,
    slow_nodes: 1,
    pause_nodes: 2,
    pause: MINUTE,
    slow_interval: MINUTE,
};

const MINUTE: Duration = Duration::from_secs(60);

/// The object that a pod belongs to; its UID is its name.
pub fn owner(kind: &str, name: &str) -> Owner {
    Owner {
        kind: kind.into(),
        name: name.into(),
        uid: name.into(),
    }
}

/// The name of a pod that has a number.
pub fn pod(number: usize) -> String {
    format!("pod-{number}")
}

pub fn may_go(kept: &PolicyFixture, number: usize) -> bool {
    kept.may_go(&pod(number))
}

impl PolicyFixture {
    /// A node with these pods, which run.
    pub fn new(
        name: &str,
        pods: Vec<Pod>,
        policies: Vec<EvictionPolicy>,
        secrets: Secrets,
    ) -> Self {
        let mut node = Node::new(name, 64).expect("a node");
        for given in pods {
            let name = given.name.clone();
            node.pod(&name, QosClass::Burstable, 0, 0);
            node.edit(&name, |pod| {
                let uid = std::mem::take(&mut pod.uid);
                *pod = Pod {
                    uid,
                    phase: "Running".into(),
                    namespace: "default".into(),
                    ..given
                };
            });
        }
        let evaluator = PolicyEvaluator::new(PolicySettings::default(), secrets);
        evaluator.set_cluster_addresses(ClusterAddresses::default());
        evaluator.set_policies(PolicySet::new(policies));
        let table = node.table();
        evaluator.set_pods(&table.entries);
        let worker = Worker::start(Arc::clone(&evaluator)).expect("a thread");
        Self {
            evaluator,
            table,
            node,
            _worker: worker,
        }
    }

    pub fn entry(&self, pod: &str) -> &Arc<PodEntry> {
        let mut entries = self.table.entries.iter();
        entries
            .find(|e| e.pod.name == pod)
            .expect("a pod of this name")
    }

    /// Whether a pod could be evicted now.
    pub fn may_go(&self, pod: &str) -> bool {
        let entry = &**self.entry(pod);
        self.evaluator.limiter().allows(
            entry,
            monotonic_ns(),
            EvictionKind::Urgent,
            LastResort::None,
        )
    }

    pub fn explain(&self, pod: &str) -> Explanation {
        let name = format!("default/{pod}");
        let mut all = self.evaluator.explain().into_iter();
        all.find(|e| e.pod == name).expect("a pod of this name")
    }

    pub fn wait(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        let holds = until(SOON, || condition(self));
        assert!(holds, "{what}: {:#?}", self.evaluator.explain());
    }
}
