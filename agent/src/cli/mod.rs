//! The command line: one file per subcommand.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Evicts the right pod before the OOM killer picks a wrong one.
#[derive(Parser)]
#[command(name = "evictd", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {}

/// Parses the process's arguments and runs the subcommand; bad input ends with exit code 2 and one line on stderr.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match arguments.command {}
}
