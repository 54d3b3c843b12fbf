//! `cargo xtask e2e`: builds the images that the node needs, and becomes the end-to-end test.

use crate::{
    image::{self, Arch},
    prelude::*,
    setup,
    shell::become_program,
};

/// Does not return when all goes well: the test takes over this process, so that Ctrl-C reaches it alone.
pub fn run(rest: &[String]) -> Result<()> {
    let is = |flag: &str| rest.iter().any(|a| a == flag);
    let help = is("--help") || is("-h");
    if std::env::var_os("KUBECONFIG").is_none_or(|path| path.is_empty()) && !help {
        println!("SKIPPED e2e: KUBECONFIG is not set, so that there is no cluster to run it on");
        return Ok(());
    }
    setup::run()?;
    let named = |flag: &str| {
        let assigned = format!("{flag}=");
        is(flag) || rest.iter().any(|a| a.starts_with(&assigned))
    };
    if !help {
        // What is there already needs not be built.
        let agent = !named("--image") && !is("--installed");
        image::archives(Arch::host(), agent, !named("--hog-image"))?;
    }
    sh(cargo().args(["build", "--package", "evictd-tests", "--bin", "e2e"]))?;
    std::env::set_current_dir(workspace_root())?;
    become_program(&target_dir()?.join("debug/e2e"), rest)
}
