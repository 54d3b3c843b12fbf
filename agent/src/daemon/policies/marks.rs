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
/// File in the state directory by which a subcommand requests the status of the policies as it is now; the agent
/// removes it when that is written.
const STATUS_REQUEST: &str = "policies.asked";

/// The mark files, as of the last check. The journal's thread checks for them: even a stat hangs on a disk that does not
/// answer, and what was known before holds meanwhile.
#[derive(Debug)]
pub(super) struct MarkFiles {
    pause: PathBuf,
    request: PathBuf,
    /// Whether evictions are paused, as of the last check that succeeded.
    pub is_paused: AtomicBool,
    /// Whether a subcommand waits for the status of the policies.
    pub is_requested: AtomicBool,
    /// The last check for the file of the pause has failed.
    is_unknown: AtomicBool,
    checks: SingleFlight,
    pub checked: Arc<Notify>,
}

impl MarkFiles {
    pub fn new(state_dir: &Path, checked: Arc<Notify>) -> Self {
        Self {
            pause: state_dir.join(PAUSE),
            request: request_file(state_dir),
            // A pause that an earlier agent has obeyed holds until it is known to be removed.
            is_paused: AtomicBool::new(true),
            is_requested: AtomicBool::new(false),
            is_unknown: AtomicBool::new(false),
            checks: SingleFlight::default(),
            checked,
        }
    }

    /// Has the journal's thread check, unless the last check is under way or too many files wait for that thread.
    pub fn check_on(self: &Arc<Self>, disk: &DiskQueue) {
        let Some(running) = self.checks.begin() else {
            return;
        };
        let marks = Arc::clone(self);
        let check = move || {
            marks.check();
            drop(running);
            marks.checked.notify_one();
        };
        // Without a place the next tick checks.
        let _ = disk.write_file(check);
    }

    /// Checks for the files. An error is not the absence of a file: it changes nothing.
    pub fn check(&self) {
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
        let is_requested = self.request.try_exists().unwrap_or(false);
        self.is_requested.store(is_requested, Ordering::Relaxed);
    }
}

/// Path of the file by which a subcommand requests the status of the policies from an agent with this state directory.
pub fn request_file(state_dir: &Path) -> PathBuf {
    state_dir.join(STATUS_REQUEST)
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
            marks.check();
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
