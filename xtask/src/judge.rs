//! `cargo xtask judge`: builds the judge as the tests are built, and becomes it. It simulates, so that nothing has to be set up.

use anyhow::Result;

use crate::shell::{become_program, cargo, run as sh, target_dir};

/// Passed on to the judge.
#[derive(clap::Args)]
pub struct Arguments {
    /// Flags of the judge: --incidents, --first, --seed, --output
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

/// Does not return when all goes well: the judge takes over this process.
pub fn run(arguments: &Arguments) -> Result<()> {
    sh(cargo().args([
        "build",
        "--quiet",
        "--package",
        "evictd-tests",
        "--bin",
        "judge",
    ]))?;
    become_program(&target_dir()?.join("debug/judge"), &arguments.rest)
}
