//! A node made of numbers, and a planner that looks at it.

use evictd_config::Config;
use evictd_engine::{
    ContainerUsage, EmptyDir, EvictionDecision, Layout, NodeBounds, Observation, Observations,
    Plan, Planner, PlannerSettings, PodUsage, RestoredPending, Snapshot, Usages, Volume,
    VolumeUsage,
    model::{quantity::Quantity, settings::RankingStrategy},
    record::KillOutcome,
    units,
};

use crate::prelude::*;

pub const MI: u64 = 1 << 20;
/// Nanoseconds.
pub const SECOND: i64 = units::SECOND.cast_signed();

#[derive(Clone, Debug, Default)]
pub struct Node {
    pub observations: Observations,
    pub pods: Vec<Pod>,
    pub usages: Usages,
    pub bounds: NodeBounds,
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
        let time = Some(second * SECOND);
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

    fn usage(&mut self, name: &str) -> &mut PodUsage {
        self.usages.entry(name.to_owned()).or_default()
    }

    /// Sets how many processes a pod has.
    pub fn processes(&mut self, name: &str, count: u64) {
        self.usage(name).processes = Some(count);
    }

    /// Sets what a pod has on the disk: logs of this many bytes and inodes.
    pub fn logs(&mut self, name: &str, bytes: u64, inodes: u64) {
        let mut container = ContainerUsage::default();
        container.logs.bytes = Some(bytes);
        container.logs.inodes = Some(inodes);
        self.usage(name).containers = vec![container];
    }

    /// Gives a pod an emptyDir with a size limit, and what is in it.
    pub fn empty_dir(&mut self, name: &str, limit: u64, used: u64) {
        let volume = Volume {
            name: "v".into(),
            is_local: true,
            empty_dir: Some(EmptyDir {
                size_limit: Some(Quantity::bytes(limit)),
            }),
        };
        let pods = self.pods.iter_mut().filter(|pod| pod.name == name);
        pods.for_each(|pod| pod.volumes = vec![volume.clone()]);
        let mut volume = VolumeUsage {
            name: "v".into(),
            ..VolumeUsage::default()
        };
        volume.fs.bytes = Some(used);
        self.usage(name).volumes = vec![volume];
    }

    /// The node as the planner takes it.
    pub fn snapshot(&self) -> Snapshot<'_> {
        Snapshot {
            observations: &self.observations,
            pods: &self.pods,
            usages: &self.usages,
            bounds: self.bounds,
        }
    }
}

/// The settings of this configuration for a node with one disk, whose pods may use all of it.
pub fn settings(mode: Mode, mut config: Value) -> PlannerSettings {
    config["enforceNodeAllocatable"] = json!([]);
    let config = Config::from_values(config, None).unwrap_or_else(|e| panic!("{e}"));
    PlannerSettings {
        eviction: config.eviction,
        layout: Layout::default(),
        strategy: config.ranking_strategy,
        mode,
        fastpath_signals: Vec::new(),
        kubelets_signals: Vec::new(),
        has_api_server: false,
    }
}

/// A victim of the agent before, which was killed for memory at this moment.
pub fn killed_for_memory(uid: &str, at: i64) -> RestoredPending {
    RestoredPending {
        uid: uid.to_owned(),
        at,
        is_requested: false,
        is_dead: false,
        signal: Some(Signal::MemoryAvailable),
        usage: 0,
        available: 0,
        other_signals: Vec::new(),
    }
}

/// A planner with this configuration.
pub fn planner(mode: Mode, config: Value) -> Planner {
    planner_of(settings(mode, config))
}

/// A planner with these settings, whose conditions stay for a minute.
pub fn planner_of(mut settings: PlannerSettings) -> Planner {
    settings.eviction.pressure_transition_period = Duration::from_secs(60);
    Planner::new(settings)
}

/// A round at a second of the clock.
pub fn step(planner: &mut Planner, second: i64, node: &Node) -> Plan {
    planner.plan(second * SECOND, node.snapshot())
}

/// The fast path kills a pod for memory at a second of the clock.
pub fn fastpath_kills(planner: &mut Planner, second: i64, node: &Node, uid: &str) {
    let (at, memory) = (second * SECOND, Signal::MemoryAvailable);
    planner.note_fastpath_eviction(at, node.snapshot(), uid, memory, KillOutcome::Killed);
}

/// The names of victims, in the order in which they were chosen.
pub fn names(evictions: &[EvictionDecision]) -> Vec<&str> {
    evictions
        .iter()
        .map(|eviction| eviction.name.as_str())
        .collect()
}

/// A round, with the pods that go if the node is like this `after` its reclaim.
pub fn reclaimed(
    planner: &mut Planner,
    second: i64,
    before: &Node,
    after: &Node,
) -> (Plan, Vec<EvictionDecision>) {
    let round = step(planner, second, before);
    let (before, after) = (before.snapshot(), after.snapshot());
    let evictions = planner.after_reclaim(second * SECOND, &round, before, after);
    (round, evictions)
}

/// A round's evictions, with those after a reclaim that brings nothing.
pub fn decided(planner: &mut Planner, second: i64, node: &Node) -> Vec<EvictionDecision> {
    let (mut round, after) = reclaimed(planner, second, node, node);
    if !round.node_reclaim.is_empty() {
        round.evictions.extend(after);
    }
    round.evictions
}

/// Decides a round like [`decided`], and returns the names of the pods that are evicted.
pub fn evicted(planner: &mut Planner, second: i64, node: &Node) -> Vec<String> {
    let decided = decided(planner, second, node).into_iter();
    decided.map(|eviction| eviction.name).collect()
}

/// The pods that go in the first round where memory has a hard threshold of 1Gi.
pub fn first(mode: Mode, node: &Node) -> Vec<String> {
    evicted(&mut planner(mode, one_gib()), 1, node)
}

/// A second, what is left of a signal by then, and the pods that go.
pub type Round = (i64, i64, &'static [&'static str]);

/// Plays rounds one after the other.
#[track_caller]
pub fn plays(planner: &mut Planner, node: &mut Node, signal: Signal, rounds: &[Round]) {
    for (second, available, expected) in rounds {
        node.observe(signal, *available, *second);
        let evicted = evicted(planner, *second, node);
        assert_eq!(evicted, *expected, "{signal}, second {second}");
    }
}

/// Bytes, as what is left of a signal.
pub const fn mib(count: i64) -> i64 {
    count << 20
}

pub const STRATEGIES: [RankingStrategy; 3] = [
    RankingStrategy::Kubelet,
    RankingStrategy::Qos,
    RankingStrategy::Usage,
];

/// A configuration: a hard memory threshold of 1Gi, and nothing else.
pub fn one_gib() -> Value {
    json!({"evictionHard": {"memory.available": "1Gi"}})
}
