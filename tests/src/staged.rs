//! Agents for pods that were laid out before.

use crate::prelude::*;

/// The state directory below an agent's files.
pub const STATE: &str = "state";

/// Writes a manifest and a configuration into a directory and starts an agent on them, with the command changed before.
pub fn start(
    files: &Path,
    manifest: &str,
    mut config: Value,
    change: impl FnOnce(&mut Command),
) -> Result<Agent> {
    let (pods, path) = (files.join("pods.json"), files.join("config.json"));
    fs::write(&pods, manifest)?;
    config["podManifest"] = json!(pods);
    config["stateDir"] = json!(files.join(STATE));
    fs::write(&path, config.to_string())?;
    Agent::start_as(&path, &[], change)
}
