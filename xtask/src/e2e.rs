//! `cargo xtask e2e`: builds the images that the node needs, and becomes the end-to-end test.

use std::{os::unix::process::CommandExt as _, process::Command};

use anyhow::{Context as _, Result};

use crate::{
    image, setup,
    shell::{cargo, run as sh, target_dir, workspace_root},
};

/// Passed on to the test.
#[derive(clap::Args)]
pub struct Arguments {
    /// Flags of the test: --image, --node, --rate, --threshold, --installed, --privileged, --keep (try `-- --help`)
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

/// Does not return when all goes well: the test takes over this process, so that Ctrl-C reaches it alone.
pub fn run(arguments: &Arguments) -> Result<()> {
    let is = |flag: &str| arguments.rest.iter().any(|a| a == flag);
    let help = is("--help") || is("-h");
    if std::env::var_os("KUBECONFIG").is_none_or(|path| path.is_empty()) && !help {
        println!("SKIPPED e2e: KUBECONFIG is not set, so that there is no cluster to run it on");
        return Ok(());
    }
    setup::run()?;
    let named = |flag: &str| {
        let assigned = format!("{flag}=");
        is(flag) || arguments.rest.iter().any(|a| a.starts_with(&assigned))
    };
    if !help {
        // What is there already needs not be built.
        let agent = !named("--image") && !is("--installed");
        image::for_e2e(agent, !named("--hog-image"))?;
    }
    sh(cargo().args(["build", "--package", "evictd-tests", "--bin", "e2e"]))?;
    let binary = target_dir()?.join("debug/e2e");
    let error = Command::new(&binary)
        .args(&arguments.rest)
        .current_dir(workspace_root())
        .exec();
    Err(error).with_context(|| format!("cannot start {}", binary.display()))
}
