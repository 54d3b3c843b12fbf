//! Mark files: files in the state directory that ask for something by being there.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use evictd_store::disk_queue::DiskQueue;
use tokio::sync::Notify;

use crate::daemon::background::SingleFlight;

/// File in the state directory whose presence pauses all evictions.
const PAUSE: &str = "pause";
/// File in the state directory by which a subcommand asks for the status of the policies as it is now; gone when it is.
const ASKED: &str = "policies.asked";

/// The mark files, as of the last look. The thread that waits for that disk looks for
/// them: even a stat hangs on a disk that does not answer, and what was known before holds meanwhile.
#[derive(Debug)]
pub(super) struct MarkFiles {
    pause: PathBuf,
    asked: PathBuf,
    /// Whether evictions are paused, as of the last look that succeeded.
    pub is_paused: AtomicBool,
    /// Whether a subcommand waits for the status of the policies.
    pub is_asked: AtomicBool,
    /// The last look for the file of the pause has failed.
    is_unknown: AtomicBool,
    looks: SingleFlight,
    pub looked: Arc<Notify>,
}

impl MarkFiles {
    pub fn new(state_dir: &Path, looked: Arc<Notify>) -> Self {
        Self {
            pause: state_dir.join(PAUSE),
            asked: asked_file(state_dir),
            // A pause that an earlier agent has obeyed holds until it is known to be removed.
            pub is_paused: AtomicBool::new(true),
            pub is_asked: AtomicBool::new(false),
            is_unknown: AtomicBool::new(false),
            looks: SingleFlight::default(),
            looked,
        }
    }

    /// Has the disk's thread look, unless it has not answered the last time yet, or too many files wait for it.
    pub fn look_on(self: &Arc<Self>, disk: &DiskQueue) {
        let Some(running) = self.looks.begin() else {
            return;
        };
        let marks = Arc::clone(self);
        let look = move || {
            marks.look();
            drop(running);
            marks.looked.notify_one();
        };
        // Without a place the next tick looks.
        let _ = disk.write_file(look);
    }

    /// An error is not the absence of the file: it changes nothing.
    pub fn look(&self) {
        match self.pause.try_exists() {
            Ok(paused) => {
                self.is_paused.store(paused, Ordering::Relaxed);
                if self.is_unknown.swap(false, Ordering::Relaxed) {
                    tracing::info!(paused, "the file that pauses evictions can be looked for");
                }
            }
            Err(error) => {
                if !self.is_unknown.swap(true, Ordering::Relaxed) {
                    let (path, paused) = (&self.pause, self.is_paused.load(Ordering::Relaxed));
                    tracing::error!(
                        path = %path.display(),
                        %error,
                        paused,
                        "cannot tell whether the file that pauses evictions is there: until then they stay as they are"
                    );
                }
            }
        }
        // The subcommand that waits says what is wrong with its file.
        let is_asked = self.asked.try_exists().unwrap_or(false);
        self.is_asked.store(is_asked, Ordering::Relaxed);
    }
}

/// Path at which an agent with this state directory is asked to write what there is to explain anew.
pub fn asked_file(state_dir: &Path) -> PathBuf {
    state_dir.join(ASKED)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn a_pause_that_cannot_be_read_holds() {
        let dir = tempfile::tempdir().unwrap();
        let (pause, marks) = (
            dir.path().join(PAUSE),
            MarkFiles::new(dir.path(), Arc::default()),
        );
        let is_paused = || {
            marks.look();
            marks.is_paused.load(Ordering::Relaxed)
        };
        // ELOOP, at the first look.
        symlink(PAUSE, &pause).unwrap();
        assert!(is_paused());
        fs::remove_file(&pause).unwrap();
        assert!(!is_paused());
        symlink(PAUSE, &pause).unwrap();
        assert!(!is_paused(), "it was not there before");
        fs::remove_file(&pause).unwrap();
        fs::write(&pause, "").unwrap();
        assert!(is_paused());
        fs::remove_file(&pause).unwrap();
        symlink(PAUSE, &pause).unwrap();
        assert!(is_paused());
        fs::remove_file(&pause).unwrap();
        assert!(!is_paused());
    }
}
