//! Pods with cgroups of their own, under policies whose gates are asked, without an agent.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use evictd_engine::{Pod, QosClass, permit::LastResort};
use evictd_node::pods::table::{Entry, PodTable};
use evictd_policy::{
    EvictionPolicy, PolicyEvaluator, PolicySet,
    evaluator::{Explanation, Settings, Worker},
    gate::{ClusterAddresses, Secrets},
};
use evictd_sys::clock::monotonic_ns;
use serde_json::{Value, json};

use crate::{node::Node, policies::scoped};

const TIMEOUT: Duration = Duration::from_secs(30);

/// What keeps clearances, and the pods that have them.
pub struct Kept {
    /// Keeps them.
    pub evaluator: Arc<PolicyEvaluator>,
    /// The pods.
    pub table: Box<PodTable>,
    /// Their cgroups.
    pub node: Node,
    // Asks until it is dropped.
    _worker: Worker,
}

/// A pod's labels.
pub fn labels(labels: &[(&str, &str)]) -> BTreeMap<String, String> {
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    labels.iter().map(owned).collect()
}

/// A policy of this specification.
///
/// # Panics
/// It cannot be used.
pub fn policy(name: &str, spec: Value) -> EvictionPolicy {
    let document = json!({
        "apiVersion": evictd_policy::API_VERSION,
        "kind": evictd_policy::KIND,
        "metadata": {"name": name},
        "spec": scoped(spec),
    });
    EvictionPolicy::read(document).expect("a policy")
}

impl Kept {
    /// A node with these pods, which run.
    ///
    /// # Panics
    /// No cgroups, no thread.
    pub fn new(
        name: &str,
        pods: Vec<Pod>,
        policies: Vec<EvictionPolicy>,
        secrets: Secrets,
    ) -> Self {
        let mut node = Node::new(name, 64).expect("a node");
        for given in pods {
            let name = given.name.clone();
            node.pod(&name, QosClass::Burstable, 0, 0).expect("a pod");
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
        let evaluator = PolicyEvaluator::new(Settings::default(), secrets);
        evaluator.set_cluster_addresses(ClusterAddresses::default());
        evaluator.set_policies(PolicySet::new(policies));
        let table = node.table();
        evaluator.present(&table.entries);
        let worker = Worker::start(Arc::clone(&evaluator)).expect("a thread");
        Self {
            evaluator,
            table,
            node,
            _worker: worker,
        }
    }

    /// The entry of a pod.
    ///
    /// # Panics
    /// There is none.
    pub fn entry(&self, pod: &str) -> &Arc<Entry> {
        let mut entries = self.table.entries.iter();
        entries
            .find(|e| e.pod.name == pod)
            .expect("a pod of this name")
    }

    /// Whether a pod could be evicted now.
    pub fn may_go(&self, pod: &str) -> bool {
        let permit = &self.entry(pod).permit;
        self.evaluator
            .limiter()
            .allows(permit, monotonic_ns(), LastResort::None)
    }

    /// Why, or why not.
    ///
    /// # Panics
    /// There is no such pod.
    pub fn explain(&self, pod: &str) -> Explanation {
        let name = format!("default/{pod}");
        let mut all = self.evaluator.explain().into_iter();
        all.find(|e| e.pod == name).expect("a pod of this name")
    }

    /// Waits until the condition holds.
    ///
    /// # Panics
    /// It does not in time.
    pub fn wait(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        let end = Instant::now() + TIMEOUT;
        while !condition(self) {
            assert!(
                Instant::now() < end,
                "{what}: {:#?}",
                self.evaluator.explain()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
