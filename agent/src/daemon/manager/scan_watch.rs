//! Logs what the manager and the disk scan cannot do: their own threads must not wait for the log.

use std::{collections::HashSet, sync::Arc};

use evictd_manager::DiskScanner;

/// What was logged about the scan: each thing is logged once.
#[derive(Debug, Default)]
pub struct ScanWatch {
    is_stuck: bool,
    scanned: u64,
    /// Why the node's overlays cannot be read, as it was logged.
    overlays_error: Option<Arc<str>>,
    /// Why writable layers are not known.
    reasons: HashSet<String>,
    hung: [bool; 3],
}

/// The names of the node's filesystems, in the order of [`evictd_manager::DiskSources::names`].
pub const FILESYSTEMS: [&str; 3] = ["nodefs", "imagefs", "containerfs"];

impl ScanWatch {
    /// Logs filesystems that do not answer, and that they answer again. To be called at each tick.
    pub fn see_hung(&mut self, hung: [bool; 3]) {
        let before = std::mem::replace(&mut self.hung, hung);
        for ((filesystem, was), is) in FILESYSTEMS.iter().zip(before).zip(hung) {
            match (was, is) {
                (false, true) => tracing::error!(
                    filesystem,
                    "the filesystem does not answer, or with errors alone, or is not mounted: its signals are not watched, all others are"
                ),
                (true, false) => tracing::warn!(filesystem, "the filesystem answers again"),
                _ => {}
            }
        }
    }

    fn see_overlays(&mut self, error: Option<Arc<str>>) {
        if self.overlays_error == error {
            return;
        }
        match &error {
            Some(error) => tracing::warn!(
                %error,
                "the mounts of the node's first process cannot be read: writable layers of new containers are not found"
            ),
            None => tracing::info!("the mounts of the node's first process can be read again"),
        }
        self.overlays_error = error;
    }

    /// To be called at each tick.
    pub fn tick(&mut self, scanner: &DiskScanner) {
        let is_stuck = scanner.is_stuck();
        match (std::mem::replace(&mut self.is_stuck, is_stuck), is_stuck) {
            (false, true) => tracing::warn!(
                "the scan of the pods' disk use waits for a filesystem that does not answer: their numbers grow old"
            ),
            (true, false) => tracing::info!("the scan of the pods' disk use goes on"),
            _ => {}
        }
        self.see_overlays(scanner.overlays_error());
        let scanned = scanner.revision();
        if std::mem::replace(&mut self.scanned, scanned) == scanned {
            return;
        }
        for (uid, found) in scanner.found().iter() {
            for (container, reason) in found.unknown_layers() {
                if self.reasons.insert(reason.clone()) {
                    tracing::warn!(
                        uid,
                        container,
                        reason,
                        "what a container has written to its root is not known: it counts as nothing, as for all \
                        others of this kind"
                    );
                }
            }
        }
    }
}

/// Containers of which it is not known what their writable layers use.
pub fn unknown_layers(scanner: &DiskScanner) -> u64 {
    let found = scanner.found();
    let each = found.values().map(|found| found.unknown_layers().count());
    each.sum::<usize>() as u64
}
