//! `cargo xtask chaos`: builds the agent and the hog as the tests are built, and becomes the program that plays the incidents.

use anyhow::Result;

use crate::{
    setup,
    shell::{become_program, cargo, run as sh, target_dir},
};

/// Passed on to the program.
#[derive(clap::Args)]
pub struct Arguments {
    /// Flags of the program: --fault, --rate, --runs, --seed
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

/// Does not return when all goes well: the program takes over this process.
pub fn run(arguments: &Arguments) -> Result<()> {
    setup::run()?;
    let build = [
        "build",
        "--quiet",
        "--workspace",
        "--exclude",
        "evictd-ebpf",
        "--bins",
    ];
    sh(cargo().args(build))?;
    become_program(&target_dir()?.join("debug/chaos"), &arguments.rest)
}
