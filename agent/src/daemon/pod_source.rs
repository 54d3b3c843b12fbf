//! Who says who runs here.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicU64},
};

use evictd_config::{
    Config,
    pod_manifest::{self, ManifestPod},
};
use evictd_engine::{model::settings::Mode, reclaim::KnownPods};
use evictd_kube::session::Cluster;
use evictd_manager::{POD_LOGS, ScanTarget, fixed, of_kubelet_pod};
use evictd_node::{
    cgroup::memory::{descendant_ids, descendants},
    pods::{
        builder::PodTableBuilder,
        opener::Opener,
        table::{Entry, PodTable},
    },
};
use evictd_store::{disk_queue::DiskThread, journal::Journal, past::Restored, record::RequestRecord};

use super::{RunError, policies::Policies, recall::recall};

/// Where the pods come from.
pub(super) enum PodSource {
    Manifest {
        pods: Vec<ManifestPod>,
        mode: Mode,
        fingerprint: Vec<(PathBuf, u64)>,
        opener: Opener,
    },
    Cluster {
        cluster: Box<Cluster>,
        joined: PodTableBuilder,
    },
}

impl PodSource {
    /// A new table when a pod's cgroup has come, gone, or changed below.
    pub(super) fn refresh(&mut self) -> Option<Box<PodTable>> {
        match self {
            Self::Cluster { cluster, joined } => {
                cluster.watch_clock();
                let look = joined.refresh(|uid| cluster.pod(uid));
                if look.table.is_some() {
                    cluster.note_unknown(look.unknown);
                }
                look.table
            }
            Self::Manifest {
                pods,
                mode,
                fingerprint: before,
                opener,
            } => {
                let now = fingerprint(pods);
                let failures = opener.failures();
                if now == *before && failures == 0 {
                    return None;
                }
                let entries: Vec<_> = pods
                    .iter()
                    .filter_map(|p| opener.open(p.pod.clone(), &p.cgroup, *mode))
                    .collect();
                let is_same = now == *before && opener.failures() >= failures;
                *before = now;
                (!is_same).then(|| Box::new(PodTable::new(entries)))
            }
        }
    }

    /// How many pods could not be opened so far, although their cgroups were there.
    pub(super) fn unopened(&self) -> Arc<AtomicU64> {
        match self {
            Self::Cluster { joined, .. } => joined.unopened(),
            Self::Manifest { opener, .. } => opener.count(),
        }
    }

    /// A pod that goes because the API server has asked it to, each once.
    pub(super) fn going(&mut self) -> Option<RequestRecord> {
        match self {
            Self::Cluster { cluster, .. } => cluster.next_request(),
            Self::Manifest { .. } => None,
        }
    }

    /// Where the disk use of these pods is found.
    pub(super) fn errands(&self, config: &Config, entries: &[Arc<Entry>]) -> Vec<ScanTarget> {
        let target = |entry: &Arc<Entry>| {
            let cgroup = entry.memory.path().to_owned();
            let cgroups = descendant_ids(&cgroup);
            let places = match self {
                Self::Manifest { pods, .. } => {
                    let own = pods.iter().find(|p| p.pod.uid == entry.pod.uid);
                    fixed(own.map(|p| p.empty_dirs.clone()).unwrap_or_default())
                }
                Self::Cluster { .. } => {
                    let kubelet = config.filesystems.kubelet().to_owned();
                    let pod = entry.pod.clone();
                    Arc::new(move || of_kubelet_pod(&kubelet, Path::new(POD_LOGS), &pod, &cgroup))
                }
            };
            ScanTarget {
                uid: entry.pod.uid.clone(),
                cgroups,
                places,
            }
        };
        entries.iter().map(target).collect()
    }

    /// The emptyDirs of a pod that is gone, to be emptied; where there is a kubelet, it is its job.
    pub(super) fn leftovers(&self, uid: &str) -> Vec<PathBuf> {
        match self {
            Self::Cluster { .. } => Vec::new(),
            Self::Manifest { pods, .. } => {
                let own = pods.iter().filter(|p| p.pod.uid == uid);
                own.flat_map(|p| p.empty_dirs.iter().map(|(_, path)| path.clone()))
                    .collect()
            }
        }
    }

    /// The pods of the node, by the UID that the container runtime has for a pod; `None` as long as they are not known.
    pub(super) fn known_pods(&self) -> KnownPods {
        match self {
            Self::Cluster { cluster, .. } => cluster.known_pods(),
            Self::Manifest { pods, .. } => Some(pods.iter().map(|p| p.pod.uid.clone()).collect()),
        }
    }

    /// Ends when there is reason to look before the time.
    pub(super) async fn changed(&self) {
        match self {
            Self::Cluster { cluster, .. } => cluster.changed().await,
            Self::Manifest { .. } => std::future::pending().await,
        }
    }
}

<<<<<<< main
/// Where the pods come from: the cluster, or the manifest. The journal is opened before a server is asked: of two agents on
=======
/// The source of the pods, with its first table, and the state directory.
pub(super) struct Opened {
    pub source: PodSource,
    pub table: Box<PodTable>,
    pub disk: DiskThread,
    pub recalled: Restored,
}

/// Who says who runs here: the cluster, or the manifest. The journal is opened before anybody is asked: of two agents on
>>>>>>> threads
/// one node the second is refused.
pub(super) async fn open(
    config: &Config,
    scope: &Path,
    policies: &Policies,
) -> Result<Opened, RunError> {
    if let Some(cluster) = &config.cluster {
        let mut journal = Journal::open(&config.state_dir)?;
        let left_over = journal.follow()?;
        let (disk, recalled) = start_disk(journal)?;
        let (policies, pauses) = (&policies.policies, &policies.pauses);
        let journal = (disk.queue(), left_over);
        let cluster = Cluster::start(config, cluster, journal, policies, pauses).await?;
        let mut source = PodSource::Cluster {
            cluster: Box::new(cluster),
            joined: PodTableBuilder::new(scope, config.mode),
        };
        let table = source.refresh().unwrap_or_default();
        return Ok(Opened {
            source,
            table,
            disk,
            recalled,
        });
    }
    let path = config.pod_manifest.as_deref().ok_or(RunError::Missing {
        field: "podManifest",
        reason: "is needed where there is no cluster: the file that says who runs in the scope",
    })?;
    let pods = pod_manifest::load(path, scope)?;
    let table = first_table(&pods, config.mode)?;
    let (disk, recalled) = start_disk(Journal::open(&config.state_dir)?)?;
    let fingerprint = fingerprint(&pods);
    let mode = config.mode;
    let source = PodSource::Manifest {
        pods,
        mode,
        fingerprint,
        opener: Opener::default(),
    };
    Ok(Opened {
        source,
        table,
        disk,
        recalled,
    })
}

/// Reads the past from the journal and hands it over to the thread that writes it from now on.
fn start_disk(mut journal: Journal) -> Result<(DiskThread, Restored), RunError> {
    let recalled = recall(&mut journal);
    Ok((DiskThread::start(journal)?, recalled))
}

/// Every pod's cgroup must be there at the start: a manifest that names another one is a mistake.
fn first_table(pods: &[ManifestPod], mode: Mode) -> Result<Box<PodTable>, RunError> {
    let open = |(index, p): (usize, &ManifestPod)| {
        Entry::open(p.pod.clone(), &p.cgroup, mode)
            .map(Arc::new)
            .map_err(|source| RunError::Pod { index, source })
    };
    let entries: Result<Vec<_>, _> = pods.iter().enumerate().map(open).collect();
    Ok(Box::new(PodTable::new(entries?)))
}

/// Which cgroups exist, with their ids.
fn fingerprint(pods: &[ManifestPod]) -> Vec<(PathBuf, u64)> {
    let id = |path: &Path| fs::metadata(path).map(|m| m.ino()).ok();
    pods.iter()
        .flat_map(|p| descendants(&p.cgroup).unwrap_or_default())
        .filter_map(|path| id(&path).map(|id| (path, id)))
        .collect()
}
