//! What each pod uses, measured when it is needed.

use std::{
    borrow::Cow,
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use evictd_engine::{
    ContainerUsage, FsUsage, PodUsage, Resource, Usages,
    model::{settings::Mode, usage::MemoryReading},
};
use evictd_node::{
    cgroup::tree::followed_ids, pods::table::PodEntry, trigger::inodes::CgroupCountReader,
};
use evictd_sys::clock::monotonic_ns;

use crate::{
    DiskScanner, PodSet, SignalSources,
    disk_scan::{DiskUse, Found, container},
};

/// The use of all pods. Disks are walked in the background; everything else is read when it is asked for.
pub struct UsageCollector {
    scanner: Arc<DiskScanner>,
    cgroup_counts: Option<CgroupCountReader>,
    mode: Mode,
    walked: u64,
    walks: Walks,
    usages: Usages,
}

/// The last walks of the pods' directories.
#[derive(Default)]
struct Walks {
    found: Arc<Found>,
    /// Pods that were killed, by UID, and when: one that runs again has other files than the last walk has found.
    killed: HashMap<String, u64>,
}

impl Walks {
    /// The last walk of a pod, without what holds of the time before it was killed.
    fn of(&self, uid: &str) -> Option<Cow<'_, DiskUse>> {
        let walk = self.found.get(uid)?;
        match self.killed.get(uid) {
            None => Some(Cow::Borrowed(walk)),
            Some(at) => walk.after_kill(*at).map(Cow::Owned),
        }
    }
}

impl UsageCollector {
    /// Creates a collector that has measured nothing yet.
    pub fn new(
        scanner: Arc<DiskScanner>,
        cgroup_counts: Option<CgroupCountReader>,
        mode: Mode,
    ) -> Self {
        Self {
            scanner,
            cgroup_counts,
            mode,
            walked: u64::MAX,
            walks: Walks::default(),
            usages: Usages::default(),
        }
    }

    /// A pod was killed: what its files were is not held against the one that may run in its place. Its next walk
    /// counts.
    pub fn forget_files(&mut self, uid: &str) {
        let Some(usage) = self.usages.get_mut(uid) else {
            return;
        };
        usage.containers.clear();
        usage.volumes.clear();
        usage.ephemeral_storage = None;
        usage.walk_began = None;
        self.walks.killed.insert(uid.to_owned(), monotonic_ns());
    }

    /// The numbers as they are known.
    pub fn usages(&self) -> &Usages {
        &self.usages
    }

    /// All pods have numbers from now on, if only zeros: a pod without any would be the first to go.
    pub fn set_pods(&mut self, pods: &PodSet) {
        self.walked = u64::MAX;
        let known: HashSet<&str> = pods.pods.iter().map(|pod| pod.uid.as_str()).collect();
        self.usages.retain(|uid, _| known.contains(uid.as_str()));
        let killed = &mut self.walks.killed;
        killed.retain(|uid, _| known.contains(uid.as_str()));
        for pod in pods.pods.iter() {
            self.usages.entry(pod.uid.clone()).or_default();
        }
    }

    /// Takes over what the disk scanner has found since the last time.
    pub fn take_walks(&mut self) {
        let walked = self.scanner.revision();
        if std::mem::replace(&mut self.walked, walked) == walked {
            return;
        }
        self.walks.found = self.scanner.found();
        for (uid, usage) in &mut self.usages {
            if let Some(disk) = self.walks.of(uid) {
                usage.containers.clone_from(&disk.usage.containers);
                usage.volumes.clone_from(&disk.usage.volumes);
                usage.ephemeral_storage = disk.usage.ephemeral_storage;
                usage.walk_began = Some(disk.began);
                usage.is_uncertain = disk.usage.is_uncertain;
            }
        }
    }

    /// Reads now what pods use of a resource that is short.
    pub fn measure(&mut self, resource: Resource, pods: &PodSet, sources: &SignalSources) {
        let counts_inodes = resource == Resource::Inodes && sources.counts_inodes();
        for entry in &pods.entries {
            let Some(usage) = self.usages.get_mut(&entry.pod.uid) else {
                continue;
            };
            match resource {
                Resource::Memory => measure_memory(entry, usage),
                // What waits to be reaped goes by itself.
                Resource::Pids if entry.killer.is_empty() => usage.processes = Some(0),
                Resource::Pids => usage.processes = processes(entry, self.mode, sources),
                Resource::Inodes => {
                    if let Some(cgroup_counts) = &self.cgroup_counts {
                        // Of a pod that was not walked yet, what hooks have counted is all there is.
                        let walk = self.walks.of(&entry.pod.uid).unwrap_or_default();
                        usage.containers.clone_from(&walk.usage.containers);
                        usage.volumes.clone_from(&walk.usage.volumes);
                        add_inodes(entry, usage, &walk, cgroup_counts, sources);
                        usage.counts_inodes = counts_inodes;
                    }
                }
                // The disk scanner is all there is: no hook counts bytes.
                Resource::EphemeralStorage => {}
            }
        }
    }

    /// Only these are short: what was read of whole pods when others were is soon no longer true. Files are walked again.
    pub fn forget_all_but(&mut self, short: &BTreeSet<Resource>) {
        for usage in self.usages.values_mut() {
            if !short.contains(&Resource::Pids) {
                usage.processes = None;
            }
            if !short.contains(&Resource::Memory) {
                (usage.memory_working_set, usage.memory_shared) = (None, 0);
            }
        }
    }

    /// Reads once more what a pod that was just killed holds: memory, and processes until they are reaped. Of those that have
    /// ended already what was read before may be all that is known. Its files are those of the last walk.
    pub fn measure_victim(&mut self, entry: &PodEntry, sources: &SignalSources) {
        if let Some(usage) = self.usages.get_mut(&entry.pod.uid) {
            let processes = processes(entry, self.mode, sources);
            usage.processes = usage.processes.max(processes);
            // What has come back already is in what is seen to be available.
            entry.flush_statistics();
            measure_memory(entry, usage);
        }
    }
}

/// Measures the memory of a pod. Of one without processes only what it shares counts, which is tmpfs of its volumes:
/// the kernel can take all else.
fn measure_memory(entry: &PodEntry, usage: &mut PodUsage) {
    let reading = entry.memory.read().ok();
    let shared = |reading: MemoryReading| reading.shmem.min(reading.working_set());
    usage.memory_shared = reading.map_or(0, shared);
    usage.memory_working_set = match entry.killer.is_empty() {
        true => reading.map(shared),
        false => reading.map(|reading| reading.working_set()),
    };
    // Only the pod as a whole is measured: where one container runs in it, that is the container.
    if let Some(only) = entry.pod.only_container() {
        let working_set = usage.memory_working_set;
        container(usage, only.name.clone()).memory_working_set = working_set;
    }
}

/// The kubelet counts processes, and a bomb of threads is one process to it; the `evictd` mode counts what is short.
fn processes(entry: &PodEntry, mode: Mode, sources: &SignalSources) -> Option<u64> {
    let path = entry.memory.path();
    let found = evictd_node::cgroup::pids::of_pod(path).ok()?;
    if mode == Mode::Kubelet {
        return Some(found.processes);
    }
    let started = || {
        let pids = sources.pids.as_ref()?;
        let ids = followed_ids(path);
        let net = ids
            .iter()
            .filter_map(|id| pids.cgroup_count(*id))
            .map(|s| s.made - s.gone);
        u64::try_from(net.sum::<i64>()).ok()
    };
    let tasks = found.tasks.or_else(started).unwrap_or(0);
    Some(found.processes.max(tasks))
}

/// Adds what hooks have counted since the walk.
fn add_inodes(
    entry: &PodEntry,
    usage: &mut PodUsage,
    disk: &DiskUse,
    cgroup_counts: &CgroupCountReader,
    sources: &SignalSources,
) {
    let Some(disks) = &sources.disks else {
        return;
    };
    let ids = followed_ids(entry.memory.path());
    for (at, name) in disks.names.iter().enumerate() {
        let index = name.filesystem;
        if disks.names[..at].iter().any(|d| d.filesystem == index) {
            continue;
        }
        let now = |id| cgroup_counts.net(id, index);
        let since = disk.since(index, &ids, sources.counts_are_merged, now);
        match u64::try_from(since) {
            Ok(made) => add_made(usage, made, index == disks.names[0].filesystem),
            Err(_) => {
                let removed = since.unsigned_abs();
                disks
                    .layout
                    .take_off_inodes(name.inodes_free, usage, removed);
            }
        }
    }
}

/// Adds inodes that a pod has made on a filesystem. In which of its directories is not known: on the node's filesystem
/// they count as logs, on another as writable layers, which is where each layout looks for them.
fn add_made(usage: &mut PodUsage, made: u64, is_nodefs: bool) {
    let parts = usage.containers.iter_mut();
    let slots: Vec<&mut FsUsage> = if is_nodefs {
        let logs = parts.map(|c| &mut c.logs);
        logs.chain(usage.volumes.iter_mut().map(|v| &mut v.fs))
            .collect()
    } else {
        parts.map(|c| &mut c.rootfs).collect()
    };
    let largest = slots.into_iter().max_by_key(|fs| fs.inodes.unwrap_or(0));
    match largest {
        Some(fs) => fs.inodes = Some(fs.inodes.unwrap_or(0).saturating_add(made)),
        None => {
            let counted = FsUsage {
                bytes: None,
                inodes: Some(made),
            };
            let mut container = ContainerUsage::default();
            if is_nodefs {
                container.logs = counted;
            } else {
                container.rootfs = counted;
            }
            usage.containers.push(container);
        }
    }
}
