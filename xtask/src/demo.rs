//! `cargo xtask demo`: sets up, builds, and becomes the demo.

use anyhow::Result;

use crate::shell::become_binary;

/// Passed on to the demo.
#[derive(clap::Args)]
pub struct Arguments {
    /// Flags of the demo: --size, --threshold, --rate, --runs, --hook
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

/// Does not return when all goes well: the demo takes over this process, so that Ctrl-C reaches it alone.
pub fn run(arguments: &Arguments) -> Result<()> {
    become_binary("demo", &arguments.rest)
}
