//! `cargo xtask upgrade`: builds the agent of an earlier version, and runs the test that goes from it to this one and back.

use crate::{plan, prelude::*, setup};

/// Which version.
#[derive(clap::Args)]
pub struct Arguments {
    /// The version before: a tag or another revision of this repository
    from: String,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    setup::run()?;
    let target = target_dir()?;
    let git = || {
        let mut git = Command::new("git");
        git.current_dir(workspace_root());
        git
    };
    let name = format!("{}^{{commit}}", arguments.from);
    let commit = output(git().args(["rev-parse", "--verify", &name]))
        .with_context(|| format!("{} is no revision of this repository", arguments.from))?;
    let tree = target.join("before").join(commit.trim());
    if !tree.exists() {
        sh(git()
            .args(["worktree", "add", "--force", "--detach"])
            .arg(&tree)
            .arg(commit.trim()))?;
    }
    // One directory for all earlier versions: most of what they are built of is the same.
    let built = target.join("before/target");
    let build = ["build", "--package", "evictd", "--bin", "evictd"];
    sh(cargo()
        .current_dir(&tree)
        .args(build)
        .arg("--target-dir")
        .arg(&built))?;
    sh(git().args(["worktree", "remove", "--force"]).arg(&tree))?;
    // The test starts these by their path.
    plan::build(["--bins"])?;
    sh(plan::command("test")
        .args(["--test", "agent", "upgrade"])
        .env("EVICTD_BEFORE", built.join("debug/evictd")))
}
