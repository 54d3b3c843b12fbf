//! Cgroups joined with whatever is known of the pods in them: the entries of the fast path's table.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicU64},
};

use evictd_engine::{Pod, model::settings::Mode};

use super::table::{Entry, PodTable};
use crate::{
    cgroup::memory::descendant_ids,
    pods::{
        discovery::{PodGroup, guess, pods_below},
        opener::Opener,
    },
    proc::machine::memory_total,
};

/// The pods of a cgroup tree with their files held open. What has not changed is not opened again.
#[derive(Debug)]
pub struct PodTableBuilder {
    root: PathBuf,
    memory_total: u64,
    mode: Mode,
    held: BTreeMap<PathBuf, OpenPod>,
    opener: Opener,
}

#[derive(Debug)]
struct OpenPod {
    /// The ids of the pod's cgroup and of all below it.
    ids: Vec<u64>,
    entry: Arc<Entry>,
}

/// A look at the tree.
#[derive(Debug)]
pub struct Refresh {
    /// The table to hand over; `None` when nothing has changed.
    pub table: Option<Box<PodTable>>,
    /// Pods that only their cgroup tells of.
    pub unknown: usize,
}

impl PodTableBuilder {
    /// Nothing is held yet of the tree below `root`.
    pub fn new(root: &Path, mode: Mode) -> Self {
        Self {
            root: root.to_owned(),
            mode,
            // Without procfs there are no scores to compute requests from.
            memory_total: memory_total(Path::new("/proc")).unwrap_or(0),
            held: BTreeMap::new(),
            opener: Opener::default(),
        }
    }

    /// How many pods could not be opened so far, although their cgroups were there.
    pub fn unopened(&self) -> Arc<AtomicU64> {
        self.opener.count()
    }

    /// Compares the tree with what is held. `known` answers with the pod of a UID.
    pub fn refresh(&mut self, known: impl Fn(&str) -> Option<Pod>) -> Refresh {
        let mut next = BTreeMap::new();
        let (mut changed, mut unknown) = (false, 0);
        let groups = pods_below(&self.root);
        for group in groups.found {
            let held = self.held.remove(&group.path);
            let pod = known(&group.name.uid);
            if pod.is_none() {
                unknown += 1;
            }
            let ids = descendant_ids(&group.path);
            // What was known of a UID once stays true although no source names it any more.
            let pod = pod.or_else(|| held.as_ref().map(|h| h.entry.pod.clone()));
            let same = |h: &OpenPod| h.ids == ids && pod.as_ref() == Some(&h.entry.pod);
            match held {
                Some(held) if same(&held) => {
                    next.insert(group.path, held);
                }
                held => match self.open(&group, pod, ids) {
                    Some(new) => {
                        changed = true;
                        next.insert(group.path, new);
                    }
                    // What is open of it still serves; the next look tries again.
                    None if self.opener.has_failed(&group.path) => {
                        next.extend(held.map(|held| (group.path, held)));
                    }
                    None => changed |= held.is_some(),
                },
            }
        }
        if groups.unlisted.is_some() {
            // Not seen, and there nevertheless.
            let there = |path: &PathBuf, _: &mut OpenPod| path.exists();
            next.extend(self.held.extract_if(.., there));
        }
        self.opener.note_listing(groups.unlisted.as_ref());
        // What is left over is gone.
        changed |= !self.held.is_empty();
        self.opener.retain(Path::exists);
        self.held = next;
        let table = || PodTable::new(self.held.values().map(|h| Arc::clone(&h.entry)).collect());
        Refresh {
            table: changed.then(|| Box::new(table())),
            unknown,
        }
    }

    fn open(&mut self, group: &PodGroup, pod: Option<Pod>, ids: Vec<u64>) -> Option<OpenPod> {
        let pod = pod.unwrap_or_else(|| guess(group, self.memory_total));
        let entry = self.opener.open(pod, &group.path, self.mode)?;
        Some(OpenPod { ids, entry })
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink, sync::atomic::Ordering};

    use super::*;

    const UID: &str = "027b1a11-f972-4ec6-943f-db9a81fa1086";

    #[test]
    fn a_pod_that_cannot_be_opened_is_reported_once_and_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        let pod = dir.path().join(format!("kubepods/pod{UID}"));
        fs::create_dir_all(&pod).unwrap();
        for file in ["memory.stat", "memory.usage_in_bytes"] {
            fs::write(pod.join(file), "1").unwrap();
        }
        // ELOOP: there, and not to be opened.
        let procs = pod.join("cgroup.procs");
        symlink(&procs, &procs).unwrap();
        let mut joined = PodTableBuilder::new(dir.path(), Mode::Evictd);
        let look =
            |joined: &mut PodTableBuilder| joined.refresh(|_| None).table.map(|t| t.entries.len());
        let unopened = joined.unopened();
        let count = || unopened.load(Ordering::Relaxed);
        assert_eq!((look(&mut joined), count()), (None, 1));
        assert_eq!((look(&mut joined), count()), (None, 1), "told once");
        fs::remove_file(&procs).unwrap();
        fs::write(&procs, "").unwrap();
        assert_eq!((look(&mut joined), count()), (Some(1), 1));
        // A container has come, and the pod cannot be opened anew: what is open of it stays.
        fs::remove_file(&procs).unwrap();
        symlink(&procs, &procs).unwrap();
        fs::create_dir(pod.join("c1")).unwrap();
        assert_eq!((look(&mut joined), count()), (None, 2));
        assert_eq!(joined.held.len(), 1);
        // Gone is no trouble.
        fs::remove_dir_all(&pod).unwrap();
        assert_eq!((look(&mut joined), count()), (Some(0), 2));
        assert_eq!(joined.opener.failures(), 0);
    }
}
