//! `cargo xtask demo`: sets up, builds, and becomes the demo.

use std::{os::unix::process::CommandExt as _, process::Command};

use anyhow::{Context as _, Result};

use crate::{
    setup,
    shell::{run as sh, target_dir},
};

/// Passed on to the demo.
#[derive(clap::Args)]
pub struct Arguments {
    /// Flags of the demo: --size, --threshold, --rate, --runs, --hook
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

/// Does not return when all goes well: the demo takes over this process, so that Ctrl-C reaches it alone.
pub fn run(arguments: &Arguments) -> Result<()> {
    setup::run()?;
    println!("demo: building evictd and its cast (the first build takes some minutes)");
    sh(Command::new("cargo").args([
        "build",
        "--release",
        "--package",
        "evictd",
        "--package",
        "evictd-tests",
        "--bins",
    ]))?;
    let binary = target_dir()?.join("release/demo");
    let error = Command::new(&binary).args(&arguments.rest).exec();
    Err(error).with_context(|| format!("cannot start {}", binary.display()))
}
