//! Whether the disks that are watched are those of the container runtime: a path in the configuration may be wrong, or
//! a default may not fit.

use std::{
    path::Path,
    sync::{Arc, Mutex},
};

use evictd_config::{Config, FilesystemPaths};
use evictd_node::fs::mounts::superblock_of;
use evictd_sys::mutex::locked;

use crate::daemon::background::SingleFlight;

/// Compares the disks, and logs each difference once.
pub struct RuntimeDiskCheck {
    paths: FilesystemPaths,
    /// Differences of the last comparison.
    logged: Arc<Mutex<Vec<String>>>,
    comparisons: SingleFlight,
}

impl RuntimeDiskCheck {
    pub fn new(config: &Config) -> Self {
        Self {
            paths: config.filesystems.clone(),
            logged: Arc::default(),
            comparisons: SingleFlight::default(),
        }
    }

    /// Compares with the runtime's disks, on a thread of its own, for disks may hang; one comparison at a time.
    pub fn compare(&self, theirs: evictd_cri::RuntimeDisks) {
        let paths = self.paths.clone();
        self.start(move || differences(&paths, &theirs));
    }

    fn start(&self, compare: impl FnOnce() -> Vec<String> + Send + 'static) {
        let Some(running) = self.comparisons.begin() else {
            return;
        };
        let logged = Arc::clone(&self.logged);
        let thread = std::thread::Builder::new().name("disk-look".into());
        // Without a thread the next answer of the runtime is compared.
        let _ = thread.spawn(move || {
            let found = compare();
            let mut logged = locked(&logged);
            for difference in found.iter().filter(|found| !logged.contains(found)) {
                tracing::warn!("{difference}");
            }
            *logged = found;
            drop(running);
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
            "{name} is watched at {own}, and the runtime says that it is at {theirs}, on another filesystem: set \
            filesystems.{name}"
        )),
        Err(error) => Some(format!(
            "{name} is watched at {own}; whether that is the runtime's disk is not known: {error}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::mpsc::channel,
        time::{Duration, Instant},
    };

    use super::*;

    /// The runtime is asked every five minutes, and a disk may be away for hours.
    #[test]
    fn a_disk_that_hangs_takes_one_thread() {
        let config = Config::from_values(serde_json::json!({}), None).unwrap();
        let disks = RuntimeDiskCheck::new(&config);
        let (answer, hangs) = channel::<()>();
        let (began, beginnings) = channel();
        let first = began.clone();
        disks.start(move || {
            first.send(()).unwrap();
            let _ = hangs.recv();
            Vec::new()
        });
        beginnings.recv().unwrap();
        for _ in 0..10 {
            let began = began.clone();
            disks.start(move || {
                began.send(()).unwrap();
                Vec::new()
            });
        }
        drop(answer);
        let until = Instant::now() + Duration::from_secs(20);
        while disks.comparisons.begin().is_none() {
            assert!(Instant::now() < until);
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(beginnings.try_recv().is_err(), "another one was begun");
        disks.start(move || {
            began.send(()).unwrap();
            Vec::new()
        });
        beginnings.recv_timeout(Duration::from_secs(20)).unwrap();
    }
}
