//! The pods of the node, as the manager wants them.

use std::sync::Arc;

use evictd_engine::Pod;
use evictd_node::pods::table::PodEntry;

/// The pods of the node.
#[derive(Clone, Debug, Default)]
pub struct PodSet {
    /// Entries of the pods, with files held open; without protected ones.
    pub entries: Vec<Arc<PodEntry>>,
    /// The pods of `entries`, in the same order, as the engine wants them; without protected ones.
    pub pods: Arc<Vec<Pod>>,
}

impl PodSet {
    /// From a table's entries.
    pub fn new(entries: &[Arc<PodEntry>]) -> Self {
        let entries: Vec<_> = entries.iter().filter(|e| !e.protected).cloned().collect();
        Self {
            pods: Arc::new(entries.iter().map(|e| e.pod.clone()).collect()),
            entries,
        }
    }

    /// Builds the set from a table's entries, with the pods of `before` where only their containers have changed.
    pub fn after(before: &Self, entries: &[Arc<PodEntry>]) -> Self {
        let evictable = || entries.iter().filter(|e| !e.protected);
        match evictable().map(|e| &e.pod).eq(before.pods.iter()) {
            true => Self {
                entries: evictable().cloned().collect(),
                pods: Arc::clone(&before.pods),
            },
            false => Self::new(entries),
        }
    }

    /// Entries of the pods that are being deleted, and were not in `before`.
    pub(crate) fn deleting_since(&self, before: &Self) -> Vec<Arc<PodEntry>> {
        let was = |uid: &str| {
            before
                .pods
                .iter()
                .any(|pod| pod.is_deleting && pod.uid == uid)
        };
        let deleting = self.entries.iter().filter(|e| e.pod.is_deleting);
        deleting.filter(|e| !was(&e.pod.uid)).cloned().collect()
    }

    /// The entry of a UID.
    pub fn entry(&self, uid: &str) -> Option<&Arc<PodEntry>> {
        self.entries.iter().find(|e| e.pod.uid == uid)
    }
}
