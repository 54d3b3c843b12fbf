//! The manager: everything that the fast path is not there for. It must not know the fast path, the API server, the
//! container runtime, the store or the network.
//!
//! The fast path answers hard memory pressure within microseconds and does nothing else. The other signals (process
//! ids, inodes, bytes on disk), the soft thresholds, pods above their own limits on local storage, and what the node
//! says of all that are the work of this thread: it sleeps until a trigger is crossed or the nearest threshold could
//! have been reached, looks at everything, asks the engine's [`evictd_engine::Planner`], and kills or asks. It may
//! allocate, and it does what takes time; what waits for a network is done elsewhere.
#![cfg_attr(test, allow(clippy::disallowed_types, clippy::disallowed_methods))]

mod commands;
mod disk_scan;
mod events;
mod handle;
mod manager_loop;
mod mitigation;
mod pod_set;
mod sources;
mod status;
mod usage;

pub use commands::{Command, CommandQueue};
pub use disk_scan::{DirResolver, DiskScanner, DiskUse, ScanTarget};
pub use events::{
    ManagerEvent, ManagerEventQueue, ManagerEviction, NodeReclaimOutcome, NodeReclaimRequest,
    SoftEvictionRequest, ThresholdMet,
};
pub use handle::ManagerHandle;
pub use manager_loop::ManagerSetup;
pub use mitigation::{
    MitigationAction, MitigationCounters, MitigationOutcome, MitigationRequest, MitigationThreads,
    MitigationWorker, PodEffect, StepEffect,
};
pub use pod_set::PodSet;
pub use sources::{DiskSource, DiskSources, SignalSources, observe_memory};
pub use status::{SharedStatus, Status};

#[cfg(test)]
mod tests {
    use std::{fs, path::Path, sync::Arc, time::Duration};

    use evictd_engine::{
        Layout, NodeReclaimOptions, PlannerSettings, Pod, Threshold,
        model::settings::{EvictionConfig, MitigationConfig, Mode, RankingStrategy},
    };
    use evictd_node::{
        cgroup::memory::MemoryCgroup,
        memory_scope::{Scope, ScopeKind},
        pods::table::PodEntry,
    };

    use crate::{
        CommandQueue, DiskScanner, ManagerEventQueue, ManagerSetup, PodSet, SignalSources,
        manager_loop::ManagerLoop,
    };

    pub(crate) const MIB: u64 = 1 << 20;

    /// A pod, whose directory looks like a cgroup of version 2 and is made where it is not there.
    pub(crate) fn pod(dir: &Path, name: &str, is_deleting: bool) -> Arc<PodEntry> {
        let path = dir.join(name);
        fs::create_dir_all(&path).unwrap();
        for (file, text) in [
            ("memory.current", "1048576"),
            ("memory.stat", "inactive_file 0\nactive_file 0\n"),
            ("memory.high", "max"),
            ("memory.max", "max"),
            ("cgroup.procs", ""),
        ] {
            fs::write(path.join(file), text).unwrap();
        }
        let pod = Pod {
            uid: name.to_owned(),
            namespace: "default".to_owned(),
            is_deleting,
            ..Pod::default()
        };
        Arc::new(PodEntry::open(pod, &path, Mode::Evictd).unwrap())
    }

    /// Settings and parts of the manager of a node of 100 MiB without pods, beside a kubelet.
    pub(crate) fn setup(dir: &Path, thresholds: Vec<Threshold>) -> ManagerSetup {
        let node = pod(dir, "node", false).memory.path().to_owned();
        let cgroup = MemoryCgroup::open(&node).unwrap();
        let total = ScopeKind::Machine { total: 100 * MIB };
        let memory = Scope::open(cgroup, total, |_| Default::default(), false).unwrap();
        ManagerSetup {
            settings: PlannerSettings {
                eviction: EvictionConfig {
                    thresholds,
                    max_pod_grace_period_seconds: 0,
                    pressure_transition_period: Duration::ZERO,
                    reserved_memory: 0,
                    limits_local_storage: false,
                },
                layout: Layout::default(),
                strategy: RankingStrategy::Kubelet,
                mode: Mode::Evictd,
                fastpath_signals: Vec::new(),
                kubelets_signals: Vec::new(),
                has_api_server: true,
            },
            sources: SignalSources::new(memory, None, None, None),
            scanner: DiskScanner::start(None).unwrap(),
            pods: PodSet::default(),
            limiter: Arc::default(),
            shadow: false,
            node_reclaim: NodeReclaimOptions {
                runtime: None,
                kubelet: true,
            },
            mitigation: MitigationConfig::default(),
            memory_v1: None,
            restored: Default::default(),
            on_kill: Box::new(|_, _, _| ()),
        }
    }

    pub(crate) fn manager_loop(setup: ManagerSetup) -> ManagerLoop {
        let commands = CommandQueue::new().unwrap();
        let events = ManagerEventQueue::new().unwrap();
        ManagerLoop::new(setup, events, commands, Arc::default(), Arc::default())
    }

    /// A line of the log waits for the lock and for the reader of stderr. Only what takes steps before an eviction, on
    /// threads of normal priority, may write one.
    #[test]
    fn the_managers_thread_does_not_log() {
        fn check(directory: &Path) {
            for entry in fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                let name = path.to_string_lossy();
                if path.is_dir() {
                    check(&path);
                } else if !name.contains("/src/mitigation/") {
                    let text = fs::read_to_string(&path).unwrap();
                    let macros = concat!("tracing", "::");
                    assert!(!text.contains(macros), "{}", path.display());
                }
            }
        }
        check(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    }
}
