//! `pinnedGuard`: the kernel program that acts when the agent is stopped or gone.

use std::{path::PathBuf, time::Duration};

use serde_json::Value;

use super::ConfigError;
use crate::decode::ObjectDecoder;

/// Default of `directory`, below the mount point that systemd uses for the BPF filesystem.
const DIRECTORY: &str = "/sys/fs/bpf/evictd";
/// Default of `expireAfter`: as long as a node may take to pull the image and start the agent again.
const EXPIRE_AFTER: Duration = Duration::from_secs(600);

/// The settings of the pinned guard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinnedGuardConfig {
    /// `enabled`. Without a BPF filesystem there is no guard in any case.
    pub enabled: bool,
    /// `directory`: on a BPF filesystem; each agent has a subdirectory of its own.
    pub directory: PathBuf,
    /// `expireAfter`: how long after the agent's end the kernel program still kills.
    pub expire_after: Duration,
}

impl Default for PinnedGuardConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            directory: DIRECTORY.into(),
            expire_after: EXPIRE_AFTER,
        }
    }
}

pub(super) fn take(fields: &mut ObjectDecoder) -> Result<PinnedGuardConfig, ConfigError> {
    let mut taken = PinnedGuardConfig::default();
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
            let reason = "must be longer than nothing; enabled: false leaves the pinned guard out";
            return Err(ConfigError::value(path, &Value::from("0s"), reason));
        }
        taken.expire_after = expire_after;
    }
    guard.deny_unknown_fields()?;
    Ok(taken)
}
