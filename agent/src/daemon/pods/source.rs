//! Source of the pod list: a manifest file, or the API server joined with the cgroup tree.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use evictd_config::{
    Config,
    pod_manifest::{self, ManifestPod},
};
use evictd_engine::{Pod, model::settings::Mode, node_reclaim::KnownPods};
use evictd_kube::session::Cluster;
use evictd_manager::{DirResolver, ScanTarget};
use evictd_node::{
    cgroup::{swap::PodSwap, tree::FollowedCgroups},
    fs::mounts::MountPoints,
    pods::{
        builder::{PodTableBuilder, PodUpdate},
        cgroup_name,
        dirs::{POD_LOGS, PodDirs},
        opener::{Opener, Unopened},
        table::{PodEntry, PodTable},
    },
    trigger::cgroups::{CgroupEvent, CgroupEventKind},
};
use evictd_store::{disk_queue::DiskThread, journal::Journal, record::Record, restore::Restored};

use crate::daemon::{RunError, journal, policies::Policies};

/// Time after which a pod's first containers are there.
const STARTS: Duration = Duration::from_secs(10);

/// Source of the pods.
pub enum PodSource {
    Manifest {
        pods: Vec<ManifestPod>,
        mode: Mode,
        /// Pods that are open, by their cgroups.
        held: HashMap<PathBuf, Arc<PodEntry>>,
        opener: Opener,
    },
    Cluster {
        cluster: Box<Cluster>,
        joined: PodTableBuilder,
        without_cgroup: WithoutCgroup,
    },
}

/// Running pods whose cgroups are not found.
#[derive(Default)]
pub struct WithoutCgroup {
    /// UIDs at the last update.
    last: BTreeSet<String>,
    /// Number of those that were here at two updates.
    count: Arc<AtomicU64>,
}

impl WithoutCgroup {
    /// Takes the present ones: names by UID. A pod counts when it is here twice in a row, for it may just have started.
    fn update(&mut self, missing: BTreeMap<String, String>) {
        let again = missing.iter().filter(|(uid, _)| self.last.contains(*uid));
        let again: Vec<&String> = again.map(|(_, name)| name).collect();
        let pods = again.len() as u64;
        if self.count.swap(pods, Ordering::Relaxed) == 0
            && let Some(pod) = again.first()
        {
            tracing::warn!(
                pods,
                pod,
                "pods run without a cgroup that can be found: they are not evicted"
            );
        }
        self.last = missing.into_keys().collect();
    }
}

impl PodSource {
    /// The cluster, where there is one.
    pub fn cluster(&self) -> Option<&Cluster> {
        match self {
            Self::Cluster { cluster, .. } => Some(cluster),
            Self::Manifest { .. } => None,
        }
    }

    /// As [`Self::cluster`].
    pub fn cluster_mut(&mut self) -> Option<&mut Cluster> {
        match self {
            Self::Cluster { cluster, .. } => Some(cluster),
            Self::Manifest { .. } => None,
        }
    }

    /// Compares all cgroups with what is held open. Returns a new table when a pod's cgroup has come, gone, or changed
    /// below.
    pub fn refresh(&mut self) -> Option<Box<PodTable>> {
        match self {
            Self::Cluster {
                cluster, joined, ..
            } => {
                cluster.watch_clock();
                let found = joined.refresh(|uid, held| known(cluster, uid, held));
                if found.table.is_some() {
                    cluster.note_unknown(found.unknown);
                }
                found.table
            }
            Self::Manifest {
                pods,
                mode,
                held,
                opener,
            } => {
                let mut has_changed = false;
                for ManifestPod { pod, cgroup, .. } in pods.iter() {
                    let before = held.get(cgroup);
                    let found = FollowedCgroups::find(cgroup);
                    let follows = |held: &Arc<PodEntry>| {
                        found.as_ref().is_ok_and(|found| held.follows(found))
                    };
                    if before.is_some_and(follows) {
                        continue;
                    }
                    let before = before.map(|before| &**before);
                    match opener.open(pod.clone(), cgroup, found, *mode, before) {
                        Some(entry) => {
                            held.insert(cgroup.clone(), entry);
                            has_changed = true;
                        }
                        // What is open of it still serves.
                        None if opener.has_failed(cgroup) => {}
                        None => has_changed |= held.remove(cgroup).is_some(),
                    }
                }
                opener.retain(Path::exists);
                let entries = || held.values().cloned().collect();
                has_changed.then(|| Box::new(PodTable::new(entries())))
            }
        }
    }

    /// As [`Self::refresh`], where only these pods' directories, and the API server's pods, may have changed.
    pub fn follow(&mut self, directories: &BTreeSet<PathBuf>) -> Option<Box<PodTable>> {
        match self {
            Self::Cluster {
                cluster, joined, ..
            } => {
                let found = joined.follow(directories, |uid, held| known(cluster, uid, held));
                if found.table.is_some() {
                    cluster.note_unknown(found.unknown);
                }
                found.table
            }
            // A few pods, whose cgroups are looked at all at once.
            Self::Manifest { .. } => self.refresh(),
        }
    }

    /// Sets what is known of the swap of those in the table in use; of a manifest's few pods all is read for each table.
    pub fn set_swap(&mut self, swap: &Arc<PodSwap>) {
        if let Self::Cluster { joined, .. } = self {
            joined.swap = Arc::clone(swap);
        }
    }

    /// Whether a change may be one of a pod, wherever its cgroup lies.
    pub fn may_concern(&self, change: &CgroupEvent) -> bool {
        if change.kind == CgroupEventKind::Attached {
            // A process in a container that is known: an exec probe.
            return false;
        }
        match self {
            Self::Cluster { .. } => cgroup_name::parse(&change.path).is_some(),
            Self::Manifest { .. } => true,
        }
    }

    /// The directory of the pod to which a path below `mount` belongs, if it belongs to one; that is where the
    /// hierarchy is.
    pub fn directory_of(&self, mount: &Path, path: &Path) -> Option<PathBuf> {
        match self {
            Self::Cluster { joined, .. } => joined.directory_of(mount, path),
            Self::Manifest { pods, .. } => {
                let path = mount.join(path);
                let own = pods.iter().map(|pod| &pod.cgroup);
                let mut concerned =
                    own.filter(|cgroup| path.starts_with(cgroup) || cgroup.starts_with(&path));
                concerned.next().cloned()
            }
        }
    }

    /// Whether a change below this directory of a pod can wait: the pod is known, and its first containers are as well.
    pub fn has_settled(&self, directory: &Path) -> bool {
        match self {
            Self::Cluster { joined, .. } => joined.has_held(directory, STARTS),
            Self::Manifest { .. } => false,
        }
    }

    /// Looks for running pods whose cgroups are not found; to be called once a minute.
    pub fn look_for_cgroups(&mut self) {
        if let Self::Cluster {
            cluster,
            joined,
            without_cgroup,
        } = self
        {
            let found = joined.uids();
            without_cgroup.update(cluster.running_without(|uid| found.contains(uid)));
        }
    }

    /// Number of running pods whose cgroups were not found for a minute.
    pub fn without_cgroup(&self) -> Arc<AtomicU64> {
        match self {
            Self::Cluster { without_cgroup, .. } => Arc::clone(&without_cgroup.count),
            Self::Manifest { .. } => Arc::default(),
        }
    }

    /// Counts of pods that could not be opened, although their cgroups were there.
    pub fn unopened(&self) -> Arc<Unopened> {
        match self {
            Self::Cluster { joined, .. } => joined.unopened(),
            Self::Manifest { opener, .. } => opener.count(),
        }
    }

    /// Builds the target of a scan: where the disk use of a pod is found.
    pub fn target(&self, config: &Config, entry: &Arc<PodEntry>) -> ScanTarget {
        let cgroup = entry.memory.path().to_owned();
        let cgroups = entry.cgroups().to_vec();
        let places: DirResolver = match self {
            Self::Manifest { pods, .. } => {
                let own = pods.iter().find(|p| p.pod.uid == entry.pod.uid);
                let volumes = own.map(|p| p.empty_dirs.clone()).unwrap_or_default();
                Arc::new(move |_| PodDirs::fixed(volumes.clone()))
            }
            Self::Cluster { .. } => {
                let kubelet = config.filesystems.kubelet().to_owned();
                let entry = Arc::clone(entry);
                Arc::new(move |mounts: &MountPoints| {
                    let logs = Path::new(POD_LOGS);
                    let PodEntry { pod, seen, .. } = &*entry;
                    PodDirs::resolve(&kubelet, logs, pod, &cgroup, mounts, seen)
                })
            }
        };
        ScanTarget {
            uid: entry.pod.uid.clone(),
            cgroups,
            least_limit: entry.pod.least_storage_limit(),
            places,
        }
    }

    /// The emptyDirs of a pod that are to be emptied after its end; none with a cluster, where the kubelet removes
    /// them.
    pub fn leftovers(&self, uid: &str) -> Vec<PathBuf> {
        match self {
            Self::Cluster { .. } => Vec::new(),
            Self::Manifest { pods, .. } => {
                let own = pods.iter().filter(|p| p.pod.uid == uid);
                own.flat_map(|p| p.empty_dirs.iter().map(|(_, path)| path.clone()))
                    .collect()
            }
        }
    }

    /// The pods of the node, by the UID that the container runtime has for a pod.
    pub fn known_pods(&self) -> KnownPods {
        match self {
            Self::Cluster { cluster, .. } => cluster.known_pods(),
            Self::Manifest { pods, .. } => KnownPods {
                uids: Some(pods.iter().map(|p| p.pod.uid.clone()).collect()),
                has_kubelet: false,
            },
        }
    }

    /// Reports a record to the API server, where there is one.
    pub fn report(&mut self, record: Record) {
        if let Some(cluster) = self.cluster_mut() {
            match record {
                Record::Evicted(eviction) => cluster.evicted(*eviction),
                record => cluster.report(record),
            }
        }
    }

    /// Ends when the API server has something new.
    pub async fn changed(&self) {
        match self.cluster() {
            Some(cluster) => cluster.changed().await,
            None => std::future::pending().await,
        }
    }
}

/// A pod of the API server's, compared with what is held.
fn known(cluster: &Cluster, uid: &str, held: Option<&Pod>) -> PodUpdate {
    match cluster.phase_if_over(uid) {
        Some(phase) => PodUpdate::Over(phase),
        None => cluster.with_pod(uid, |pod| PodUpdate::new(pod, held)),
    }
}

/// The source of the pods, with its first table, and the state directory.
pub struct OpenedPods {
    pub source: PodSource,
    pub table: Box<PodTable>,
    pub disk: DiskThread,
    pub restored: Restored,
}

/// Where the pods come from: the cluster, or the manifest.
pub async fn open(
    config: &Config,
    scope: &Path,
    policies: &Policies,
    mut journal: Journal,
) -> Result<OpenedPods, RunError> {
    if let Some(cluster) = &config.cluster {
        let left_over = journal.follow().unwrap_or_else(|error| {
            tracing::error!(%error, "what an earlier agent has left to report cannot be read");
            Vec::new()
        });
        let (disk, restored) = journal::start(journal)?;
        let cluster = Cluster::start(
            config,
            cluster,
            disk.queue(),
            left_over,
            &policies.policies,
            &policies.pauses,
        )
        .await?;
        let mut source = PodSource::Cluster {
            cluster: Box::new(cluster),
            joined: PodTableBuilder::new(scope, config.mode),
            without_cgroup: WithoutCgroup::default(),
        };
        let table = source.refresh().unwrap_or_default();
        return Ok(OpenedPods {
            source,
            table,
            disk,
            restored,
        });
    }
    let path = config.pod_manifest.as_deref().ok_or(RunError::Missing {
        field: "podManifest",
        reason: "is needed where there is no cluster: the file that says which pods run in the scope",
    })?;
    let pods = pod_manifest::load(path, scope, &config.state_dir)?;
    let table = first_table(&pods, config.mode)?;
    let (disk, restored) = journal::start(journal)?;
    let held = |entry: &Arc<PodEntry>| (entry.memory.path().to_owned(), Arc::clone(entry));
    let held = table.entries.iter().map(held).collect();
    let mode = config.mode;
    let source = PodSource::Manifest {
        pods,
        mode,
        held,
        opener: Opener::default(),
    };
    Ok(OpenedPods {
        source,
        table,
        disk,
        restored,
    })
}

/// Every pod's cgroup must be there at the start: a manifest that names another one is a mistake.
fn first_table(pods: &[ManifestPod], mode: Mode) -> Result<Box<PodTable>, RunError> {
    let open = |(index, p): (usize, &ManifestPod)| {
        PodEntry::open(p.pod.clone(), &p.cgroup, mode)
            .map(Arc::new)
            .map_err(|source| RunError::Pod { index, source })
    };
    let entries: Result<Vec<_>, _> = pods.iter().enumerate().map(open).collect();
    Ok(Box::new(PodTable::new(entries?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_without_a_cgroup_counts_at_the_second_update() {
        let mut without = WithoutCgroup::default();
        let mut update = |uids: &[&str]| {
            let missing = uids.iter().map(|uid| ((*uid).to_owned(), String::new()));
            without.update(missing.collect());
            without.count.load(Ordering::Relaxed)
        };
        assert_eq!(update(&["a"]), 0, "it may just have been started");
        assert_eq!(update(&["a", "b"]), 1);
        assert_eq!(update(&["a", "b"]), 2);
        assert_eq!(update(&["c"]), 0);
    }
}
