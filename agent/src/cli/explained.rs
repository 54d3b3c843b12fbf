//! What the policies say of the pods here: a running agent writes it down, and answers whether it still holds.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime},
};

use evictd_policy::evaluator::Explanation;
use serde_json::from_value;

use super::{
    CommandError,
    input::{invalid, read_json},
};
use crate::daemon::policies::{request_file, status_file};

/// Time that an agent may take to answer: it looks once a second.
const ANSWER: Duration = Duration::from_secs(3);

/// Explanations that an agent has written down.
pub(super) struct Explained {
    pub path: PathBuf,
    pub pods: Vec<Explanation>,
}

impl Explained {
    /// # Errors
    /// It is not there, or not what an agent writes.
    pub fn read(state_dir: &Path) -> Result<Self, CommandError> {
        let path = status_file(state_dir);
        let pods = from_value(read_json(&path)?).map_err(|e| invalid(&path, e))?;
        Ok(Self { path, pods })
    }

    /// Time since the file was written.
    ///
    /// # Errors
    /// It is not there any more.
    pub fn age(&self) -> Result<Duration, CommandError> {
        let changed = fs::metadata(&self.path).and_then(|m| m.modified());
        let changed = changed.map_err(|source| CommandError::Read {
            path: self.path.clone(),
            source,
        })?;
        // A clock that was set back makes it no older than now.
        Ok(SystemTime::now()
            .duration_since(changed)
            .unwrap_or_default())
    }
}

/// Whether what policies say of the pods is known.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PolicyReporting {
    /// No agent has ever written anything down here.
    None,
    /// The agent that runs here writes down what changes.
    Reported,
    /// The explanations that are written down come from an agent that does not answer.
    Unknown,
}

impl PolicyReporting {
    /// Asks the agent to write down how it is now. From then on it does so whenever something changes.
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
        Ok(explanations.map(|explanation| (explanation.uid.clone(), explanation)).collect())
    }
}

/// Whether an agent takes the question.
fn is_answered(request: &Path) -> bool {
    if fs::write(request, "").is_err() {
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
