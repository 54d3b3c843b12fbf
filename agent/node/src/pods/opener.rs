//! Pods whose cgroup is there and cannot be opened: they cannot be evicted, and that must be known.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use evictd_engine::{Pod, model::settings::Mode};
use evictd_sys::fs::{PathError, is_gone};

use super::table::Entry;

/// Opens pods; those that refuse are told once each, and may be tried again.
#[derive(Debug, Default)]
pub struct Opener {
    /// The cgroups of pods that could not be opened at the last attempt.
    failed: BTreeSet<PathBuf>,
    /// A directory of pods could not be listed at the last attempt.
    is_unlisted: bool,
    count: Arc<AtomicU64>,
}

impl Opener {
    /// Opens a pod's files; `None` if its cgroup is gone, or refuses.
    pub fn open(&mut self, pod: Pod, cgroup: &Path, mode: Mode) -> Option<Arc<Entry>> {
        let name = pod.to_string();
        match Entry::open(pod, cgroup, mode) {
            Ok(entry) => {
                self.failed.remove(cgroup);
                Some(Arc::new(entry))
            }
            Err(error) => {
                self.note(&name, cgroup, &error);
                None
            }
        }
    }

    fn note(&mut self, pod: &str, cgroup: &Path, error: &PathError) {
        if is_gone(&error.source) {
            self.failed.remove(cgroup);
        } else if self.failed.insert(cgroup.to_owned()) {
            self.count.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(pod, %error, "a pod cannot be opened: it is not evicted until it can be");
        }
    }

    /// Takes note of whether all directories of pods could be listed.
    pub fn note_listing(&mut self, unlisted: Option<&PathError>) {
        let was_unlisted = std::mem::replace(&mut self.is_unlisted, unlisted.is_some());
        if let Some(error) = unlisted
            && !was_unlisted
        {
            self.count.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(%error, "pods cannot be listed: new ones are not evicted until they can be");
        }
    }

    /// Whether the pod of this cgroup could not be opened at the last attempt.
    pub fn has_failed(&self, cgroup: &Path) -> bool {
        self.failed.contains(cgroup)
    }

    /// The cgroups of pods that could not be opened at the last attempt.
    pub fn failed(&self) -> impl Iterator<Item = &PathBuf> {
        self.failed.iter()
    }

    /// How many could not be opened at the last attempt.
    pub fn failures(&self) -> usize {
        self.failed.len()
    }

    /// Forgets the cgroups for which this is false: they are no pods' any more.
    pub fn retain(&mut self, is_there: impl Fn(&Path) -> bool) {
        self.failed.retain(|cgroup| is_there(cgroup));
    }

    /// How often a pod could not be opened, or a directory of pods not listed; each counts once until it could be.
    pub fn count(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.count)
    }
}
