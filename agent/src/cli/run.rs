//! `evictd run`: the daemon.

use std::{
    io::IsTerminal as _,
    path::{Path, PathBuf},
};

use evictd_config::{Config, KubeletDocument, KubeletSource};
use evictd_kube::configz;
use tracing_subscriber::EnvFilter;

use super::CommandError;
use crate::daemon::{self, ConfigSource, RunError};

/// Variable with the log filter, in the form of `RUST_LOG`.
const LOG_VARIABLE: &str = "EVICTD_LOG";

/// Watches a node and evicts pods until it is told to stop.
#[derive(clap::Args)]
pub(super) struct Arguments {
    /// The configuration file
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// A KubeletConfiguration whose eviction settings hold where the configuration file has none
    #[arg(long, value_name = "FILE")]
    kubelet_config: Option<PathBuf>,
    /// Decide and report, kill nothing
    #[arg(long)]
    shadow: bool,
    /// How lines of the log are written
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum LogFormat {
    Text,
    // One object a line, with the same fields.
    Json,
}

pub(super) fn run(arguments: &Arguments) -> Result<String, CommandError> {
    let filter = EnvFilter::try_from_env(LOG_VARIABLE).unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    match arguments.log_format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
    let kubelet_config = arguments.kubelet_config.as_deref();
    let (config, origin) = configured(&arguments.config, kubelet_config, arguments.shadow)?;
    daemon::run(&config, origin)?;
    Ok(String::new())
}

/// What an agent that is told this goes by, the kubelet's own answer included.
pub(super) fn configured(
    path: &Path,
    kubelet_config: Option<&Path>,
    shadow: bool,
) -> Result<(Config, ConfigSource), CommandError> {
    let nothing = KubeletDocument::default();
    let (config, kubelet) = Config::load_beside(path, kubelet_config, &nothing)?;
    let configz =
        configz::ask(&config, kubelet.source == KubeletSource::File).map_err(RunError::from)?;
    let mut origin = ConfigSource::new(path, kubelet_config, configz, shadow);
    let config = origin.load(&config)?;
    Ok((config, origin))
}
