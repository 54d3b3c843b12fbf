//! The `evictd` binary: arguments and dispatch, nothing else.

use std::process::ExitCode;

fn main() -> ExitCode {
    evictd::cli::main()
}
