//! What policies say of the pods: the status file of an agent, and whether an agent runs that keeps it up to date.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime},
};

use evictd_policy::evaluator::Explanation;
use evictd_sys::fs::PathError;
use serde_json::from_value;

use super::{
    CommandError,
    input::{invalid, read_json},
};
use crate::daemon::policies::{request_file, status_file};

/// Time that an agent may take to answer a request: it checks for one once a second.
const ANSWER: Duration = Duration::from_secs(3);

/// The status file.
pub(super) struct Explained {
    pub path: PathBuf,
    pub pods: Vec<Explanation>,
}

impl Explained {
    /// # Errors
    /// The file is not there, or is not one of an agent.
    pub fn read(state_dir: &Path) -> Result<Self, CommandError> {
        let path = status_file(state_dir);
        let pods = from_value(read_json(&path)?).map_err(|e| invalid(&path, e))?;
        Ok(Self { path, pods })
    }

    /// Time since the file was written.
    ///
    /// # Errors
    /// The file is not there any more.
    pub fn age(&self) -> Result<Duration, CommandError> {
        let changed = fs::metadata(&self.path).and_then(|m| m.modified());
        let changed = changed.map_err(PathError::at(&self.path))?;
        // A clock that was set back makes the file no older than now.
        Ok(SystemTime::now()
            .duration_since(changed)
            .unwrap_or_default())
    }
}

/// Whether the status file holds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PolicyReporting {
    /// No agent has written a status file here.
    None,
    /// The agent that runs here writes each change.
    Reported,
    /// The file is from an agent that does not answer.
    Unknown,
}

impl PolicyReporting {
    /// Requests the present status from the agent, which from then on writes it whenever something changes.
    pub fn ask(state_dir: &Path) -> Self {
        if !status_file(state_dir).exists() {
            Self::None
        } else if is_answered(&request_file(state_dir)) {
            Self::Reported
        } else {
            Self::Unknown
        }
    }

    /// Reads the explanations, by the pod's UID.
    ///
    /// # Errors
    /// See [`Explained::read`].
    pub fn read(self, state_dir: &Path) -> Result<HashMap<String, Explanation>, CommandError> {
        if self != Self::Reported {
            return Ok(HashMap::new());
        }
        let explanations = Explained::read(state_dir)?.pods.into_iter();
        Ok(explanations
            .map(|explanation| (explanation.uid.clone(), explanation))
            .collect())
    }
}

/// Whether an agent answers a request.
fn is_answered(request: &Path) -> bool {
    if let Err(error) = fs::write(request, "") {
        eprintln!(
            "evictd: {}: the agent cannot be asked: {error}",
            request.display()
        );
        return false;
    }
    let start = Instant::now();
    while start.elapsed() < ANSWER {
        std::thread::sleep(Duration::from_millis(20));
        if !request.exists() {
            return true;
        }
    }
    // No agent has taken it.
    fs::remove_file(request).is_err()
}
