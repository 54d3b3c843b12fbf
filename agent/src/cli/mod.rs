//! The command line: one file for each subcommand, and beside them what several share: `table` and `signals` print,
//! `input` and `scenario` read files, `evictions` reads the journal and incidents, `explained` reads what policies say.

use std::{
    env,
    ffi::OsString,
    io,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Parser, Subcommand, ValueEnum};
use evictd_config::{Config, ConfigError, DEFAULT_STATE_DIR, KubeletDocument, one_line};
use evictd_node::bpf::pin::PinError;
use evictd_sys::fs::PathError;

use crate::daemon::RunError;

mod check;
mod detach;
mod evictions;
mod explained;
mod input;
mod kubectl;
mod policy;
mod rank;
mod replay;
mod report;
mod run;
mod scenario;
mod signals;
mod table;
mod thresholds;
mod top;

/// Evicts the right pod before the OOM killer picks a wrong one.
#[derive(Parser)]
#[command(name = "evictd", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Watch a node and evict pods until told to stop.
    Run(run::Arguments),
    /// Say what this machine gives evictd; ends with 1 if evictd is not usable there.
    Check(check::Arguments),
    /// Show what is left, how fast it goes, and which pod would be evicted next.
    Top(top::Arguments),
    /// Show how an eviction came about and what became of it; without an id: list all evictions.
    Report(report::Arguments),
    /// Show the eviction thresholds in force.
    Thresholds(thresholds::Arguments),
    /// Show the order in which pods would be evicted, and why.
    Rank(rank::Arguments),
    /// Check policies, say what they make of a pod, and render what Kubernetes must know of them.
    Policy(policy::Arguments),
    /// Remove what agents have left attached to the kernel, for when evictd is uninstalled.
    Detach(detach::Arguments),
    /// Show what would have been decided over a recorded sequence.
    Replay(replay::Arguments),
}

/// Arguments of the command, by the name under which the program was called.
enum ProgramName {
    Evictd(Arguments),
    Plugin(kubectl::Arguments),
}

/// Path at which the DaemonSet has its configuration.
const INSTALLED: &str = "/etc/evictd/config.yaml";

/// The named configuration file, or else the installed one, if there is one.
fn or_installed(named: Option<&Path>) -> Option<&Path> {
    let installed = Path::new(INSTALLED);
    named.or(installed.exists().then_some(installed))
}

/// The state directory of the agent with the named configuration, or else of the installed one.
fn state_dir_of(named: Option<&Path>) -> Result<PathBuf, ConfigError> {
    match or_installed(named) {
        Some(path) => Ok(config_of(path)?.state_dir),
        None => Ok(PathBuf::from(DEFAULT_STATE_DIR)),
    }
}

/// An agent's configuration, as the agent reads it: a stand-in takes the place of a kubelet's file that cannot be read.
fn config_of(path: &Path) -> Result<Config, ConfigError> {
    let (config, _) = Config::load_with_stand_in(path, None, &KubeletDocument::default())?;
    Ok(config)
}

/// Format in which a subcommand prints what it found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum OutputFormat {
    /// Columns for people.
    #[default]
    Table,
    /// JSON for programs.
    Json,
}

/// Why a subcommand failed, in one line.
#[derive(Debug, thiserror::Error)]
enum CommandError {
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A policy cannot be used.
    #[error(transparent)]
    Policy(#[from] evictd_policy::file::PolicyError),
    /// The daemon cannot start or go on.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A file cannot be read.
    #[error(transparent)]
    Read(#[from] PathError),
    /// A file does not hold what it should.
    #[error("{}: {reason}", path.display())]
    Input { path: PathBuf, reason: String },
    /// Pinned objects cannot be removed.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// Lines of the journal, or incident files, cannot be read.
    #[error("{}", .0.join("; "))]
    Damaged(Vec<String>),
    /// Lines of the journal have events that only a later version knows. All other lines were read.
    #[error("{}", .0.join("; "))]
    PassedOver(Vec<String>),
    /// An argument asks for something that does not exist here.
    #[error("{what}: {reason}")]
    Argument { what: String, reason: String },
    /// The agents of other nodes cannot be reached.
    #[error(transparent)]
    Fleet(#[from] evictd_kube::fleet_client::FleetError),
    /// The output cannot be written.
    #[error("standard output: {0}")]
    Write(#[from] io::Error),
    /// The daemon's log has the reason; this is the exit code.
    #[error("the log has the reason")]
    Logged(u8),
}

impl CommandError {
    /// Bad input is 2, everything else 1.
    fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_)
            | Self::Policy(_)
            | Self::Read(_)
            | Self::Input { .. }
            | Self::Pin(_)
            | Self::Damaged(_)
            | Self::Argument { .. } => 2,
            Self::Run(error) if error.is_bad_input() => 2,
            Self::Fleet(error) if error.is_bad_input() => 2,
            Self::Run(_) | Self::Fleet(_) | Self::Write(_) => 1,
            Self::PassedOver(_) => 0,
            Self::Logged(code) => *code,
        }
    }
}

/// Prints on standard error which stand-in holds for a KubeletConfiguration that cannot be read, and mistakes of one
/// that holds all the same.
fn print_stand_in(kubelet: &KubeletDocument) {
    if let Some(reason) = &kubelet.unreadable {
        eprintln!(
            "evictd: {}: {}",
            one_line(&reason.to_string()),
            kubelet.source
        );
    }
    for mistake in &kubelet.lenient_warnings {
        eprintln!("evictd: {}, as in the kubelet", one_line(mistake));
    }
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    ExitCode::from(run(
        env::args_os(),
        &mut io::stdout().lock(),
        &mut io::stderr(),
    ))
}

/// Runs a command line, the program's name first, and returns its exit code; bad input ends with 2 and one line on
/// `stderr`.
pub fn run(
    arguments: impl IntoIterator<Item = OsString>,
    stdout: &mut impl io::Write,
    stderr: &mut impl io::Write,
) -> u8 {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let program = arguments.first().map(Path::new).and_then(Path::file_name);
    let is_plugin = program.is_some_and(|name| name == kubectl::PROGRAM);
    let parsed = match is_plugin {
        true => kubectl::Arguments::try_parse_from(arguments).map(ProgramName::Plugin),
        false => Arguments::try_parse_from(arguments).map(ProgramName::Evictd),
    };
    let arguments = match parsed {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help and version are "errors" too, for which the exit code is 0. If this cannot be written, nothing can.
            let text = error.render();
            let _ = if error.use_stderr() {
                write!(stderr, "{text}")
            } else {
                write!(stdout, "{text}")
            };
            return u8::try_from(error.exit_code()).unwrap_or(2);
        }
    };
    // The exit code without an error: 1 for a check that finds evictd not usable.
    let mut success = 0;
    // Errors of a report that was printed all the same.
    let mut lacks = None;
    let result = match arguments {
        ProgramName::Plugin(arguments) => kubectl::run(&arguments),
        ProgramName::Evictd(Arguments { command }) => match command {
            Command::Run(arguments) => run::run(&arguments),
            Command::Check(arguments) => check::run(&arguments).map(|(text, usable)| {
                success = u8::from(!usable);
                text
            }),
            Command::Top(arguments) => top::run(&arguments, stdout),
            Command::Report(arguments) => report::run(&arguments, stdout).map(|unread| {
                lacks = unread;
                String::new()
            }),
            Command::Detach(arguments) => detach::run(&arguments),
            Command::Thresholds(arguments) => thresholds::run(&arguments),
            Command::Rank(arguments) => rank::run(&arguments),
            Command::Policy(arguments) => policy::run(&arguments),
            Command::Replay(arguments) => replay::run(&arguments),
        },
    };
    let printed = result.and_then(|text| print(stdout, &text));
    match printed.and_then(|()| lacks.map_or(Ok(()), Err)) {
        Ok(()) => success,
        Err(CommandError::Logged(code)) => code,
        Err(error) => {
            // If this cannot be written, nothing can.
            let name = if is_plugin {
                kubectl::PROGRAM
            } else {
                "evictd"
            };
            let _ = writeln!(stderr, "{name}: {}", one_line(&error.to_string()));
            error.exit_code()
        }
    }
}

/// Writes a subcommand's output; a reader that closes the pipe is no error.
fn print(stdout: &mut impl io::Write, text: &str) -> Result<(), CommandError> {
    match stdout.write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// JSON with a newline at its end.
fn to_json(value: &impl serde::Serialize) -> Result<String, CommandError> {
    let text = serde_json::to_string(value).map_err(io::Error::from)?;
    Ok(text + "\n")
}
