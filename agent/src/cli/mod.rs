//! The command line: one file per subcommand.

use std::{
    io::{self, Write as _},
    path::PathBuf,
    process::ExitCode,
};

use clap::{Parser, Subcommand, ValueEnum};

use crate::{config::ConfigError, embedded::RunError};

mod run;
mod table;
mod thresholds;

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
    /// Show the eviction thresholds in force.
    Thresholds(thresholds::Arguments),
}

/// How a subcommand prints what it found.
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
    /// The daemon cannot start or go on.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A file cannot be read.
    #[error("{}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// A file does not hold what it should.
    #[error("{}: {reason}", path.display())]
    Input { path: PathBuf, reason: String },
    /// The output cannot be written.
    #[error("standard output: {0}")]
    Write(#[from] io::Error),
}

impl CommandError {
    /// Bad input is 2, everything else 1.
    fn exit_code(&self) -> ExitCode {
        match self {
            Self::Config(_) | Self::Read { .. } | Self::Input { .. } => ExitCode::from(2),
            Self::Run(error) if error.is_bad_input() => ExitCode::from(2),
            Self::Run(_) | Self::Write(_) => ExitCode::FAILURE,
        }
    }
}

/// Parses the process's arguments and runs the subcommand; bad input ends with exit code 2 and one line on stderr.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = match arguments.command {
        Command::Run(arguments) => run::run(&arguments),
        Command::Thresholds(arguments) => thresholds::run(&arguments),
    };
    let result = result.and_then(|text| print(&text));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("evictd: {error}");
            error.exit_code()
        }
    }
}

/// Writes a subcommand's output; a reader that has seen enough is not an error.
fn print(text: &str) -> Result<(), CommandError> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// JSON with a newline at its end.
fn to_json(value: &impl serde::Serialize) -> Result<String, CommandError> {
    let text = serde_json::to_string(value).map_err(io::Error::from)?;
    Ok(text + "\n")
}
