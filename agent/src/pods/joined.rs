//! Cgroups joined with whatever is known of the pods in them: the entries of the reflex's table.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    table::{Entry, PodTable},
    tree::{PodGroup, guess, pods_below},
};
use crate::{
    config::Mode,
    engine::Pod,
    observe::{cgroup::descendant_ids, machine::memory_total},
};

/// The pods of a cgroup tree with their files held open. What has not changed is not opened again.
#[derive(Debug)]
pub struct Joined {
    root: PathBuf,
    memory_total: u64,
    mode: Mode,
    held: BTreeMap<PathBuf, Held>,
}

#[derive(Debug)]
struct Held {
    /// The ids of the pod's cgroup and of all below it.
    ids: Vec<u64>,
    entry: Arc<Entry>,
}

/// A look at the tree.
#[derive(Debug)]
pub struct Look {
    /// The table to hand over; `None` when nothing has changed.
    pub table: Option<Box<PodTable>>,
    /// Pods that only their cgroup tells of.
    pub unknown: usize,
}

impl Joined {
    /// Nothing is held yet of the tree below `root`.
    pub fn new(root: &Path, mode: Mode) -> Self {
        Self {
            root: root.to_owned(),
            mode,
            // Without procfs there are no scores to compute requests from.
            memory_total: memory_total(Path::new("/proc")).unwrap_or(0),
            held: BTreeMap::new(),
        }
    }

    /// Compares the tree with what is held. `known` answers with the pod of a UID.
    pub fn look(&mut self, known: impl Fn(&str) -> Option<Pod>) -> Look {
        let mut next = BTreeMap::new();
        let (mut changed, mut unknown) = (false, 0);
        for group in pods_below(&self.root) {
            let held = self.held.remove(&group.path);
            let pod = known(&group.name.uid);
            if pod.is_none() {
                unknown += 1;
            }
            let ids = descendant_ids(&group.path);
            // What was known of a UID once stays true although nobody tells of it any more.
            let pod = pod.or_else(|| held.as_ref().map(|h| h.entry.pod.clone()));
            let same = |h: &Held| h.ids == ids && pod.as_ref() == Some(&h.entry.pod);
            match held {
                Some(held) if same(&held) => {
                    next.insert(group.path, held);
                }
                _ => {
                    changed = true;
                    if let Some(held) = self.open(&group, pod, ids) {
                        next.insert(group.path, held);
                    }
                }
            }
        }
        // What is left over is gone.
        changed |= !self.held.is_empty();
        self.held = next;
        let table = || PodTable::new(self.held.values().map(|h| Arc::clone(&h.entry)).collect());
        Look {
            table: changed.then(|| Box::new(table())),
            unknown,
        }
    }

    fn open(&self, group: &PodGroup, pod: Option<Pod>, ids: Vec<u64>) -> Option<Held> {
        let pod = pod.unwrap_or_else(|| guess(group, self.memory_total));
        // Vanished between listing and opening.
        let entry = Entry::open(pod, &group.path, self.mode).ok()?;
        Some(Held {
            ids,
            entry: Arc::new(entry),
        })
    }
}
