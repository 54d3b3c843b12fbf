//! `evictd run`: the daemon.

use std::{
    env,
    ffi::OsString,
    io::IsTerminal as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use evictd_config::{Config, KubeletDocument, KubeletSource, Unreadable};
use evictd_kube::{
    client::{DEADLINE, PATIENCE_AT_START},
    configz,
};
use evictd_sys::process::separate_arenas;
use tracing_subscriber::EnvFilter;

use super::CommandError;
use crate::daemon::{
    ConfigSource, Daemon, RunError,
    log::{Log, LogWriter},
};

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
    separate_arenas();
    let log = start_log(arguments.log_format)?;
    let ended = watch(arguments, &log);
    let reason = ended
        .as_ref()
        .err()
        .map(|error| format!("evictd: {error}\n"));
    log.end(&reason.unwrap_or_default());
    match ended {
        Ok(()) => Ok(String::new()),
        Err(error) => Err(CommandError::Logged(error.exit_code())),
    }
}

fn watch(arguments: &Arguments, log: &Arc<Log>) -> Result<(), CommandError> {
    let daemon = Daemon::prepare(log)?;
    let kubelet_config = arguments.kubelet_config.as_deref();
    let warn = |error: &str| {
        tracing::warn!(error, "{CONFIGZ_UNKNOWN}");
    };
    let path = &arguments.config;
    // The node is not left alone for a kubelet that does not answer: it is asked again later.
    let (config, origin) = load_config(
        path,
        kubelet_config,
        arguments.shadow,
        PATIENCE_AT_START,
        warn,
    )?;
    Ok(daemon.run(&config, origin, log)?)
}

/// Starts the log. Its thread is the first one: it has the priority and the CPUs of the process.
fn start_log(format: LogFormat) -> Result<Arc<Log>, CommandError> {
    let log = Log::to_stderr().map_err(RunError::from)?;
    let (filter, refused) = log_filter(env::var_os(LOG_VARIABLE));
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(LogWriter(Arc::clone(&log)))
        .with_ansi(std::io::stderr().is_terminal())
        // They would be written to standard error past the thread.
        .log_internal_errors(false);
    match format {
        LogFormat::Text => lines.init(),
        LogFormat::Json => lines.json().flatten_event(true).init(),
    }
    if let Some(reason) = refused {
        tracing::warn!("{LOG_VARIABLE}: {reason}: the log shows what `info` does");
    }
    Ok(log)
}

/// The filter that the variable asks for; `info` where it is not set, or cannot be used: a node is not left alone
/// because of its log.
fn log_filter(variable: Option<OsString>) -> (EnvFilter, Option<String>) {
    let text = variable.as_ref().map(|text| text.display().to_string());
    let refused = match &text {
        None => None,
        Some(text) => match EnvFilter::try_new(text) {
            Ok(filter) => return (filter, None),
            Err(error) => Some(format!("\"{text}\": {error}")),
        },
    };
    (EnvFilter::new("info"), refused)
}

const CONFIGZ_UNKNOWN: &str =
    "the kubelet's /configz cannot be read: the file and the defaults hold until it answers";

/// The configuration that these arguments give, with the stand-in for the kubelet's, for a command that only looks.
pub(super) fn resolve_config(
    path: &Path,
    kubelet_config: Option<&Path>,
) -> Result<(Config, KubeletDocument), CommandError> {
    let mut refusal = None;
    let warn = |error: &str| refusal = Some(error.to_owned());
    let (config, origin) = load_config(path, kubelet_config, false, DEADLINE, warn)?;
    let kubelet = origin.kubelet;
    // The command itself says why the stand-in holds. Where that is a file that cannot be read, it is said here why
    // `/configz` has not taken its place.
    if let Some(error) = refusal
        && !matches!(kubelet.unreadable, Some(Unreadable::Configz(_)))
    {
        eprintln!("evictd: {CONFIGZ_UNKNOWN}: {error}");
    }
    Ok((config, kubelet))
}

/// The configuration that these arguments give, the kubelet's own answer included; `warn` has why there is none.
fn load_config(
    path: &Path,
    kubelet_config: Option<&Path>,
    shadow: bool,
    patience: Duration,
    warn: impl FnOnce(&str),
) -> Result<(Config, ConfigSource), CommandError> {
    let nothing = KubeletDocument::default();
    let (config, kubelet) = Config::load_cluster(path, kubelet_config)?;
    let configz = configz::ask(&config, kubelet.source == KubeletSource::File, patience);
    let stand_in = match configz {
        Ok(answer) => answer.map_or(nothing, KubeletDocument::from_configz),
        Err(error) => {
            warn(&error);
            KubeletDocument::without_configz(&error)
        }
    };
    let mut origin = ConfigSource::new(path, kubelet_config, stand_in, shadow);
    let config = origin.load(&config)?;
    Ok((config, origin))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_that_cannot_be_used_is_told_and_leaves_the_default() {
        let filter = |text: &str| {
            let (filter, refused) = log_filter(Some(text.into()));
            (filter.to_string(), refused)
        };
        for text in ["loud=quiet", "info,evictd=5s"] {
            let (filter, refused) = filter(text);
            assert_eq!(filter, "info");
            assert!(refused.is_some_and(|reason| reason.starts_with(&format!("\"{text}\": "))));
        }
        assert_eq!(filter("warn"), ("warn".to_owned(), None));
        assert_eq!(log_filter(None).0.to_string(), "info");
    }
}
