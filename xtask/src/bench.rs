//! `cargo xtask bench`: sets up, builds, and becomes the benchmark.

use anyhow::Result;

use crate::shell::become_binary;

/// Passed on to the benchmark.
#[derive(clap::Args)]
pub struct Arguments {
    /// Flags of the benchmark: --quick, --race, --runs, --only, --ways, --rates, --out
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

/// Does not return when all goes well: the benchmark takes over this process, so that Ctrl-C reaches it alone.
pub fn run(arguments: &Arguments) -> Result<()> {
    become_binary("bench", &arguments.rest)
}
