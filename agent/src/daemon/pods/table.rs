//! The pod table follows the cgroups: what a change costs grows with what has changed.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use evictd_manager::{Command, PodSet, ScanTarget};
use evictd_node::{
    cgroup::{
        hierarchy::{MountedHierarchy, Place},
        swap::PodSwap,
    },
    pods::table::{PodEntry, PodTable},
};

use tokio::time::Instant;

use crate::daemon::{Agent, memory::look_at_watermarks};

/// How long a change waits below a pod that has been there for a while. Most short-lived containers are gone by then,
/// and cost one look at a directory instead of two times all files of the pod.
const GATHER_BELOW: Duration = Duration::from_millis(200);

/// So long after a look at what has changed a pod is looked at once more: a container runtime makes a container's
/// cgroup first, prepares its root, and then writes the limit, which is no event.
const WRITES_LIMITS: Duration = Duration::from_secs(1);

/// The pods as the loops and the scan have them, and what was made of their table: what has not changed is not made
/// anew.
pub struct PublishedPods {
    /// The pods.
    pub entries: Vec<Arc<PodEntry>>,
    /// Memory that the pods can swap out.
    pub swap: Arc<PodSwap>,
    targets: Vec<ScanTarget>,
    set: PodSet,
    /// Mount of the memory hierarchy.
    hierarchy: MountedHierarchy,
    /// A pod's cgroup has come or gone, and no directory was found for it.
    unplaced: bool,
    /// Directories of pods below which something has changed, and when they are looked at.
    waiting: DeferredDirs,
    /// Directories that were looked at, and when each is looked at once more.
    again: DeferredDirs,
}

/// Directories, and when each is due.
#[derive(Default)]
struct DeferredDirs(BTreeMap<PathBuf, Instant>);

impl DeferredDirs {
    /// The first moment at which one is due.
    fn first(&self) -> Option<Instant> {
        self.0.values().min().copied()
    }

    /// Takes out those that are due by a moment.
    fn take_due(&mut self, by: Instant) -> BTreeSet<PathBuf> {
        let due = self.0.extract_if(.., |_, at| *at <= by);
        due.map(|(directory, _)| directory).collect()
    }
}

impl PublishedPods {
    pub fn new(
        entries: Vec<Arc<PodEntry>>,
        swap: Arc<PodSwap>,
        targets: Vec<ScanTarget>,
        mount: PathBuf,
    ) -> Self {
        Self {
            set: PodSet::new(&entries),
            entries,
            swap,
            targets,
            hierarchy: MountedHierarchy::new(mount),
            unplaced: false,
            waiting: DeferredDirs::default(),
            again: DeferredDirs::default(),
        }
    }

    /// The entry of a pod by UID, protected pods included.
    pub fn entry(&self, uid: &str) -> Option<&Arc<PodEntry>> {
        self.entries.iter().find(|entry| entry.pod.uid == uid)
    }

    /// Whether a pod's cgroup was not found since the last call: then all directories have to be compared.
    pub fn take_unplaced(&mut self) -> bool {
        std::mem::take(&mut self.unplaced)
    }

    /// Time at which the next directory is to be looked at; `None` when none waits.
    pub fn due(&self) -> Option<Instant> {
        let (waiting, again) = (self.waiting.first(), self.again.first());
        waiting.into_iter().chain(again).min()
    }

    /// Schedules one more look at these directories, which are looked at now, for when the limits in them are written.
    fn look_again(&mut self, directories: &BTreeSet<PathBuf>) {
        let due = Instant::now() + WRITES_LIMITS;
        let again = directories.iter().map(|directory| (directory.clone(), due));
        self.again.0.extend(again);
    }
}

impl Agent {
    /// Compares the pods whose cgroups have come or gone with what is held open.
    pub fn on_cgroup_events(&mut self) {
        let mut directories = BTreeSet::new();
        let known = &mut self.pods;
        while let Some(change) = self.cgroup_events.next_event() {
            if !self.pod_source.may_concern(&change) {
                continue;
            }
            let path = match known.hierarchy.locate(&change.path, change.cgroup_id) {
                Place::Below(path) => path,
                Place::Outside => continue,
                Place::Unknown => {
                    known.unplaced = true;
                    continue;
                }
            };
            let mount = known.hierarchy.mount();
            let Some(directory) = self.pod_source.directory_of(mount, &path) else {
                continue;
            };
            let is_below = directory != mount.join(&path);
            if is_below && self.pod_source.has_settled(&directory) {
                let waiting = known.waiting.0.entry(directory);
                waiting.or_insert_with(|| Instant::now() + GATHER_BELOW);
            } else {
                directories.insert(directory);
            }
        }
        if !directories.is_empty() {
            known.look_again(&directories);
            let table = self.pod_source.follow(&directories);
            self.publish(table);
        }
    }

    /// Compares the pods whose changes have waited, and once more those that were compared a moment ago.
    pub fn follow_waiting(&mut self) {
        let known = &mut self.pods;
        let now = Instant::now();
        let mut directories = known.waiting.take_due(now);
        known.look_again(&directories);
        directories.append(&mut known.again.take_due(now));
        let table = self.pod_source.follow(&directories);
        self.publish(table);
    }

    /// Takes what the API server has of pods; their cgroups have not changed.
    pub fn follow_api(&mut self) {
        self.handle_kubelet_evictions();
        let table = self.pod_source.follow(&BTreeSet::new());
        self.publish(table);
    }

    /// Compares all cgroups with what is held open.
    pub fn refresh(&mut self) {
        if self.memory.allocatable.forget_if_moved() {
            self.follow_pods_scope();
        }
        let table = self.pod_source.refresh();
        self.publish(table);
    }

    /// Hands over a new table when a pod's cgroup has come, gone, or changed below.
    pub fn publish(&mut self, table: Option<Box<PodTable>>) {
        let Some(table) = table else {
            self.refresh_pods_scope();
            return;
        };
        self.follow_pods_scope();
        self.policies.set_pods(&table);
        let before = &self.pods;
        let known: HashMap<*const PodEntry, &ScanTarget> = before
            .entries
            .iter()
            .map(Arc::as_ptr)
            .zip(&before.targets)
            .collect();
        let target = |entry: &Arc<PodEntry>| match known.get(&Arc::as_ptr(entry)) {
            Some(target) => ScanTarget::clone(target),
            None => self.pod_source.target(&self.config, entry),
        };
        let targets: Vec<ScanTarget> = table.entries.iter().map(target).collect();
        let pods = PodSet::after(&before.set, &table.entries);
        self.pods.targets.clone_from(&targets);
        self.pods.set = pods.clone();
        self.pods.entries.clone_from(&table.entries);
        self.pods.swap = Arc::clone(&table.swap);
        self.pod_source.set_swap(&table.swap);
        self.manager.scanner.set_targets(targets);
        self.manager.send(Command::Pods(pods));
        self.oom.attributor.set_pods(&table.entries);
        self.fastpath.control.send_table(table);
    }

    /// Reads once a second what the fast path does not read: swap and protected memory of each pod, and the machine's
    /// watermarks.
    pub fn look_at_pods(&self) {
        self.fastpath.control.free_retired();
        let pods = || self.pods.entries.iter().map(|entry| &*entry.memory);
        self.pods.swap.refresh();
        let protected = self.memory.protection.cache_of(pods());
        self.fastpath.control.set_protected_cache(protected);
        look_at_watermarks(&self.fastpath.control);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_that_was_looked_at_is_looked_at_once_more() {
        let places = PathBuf::new();
        let mut pods = PublishedPods::new(Vec::new(), Arc::default(), Vec::new(), places);
        assert_eq!(pods.due(), None);
        let of = |names: &[&str]| names.iter().map(PathBuf::from).collect::<BTreeSet<_>>();
        pods.look_again(&of(&["a", "b"]));
        let first = pods.due().unwrap();
        // One has another container since.
        pods.look_again(&of(&["a"]));
        assert_eq!(pods.due(), Some(first));
        let before = first - Duration::from_nanos(1);
        assert_eq!(pods.again.take_due(before), of(&[]));
        assert_eq!(pods.again.take_due(first), of(&["b"]));
        let second = pods.due().unwrap();
        assert!(second > first);
        assert_eq!(pods.again.take_due(second), of(&["a"]));
        assert_eq!(pods.due(), None);
    }
}
