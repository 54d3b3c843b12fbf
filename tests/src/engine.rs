//! A node made of numbers, and an eviction manager that looks at it.

use std::time::Duration;

use evictd_config::Config;
use evictd_engine::{
    EvictionDecision, Layout, Observation, Observations, Plan, Planner, Pod, PodUsage, Settings,
    Signal, Snapshot, Usages,
    model::settings::{Mode, RankingStrategy},
};
use serde_json::{Value, json};

pub const MI: u64 = 1 << 20;

#[derive(Clone, Debug, Default)]
pub struct Node {
    pub observations: Observations,
    pub pods: Vec<Pod>,
    pub usages: Usages,
}

impl Node {
    /// A node of 8Gi that has this much memory left, measured at this second.
    pub fn with_memory(available_mi: i64, second: i64) -> Self {
        let mut node = Self::default();
        node.observe(Signal::MemoryAvailable, available_mi * MI as i64, second);
        node
    }

    /// Sets what is left of a signal, of a capacity of 8Gi.
    pub fn observe(&mut self, signal: Signal, available: i64, second: i64) {
        let time = Some(second * 1_000_000_000);
        self.observations.set(
            signal,
            Observation {
                available,
                capacity: 8 << 30,
                time,
            },
        );
    }

    /// Adds a pod that uses this much memory, beyond a request of nothing. Its files were walked: it has none.
    #[must_use]
    pub fn pod(mut self, name: &str, usage_mi: u64) -> Self {
        self.usages.insert(
            name.to_owned(),
            PodUsage {
                memory_working_set: Some(usage_mi * MI),
                ephemeral_storage: Some(0),
                ..PodUsage::default()
            },
        );
        self.pods.push(Pod {
            uid: name.to_owned(),
            namespace: "default".to_owned(),
            name: name.to_owned(),
            ..Pod::default()
        });
        self
    }

    /// Changes the pod that was added last.
    #[must_use]
    pub fn that(mut self, change: impl FnOnce(&mut Pod)) -> Self {
        if let Some(pod) = self.pods.last_mut() {
            change(pod);
        }
        self
    }

    /// The node as the manager takes it.
    pub fn snapshot(&self) -> Snapshot<'_> {
        Snapshot {
            observations: &self.observations,
            pods: &self.pods,
            usages: &self.usages,
        }
    }
}

/// A manager with this configuration, on a node with one disk.
pub fn manager(mode: Mode, config: Value) -> Planner {
    let config = Config::from_values(config, None).unwrap_or_else(|e| panic!("{e}"));
    manager_of(Settings {
        eviction: config.eviction,
        layout: Layout::default(),
        strategy: config.ranking_strategy,
        mode,
        externally_handled: Vec::new(),
        static_pods_keep_files: false,
    })
}

/// A manager with these settings, whose conditions stay for a minute.
pub fn manager_of(mut settings: Settings) -> Planner {
    settings.eviction.pressure_transition_period = Duration::from_secs(60);
    Planner::new(settings)
}

/// A round at a second of the clock.
pub fn step(manager: &mut Planner, second: i64, node: &Node) -> Plan {
    manager.plan(second * 1_000_000_000, node.snapshot())
}

/// The names of victims, in the order in which they were chosen.
pub fn names(evictions: &[EvictionDecision]) -> Vec<&str> {
    evictions
        .iter()
        .map(|eviction| eviction.name.as_str())
        .collect()
}

pub const STRATEGIES: [RankingStrategy; 3] = [
    RankingStrategy::Kubelet,
    RankingStrategy::Qos,
    RankingStrategy::Usage,
];

/// A configuration: a hard memory threshold of 1Gi, and nothing else.
pub fn one_gib() -> Value {
    json!({"evictionHard": {"memory.available": "1Gi"}, "enforceNodeAllocatable": []})
}
