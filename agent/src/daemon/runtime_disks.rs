//! Whether the disks that are watched are those that the runtime uses: where it keeps its files is configured, or guessed.

use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use evictd_config::{Config, FilesystemPaths};
use evictd_node::fs::mounts::superblock_of;
use tokio::task::spawn_blocking;

/// Compares, and says once what differs.
pub(super) struct RuntimeDisks {
    paths: FilesystemPaths,
    /// What was found the last time.
    said: Arc<Mutex<Vec<String>>>,
}

impl RuntimeDisks {
    pub fn new(config: &Config) -> Self {
        Self {
            paths: config.filesystems.clone(),
            said: Arc::default(),
        }
    }

    /// Takes what the runtime says. Disks may hang: not on this thread.
    pub fn compare(&self, theirs: evictd_cri::RuntimeDisks) {
        let (paths, said) = (self.paths.clone(), Arc::clone(&self.said));
        spawn_blocking(move || {
            let found = differences(&paths, &theirs);
            let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
            for difference in found.iter().filter(|found| !said.contains(found)) {
                tracing::warn!("{difference}");
            }
            *said = found;
        });
    }
}

fn differences(paths: &FilesystemPaths, theirs: &evictd_cri::RuntimeDisks) -> Vec<String> {
    let Some([_, imagefs, containerfs]) = paths.resolve() else {
        return Vec::new();
    };
    let image = theirs
        .images
        .as_ref()
        .map(|path| ("imagefs", imagefs, path));
    let containers = theirs.containers.as_ref();
    let container = containers.map(|path| ("containerfs", containerfs, path));
    let both = image.into_iter().chain(container);
    both.filter_map(|(name, own, theirs)| difference(name, &own, theirs))
        .collect()
}

fn difference(name: &str, own: &Path, theirs: &Path) -> Option<String> {
    let (own_disk, their_disk) = (superblock_of(own).ok()?, superblock_of(theirs));
    let (own, theirs) = (own.display(), theirs.display());
    match their_disk {
        Ok(their_disk) if their_disk == own_disk => None,
        Ok(_) => Some(format!(
            "{name} is watched at {own}, and the runtime says that it is at {theirs}, on another filesystem: set filesystems.{name}"
        )),
        Err(error) => Some(format!(
            "{name} is watched at {own}; whether that is the runtime's disk is not known: {error}"
        )),
    }
}
