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

use super::table::PodEntry;
use crate::cgroup::tree::FollowedCgroups;

/// Counts of pods that are not open, or not in full.
#[derive(Debug, Default)]
pub struct Unopened {
    /// How often a pod could not be opened, or a directory of pods not listed; each counts once until it could be.
    pub total: AtomicU64,
    /// Number of pods that could not be opened at the last attempt; one more where a directory of pods could not be
    /// listed.
    pub now: AtomicU64,
    /// Pods that are open and have more cgroups than are followed.
    pub cut: AtomicU64,
}

/// Opens pods. A refusal is logged once for each pod, and the pod may be tried again.
#[derive(Debug, Default)]
pub struct Opener {
    /// The cgroups of pods that could not be opened at the last attempt.
    failed: BTreeSet<PathBuf>,
    /// The cgroups of pods that have more below them than are followed.
    cut: BTreeSet<PathBuf>,
    /// A directory of pods could not be listed at the last attempt.
    is_unlisted: bool,
    count: Arc<Unopened>,
}

impl Opener {
    /// Opens a pod's files, where its cgroups could be found; `None` if its cgroup is gone, or refuses. What is open of
    /// them in `before` is shared.
    pub fn open(
        &mut self,
        pod: Pod,
        cgroup: &Path,
        found: Result<FollowedCgroups, PathError>,
        mode: Mode,
        before: Option<&PodEntry>,
    ) -> Option<Arc<PodEntry>> {
        let name = pod.to_string();
        let opened = found.and_then(|found| PodEntry::reopen(pod, cgroup, &found, mode, before));
        match &opened {
            Ok(entry) => {
                self.failed.remove(cgroup);
                self.note_cut(&name, cgroup, entry.is_cut);
            }
            Err(error) => self.note(&name, cgroup, error),
        }
        self.publish();
        opened.ok().map(Arc::new)
    }

    fn note_cut(&mut self, pod: &str, cgroup: &Path, is_cut: bool) {
        if !is_cut {
            self.cut.remove(cgroup);
        } else if self.cut.insert(cgroup.to_owned()) {
            tracing::warn!(
                pod,
                "a pod has more cgroups than are followed: processes in the others are killed last"
            );
        }
    }

    fn publish(&self) {
        let now = self.failed.len() as u64 + u64::from(self.is_unlisted);
        self.count.now.store(now, Ordering::Relaxed);
        let cut = self.cut.len() as u64;
        self.count.cut.store(cut, Ordering::Relaxed);
    }

    fn note(&mut self, pod: &str, cgroup: &Path, error: &PathError) {
        if is_gone(&error.source) {
            self.failed.remove(cgroup);
        } else if self.failed.insert(cgroup.to_owned()) {
            self.count.total.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(pod, %error, "a pod cannot be opened: it is not evicted until it can be");
        }
    }

    /// Takes note of whether all directories of pods could be listed.
    pub fn note_listing(&mut self, unlisted: Option<&PathError>) {
        let was_unlisted = std::mem::replace(&mut self.is_unlisted, unlisted.is_some());
        if let Some(error) = unlisted
            && !was_unlisted
        {
            self.count.total.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(%error, "pods cannot be listed: new ones are not evicted until they can be");
        }
        self.publish();
    }

    /// Whether the pod of this cgroup could not be opened at the last attempt.
    pub fn has_failed(&self, cgroup: &Path) -> bool {
        self.failed.contains(cgroup)
    }

    /// The cgroups of pods that could not be opened at the last attempt.
    pub fn failed(&self) -> impl Iterator<Item = &PathBuf> {
        self.failed.iter()
    }

    /// Forgets the cgroups for which this is false: they are no pods' any more.
    pub fn retain(&mut self, is_there: impl Fn(&Path) -> bool) {
        self.failed.retain(|cgroup| is_there(cgroup));
        self.cut.retain(|cgroup| is_there(cgroup));
        self.publish();
    }

    /// The counts, for other threads to read.
    pub fn count(&self) -> Arc<Unopened> {
        Arc::clone(&self.count)
    }
}
