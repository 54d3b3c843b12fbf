//! `evictd detach`: removes what agents have left attached to the kernel.

use std::path::PathBuf;

use evictd_config::Config;
use evictd_node::bpf::pin::{PinDirectory, detach, pinned_below};

use super::{CommandError, config_of, or_installed};

#[derive(clap::Args)]
pub(super) struct Arguments {
    /// The configuration of the agent; without one, the installed one or the defaults.
    #[arg(long)]
    config: Option<PathBuf>,
}

/// Detaches, and says what that was.
pub(super) fn run(arguments: &Arguments) -> Result<String, CommandError> {
    let config = match or_installed(arguments.config.as_deref()) {
        Some(path) => config_of(path)?,
        None => Config::from_values(serde_json::Value::Null, None)?,
    };
    let path = PinDirectory::path_of(&config.pinned_guard.directory, &config.state_dir);
    let removed = detach(&path)?;
    if removed.is_empty() {
        let others = pinned_below(&config.pinned_guard.directory);
        let others: Vec<_> = others.iter().map(|p| p.display().to_string()).collect();
        let others = match others[..] {
            [] => String::new(),
            _ => format!(
                "others are pinned, each below the name of its stateDir: {}\n",
                others.join(", ")
            ),
        };
        return Ok(format!("nothing is pinned in {}\n{others}", path.display()));
    }
    let lines = removed
        .iter()
        .map(|name| format!("detached {}\n", name.display()));
    Ok(lines.collect())
}
