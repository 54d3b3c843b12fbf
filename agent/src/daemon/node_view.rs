//! The node and its pods as subcommands see them: nothing is attached, no server is asked, and nothing is
//! open that could kill.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use evictd_config::{Config, pod_manifest};
use evictd_engine::{Layout, Observations, Pod, PodUsage, Usages};
use evictd_kube::{cache::ClusterSnapshot, pod_store::PodStore};
use evictd_manager::SignalSources;
use evictd_node::{
    cgroup::{limited::headroom_below_limits, memory::MemoryCgroup, pids},
    pods::discovery::{guess, pods_below},
    proc::machine::memory_total,
};

use super::{RunError, allocatable::Allocatable, node_memory::NodeMemory, scope::node_scopes};
use crate::daemon::sources;

/// Source of the pods.
enum Source {
    /// The manifest: pods and their cgroups.
    Manifest(Vec<(Pod, PathBuf)>),
    /// The cgroup tree, and what the agent remembers of the API server's answers.
    Tree { root: PathBuf, state_dir: PathBuf },
}

/// View of a node: its signals and its pods.
pub struct NodeView {
    sources: SignalSources,
    source: Source,
    config: Config,
    memory: NodeMemory,
}

/// One look.
#[derive(Debug)]
pub struct NodeSample {
    /// Observations of the signals.
    pub observations: Observations,
    /// The pods.
    pub pods: Vec<Pod>,
    /// Memory and processes of the pods.
    pub usages: Usages,
    /// Bytes until the first limit of their own, by UID; absent for pods without one.
    pub until_limit: HashMap<String, u64>,
    /// Pods that are known by their cgroup only.
    pub unknown: usize,
}

impl NodeView {
    /// Opens what the agent with this configuration looks at.
    ///
    /// # Errors
    /// As at the agent's own start: a scope or a manifest that cannot be used.
    pub fn open(config: &Config) -> Result<Self, RunError> {
        let scope = node_scopes(config)?.fastpath;
        let root = scope.cgroup().path().to_owned();
        let pods_scope = Allocatable::new(config, &scope).first();
        let source = match config.pod_manifest.as_deref() {
            Some(path) if config.cluster.is_none() => {
                let pods = pod_manifest::load(path, &root)?;
                Source::Manifest(pods.into_iter().map(|p| (p.pod, p.cgroup)).collect())
            }
            _ => Source::Tree {
                root,
                state_dir: config.state_dir.clone(),
            },
        };
        let memory = NodeMemory::new(config, &scope)?;
        let pods_scope = pods_scope.map(|scopes| scopes.fastpath);
        Ok(Self {
            sources: sources::without_hooks(config, scope, pods_scope),
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

    /// Looks at everything; `now` in nanoseconds of CLOCK_MONOTONIC. Pods whose cgroup is not there are left out.
    pub fn sample(&mut self, now: i64) -> NodeSample {
        let (pods, unknown) = self.pods();
        // What cannot be in force is in no agent either.
        if let Ok(Some(scopes)) = self.memory.look(&self.config) {
            self.sources.memory = scopes.fastpath;
        }
        let mut seen = NodeSample {
            observations: self.sources.sample(now),
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
                seen.usages.insert(pod.uid.clone(), usage);
            }
            if let Some(room) = headroom_below_limits(&memory) {
                seen.until_limit.insert(pod.uid.clone(), room);
            }
            seen.pods.push(pod);
        }
        seen
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
