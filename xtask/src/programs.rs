//! Commands that build a program of the tests and become it.

use crate::{
    prelude::*,
    setup,
    shell::{become_program, release_binaries},
};

/// Passed on to the program.
#[derive(clap::Args)]
pub struct Rest {
    /// Flags of the program
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub rest: Vec<String>,
}

pub fn demo(rest: &[String]) -> Result<()> {
    let built = release_binaries(&["evictd", "hog", "demo"])?;
    become_program(&built.join("demo"), rest)
}

/// With the agent and the hog as the tests have them.
pub fn chaos(rest: &[String]) -> Result<()> {
    setup::run()?;
    let bins = "build --quiet --workspace --exclude evictd-ebpf --bins";
    debug(bins, "chaos", rest)
}

/// Simulates, so that nothing has to be set up.
pub fn judge(rest: &[String]) -> Result<()> {
    debug("build --quiet --package evictd-judge", "judge", rest)
}

fn debug(build: &str, name: &str, rest: &[String]) -> Result<()> {
    sh(cargo().args(build.split_whitespace()))?;
    become_program(&target_dir()?.join("debug").join(name), rest)
}
