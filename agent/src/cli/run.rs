//! `evictd run`: the daemon.

use std::{
    env,
    ffi::OsString,
    io::IsTerminal as _,
    path::{Path, PathBuf},
};

use evictd_config::{Config, KubeletDocument, KubeletSource};
use evictd_kube::configz;
use tracing_subscriber::EnvFilter;

use super::{CommandError, input::bad};
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
    let log = tracing_subscriber::fmt()
        .with_env_filter(log_filter(env::var_os(LOG_VARIABLE))?)
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

/// The filter that the variable asks for; `info` where it is not set.
fn log_filter(variable: Option<OsString>) -> Result<EnvFilter, CommandError> {
    let Some(text) = variable else {
        return Ok(EnvFilter::new("info"));
    };
    let shown = text.display();
    let text = text
        .to_str()
        .ok_or_else(|| bad(LOG_VARIABLE, &format!("\"{shown}\": is not UTF-8")))?;
    EnvFilter::try_new(text).map_err(|e| bad(LOG_VARIABLE, &format!("\"{text}\": {e}")))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_that_cannot_be_used_is_refused() {
        let filter = |text: &str| log_filter(Some(text.into())).map(|filter| filter.to_string());
        for text in ["loud=quiet", "info,evictd=5s"] {
            let error = filter(text).expect_err(text);
            assert_eq!(error.exit_code(), 2);
            let expected = format!("EVICTD_LOG: \"{text}\": ");
            assert!(error.to_string().starts_with(&expected), "{error}");
        }
        assert_eq!(filter("warn").expect("a filter"), "warn");
        assert_eq!(log_filter(None).expect("a filter").to_string(), "info");
    }
}
