//! `pinnedGuard`: what the kernel does when the agent is stopped or gone.

use std::{path::PathBuf, time::Duration};

use serde_json::Value;

use super::ConfigError;
use crate::decode::ObjectDecoder;

/// Where systemd mounts the BPF filesystem, and the agents' directory in it.
const DIRECTORY: &str = "/sys/fs/bpf/evictd";
/// As long as a node may take to start the agent again, with its image to be pulled.
const EXPIRE_AFTER: Duration = Duration::from_secs(600);

/// What the kernel does when the agent is stopped or gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinnedGuard {
    /// Its `enabled`. Without a BPF filesystem it does nothing either.
    pub enabled: bool,
    /// `directory`: on a BPF filesystem; each agent has a directory of its own in it.
    pub directory: PathBuf,
    /// `expireAfter`: without an agent for so long the kernel kills no pod any more.
    pub expire_after: Duration,
}

impl Default for PinnedGuard {
    fn default() -> Self {
        Self {
            enabled: true,
            directory: DIRECTORY.into(),
            expire_after: EXPIRE_AFTER,
        }
    }
}

pub(super) fn take(fields: &mut ObjectDecoder) -> Result<PinnedGuard, ConfigError> {
    let mut taken = PinnedGuard::default();
    let Some(mut guard) = fields.object("pinnedGuard")? else {
        return Ok(taken);
    };
    taken.enabled = guard.boolean("enabled")?.unwrap_or(true);
    if let Some(directory) = guard.absolute_path("directory")? {
        taken.directory = directory;
    }
    let path = guard.path_of("expireAfter");
    if let Some(expire_after) = guard.duration("expireAfter")? {
        if expire_after.is_zero() {
            let reason = "must be longer than nothing; enabled: false leaves the guard out";
            return Err(ConfigError::value(path, &Value::from("0s"), reason));
        }
        taken.expire_after = expire_after;
    }
    guard.deny_unknown_fields()?;
    Ok(taken)
}
