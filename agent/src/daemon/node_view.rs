//! The node and its pods as the subcommands `check` and `top` see them: no program is attached, no server is asked, and
//! nothing is open that could kill.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use evictd_config::{Config, pod_manifest};
use evictd_engine::{
    Layout, Observations, Pod, PodUsage, Signal, Threshold, Usages, units::signed,
};
use evictd_kube::{cache::ClusterSnapshot, pod_store::PodStore};
use evictd_manager::{SignalSources, observe_memory};
use evictd_node::{
    cgroup::{limited::headroom_below_limits, memory::MemoryCgroup, pids},
    memory_scope::Scope,
    pods::discovery::{guess, pods_below},
    proc::machine::{has_swap, memory_total},
};

use super::{
    RunError,
    memory::{Allocatable, NodeMemory, node_scopes},
    signals,
};

/// Source of the pods.
enum Source {
    /// The manifest: pods and their cgroups.
    Manifest(Vec<(Pod, PathBuf)>),
    /// The cgroup tree, and what the agent remembers of the API server's answers.
    Tree { root: PathBuf, state_dir: PathBuf },
}

/// View of a node: its signals and its pods.
pub struct NodeView {
    /// The manager's sources.
    sources: SignalSources,
    /// The fast path's scopes, for hard thresholds.
    hard_memory: (Scope, Option<Scope>),
    source: Source,
    config: Config,
    memory: NodeMemory,
}

/// The node at one moment.
#[derive(Debug)]
pub struct NodeSample {
    /// Observations of the signals, as hard thresholds are held against them.
    pub observations: Observations,
    /// Observations of the signals, as soft thresholds are held against them: memory guards do not concern these.
    pub soft: Observations,
    /// The pods.
    pub pods: Vec<Pod>,
    /// Memory and processes of the pods.
    pub usages: Usages,
    /// Bytes until the first limit of their own, by UID; absent for pods without one.
    pub until_limit: HashMap<String, u64>,
    /// Pods that are known by their cgroup only.
    pub unknown: usize,
}

impl NodeSample {
    /// Observations against which a threshold is held.
    pub fn observations_for(&self, threshold: &Threshold) -> &Observations {
        match threshold.is_hard() {
            true => &self.observations,
            false => &self.soft,
        }
    }
}

/// Whether a threshold is in force as it is configured: not one that the limit of the pods' cgroup cannot keep, which is
/// cut.
pub fn is_in_force(threshold: &Threshold, observations: &Observations) -> bool {
    let is_of_pods = threshold.signal == Signal::AllocatableMemoryAvailable && threshold.is_hard();
    let limit = observations.get(threshold.signal).filter(|_| is_of_pods);
    limit.is_none_or(|pods| signed(threshold.amount(pods.capacity)) < pods.capacity)
}

impl NodeView {
    /// Opens what an agent with this configuration watches.
    ///
    /// # Errors
    /// As at the agent's own start: a scope or a manifest that cannot be used.
    pub fn open(config: &Config) -> Result<Self, RunError> {
        let node = node_scopes(config)?;
        let root = node.fastpath.cgroup().path().to_owned();
        let pods = Allocatable::new(config, &node.fastpath).update_or_log();
        let source = match config.pod_manifest.as_deref() {
            Some(path) if config.cluster.is_none() => {
                let pods = pod_manifest::load(path, &root, &config.state_dir)?;
                Source::Manifest(pods.into_iter().map(|p| (p.pod, p.cgroup)).collect())
            }
            _ => Source::Tree {
                root,
                state_dir: config.state_dir.clone(),
            },
        };
        let memory = NodeMemory::new(config, &node.fastpath, has_swap())?;
        let (pods, hard_pods) = match pods {
            Some(pods) => (pods.manager, Some(pods.fastpath)),
            None => (None, None),
        };
        Ok(Self {
            sources: signals::without_hooks(config, node.manager, pods),
            hard_memory: (node.fastpath, hard_pods),
            source,
            config: config.clone(),
            memory,
        })
    }

    /// The memory of the node, in bytes.
    pub fn capacity(&self) -> u64 {
        self.memory.capacity()
    }

    /// Layout of the disks.
    pub fn layout(&self) -> Layout {
        self.sources.layout()
    }

    /// Samples the node; `now` in nanoseconds of CLOCK_MONOTONIC. Pods without a cgroup are left out.
    pub fn sample(&mut self, now: i64) -> NodeSample {
        let (pods, unknown) = self.pods();
        // What cannot be in force is in no agent either.
        if let Ok(Some(scopes)) = self.memory.update(&self.config) {
            self.sources.memory = scopes.manager;
            self.hard_memory.0 = scopes.fastpath;
        }
        let soft = self.sources.sample(now);
        let mut observations = soft;
        let (memory, pods_memory) = &self.hard_memory;
        let hard = observe_memory(memory, pods_memory.as_ref(), now);
        for signal in Signal::MEMORY {
            if let Some(observation) = hard.get(signal) {
                observations.set(signal, observation);
            }
        }
        let mut sample = NodeSample {
            observations,
            soft,
            pods: Vec::with_capacity(pods.len()),
            usages: Usages::default(),
            until_limit: HashMap::new(),
            unknown,
        };
        for (pod, cgroup) in pods {
            let Ok(memory) = MemoryCgroup::open(&cgroup) else {
                continue;
            };
            if let Ok(reading) = memory.read() {
                let usage = PodUsage {
                    memory_working_set: Some(reading.working_set()),
                    processes: pids::of_pod(&cgroup).ok().map(|pids| pids.processes),
                    ..PodUsage::default()
                };
                sample.usages.insert(pod.uid.clone(), usage);
            }
            if let Some(room) = headroom_below_limits(&memory) {
                sample.until_limit.insert(pod.uid.clone(), room);
            }
            sample.pods.push(pod);
        }
        sample
    }

    /// Pods with their cgroups, and how many of them are only guessed at.
    fn pods(&self) -> (Vec<(Pod, PathBuf)>, usize) {
        let (root, state_dir) = match &self.source {
            Source::Manifest(pods) => return (pods.clone(), 0),
            Source::Tree { root, state_dir } => (root, state_dir),
        };
        // Without it there is still the tree.
        let mut known = PodStore::default();
        known.restore(ClusterSnapshot::read(state_dir).unwrap_or_default().pods);
        let mut unknown = 0;
        // What a score is made with.
        let memory_total = memory_total(Path::new("/proc")).unwrap_or(self.capacity());
        let pods = pods_below(root).found.into_iter().map(|cgroup| {
            let pod = known.get(&cgroup.name.uid).cloned().unwrap_or_else(|| {
                unknown += 1;
                guess(&cgroup, memory_total)
            });
            (pod, cgroup.path)
        });
        (pods.collect(), unknown)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// A cgroup of v1 whose page cache waits for the disk: the memory guard does not count that as available.
    // R5
    #[test]
    fn soft_thresholds_are_held_against_the_kubelets_count() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: String| fs::write(dir.path().join(name), text).unwrap();
        write("memory.usage_in_bytes", (450 * MIB).to_string());
        write("memory.limit_in_bytes", (500 * MIB).to_string());
        let cache = 200 * MIB;
        write(
            "memory.stat",
            format!("total_dirty {cache}\ntotal_inactive_file {cache}\ntotal_active_file 0\n"),
        );
        let amount = json!({ "memory.available": "100Mi" });
        let config = json!({
            "scope": { "cgroup": dir.path() },
            "evictionHard": amount,
            "evictionSoft": amount,
            "evictionSoftGracePeriod": { "memory.available": "1m" },
        });
        let config = Config::from_values(config, None).unwrap();
        let sample = NodeView::open(&config).unwrap().sample(1);
        let of_node = |t: &&Threshold| t.signal == Signal::MemoryAvailable;
        let thresholds = config.eviction.thresholds.iter().filter(of_node);
        let met = thresholds.map(|t| (t.is_hard(), t.is_met(sample.observations_for(t), false)));
        let mut met: Vec<_> = met.collect();
        met.sort_unstable();
        assert_eq!(met, [(false, false), (true, true)]);
    }
}
