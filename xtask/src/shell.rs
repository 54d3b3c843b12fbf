//! Running other programs: one place that shows the command when it fails.

use std::{env, os::unix::process::CommandExt as _};

use nix::unistd::geteuid;

use crate::prelude::*;

/// Runs a command with this terminal as its own; an error names the command.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("cannot start {command:?}"))?;
    ensure!(status.success(), "{command:?} ended with {status}");
    Ok(())
}

/// Runs a command and returns what it wrote to stdout; an error carries what it wrote to stderr.
pub fn output(command: &mut Command) -> Result<String> {
    let output = command
        .output()
        .with_context(|| format!("cannot start {command:?}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{command:?} ended with {}: {}", output.status, said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Finds the path of a program; the sbin directories count even when PATH leaves them out.
pub fn find(program: &str) -> Result<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|dir| dir.join(program))
        .find(|path| path.is_file())
        .with_context(|| format!("{program} is not installed"))
}

/// Lists the packages of those programs that are not here.
pub fn missing<'a>(wanted: &[(&str, &'a str)]) -> Vec<&'a str> {
    let missing = wanted.iter().filter(|(program, _)| find(program).is_err());
    missing.map(|(_, package)| *package).collect()
}

/// Installs Debian packages; refreshes the package lists only when the packages are not known yet.
pub fn apt_install(packages: &[&str]) -> Result<()> {
    if !geteuid().is_root() {
        bail!("not root; run: sudo apt-get install {}", packages.join(" "));
    }
    let install = || {
        run(Command::new("apt-get")
            .args(["install", "-y", "-qq", "--no-install-recommends"])
            .args(packages)
            .env("DEBIAN_FRONTEND", "noninteractive"))
    };
    if install().is_ok() {
        return Ok(());
    }
    println!("setup: refreshing the package lists");
    run(Command::new("apt-get").args(["update", "-qq"]))?;
    install()
}

/// Cargo as from a shell. `cargo xtask` hands down what it knows of this package, and build scripts that are run again when
/// such a variable changes (ring's) would have all that depends on them compiled anew.
pub fn cargo() -> Command {
    let mut cargo = Command::new("cargo");
    for (name, _) in env::vars_os() {
        let of_package = |n: &str| n.starts_with("CARGO_PKG_") || n.starts_with("CARGO_MANIFEST_");
        if name.to_str().is_some_and(of_package) {
            cargo.env_remove(&name);
        }
    }
    cargo
}

pub fn target_dir() -> Result<PathBuf> {
    let metadata = output(cargo().args(["metadata", "--no-deps", "--format-version", "1"]))?;
    let metadata: Value = serde_json::from_str(&metadata)?;
    let dir = metadata["target_directory"].as_str();
    dir.map(PathBuf::from)
        .context("cargo metadata names no target directory")
}

/// The directory that holds the workspace's Cargo.toml.
pub fn workspace_root() -> &'static Path {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask)
}

/// Sets up, and builds a release of some binaries of the agent and of the tests; returns the directory that they are in.
pub fn release_binaries(names: &[&str]) -> Result<PathBuf> {
    crate::setup::run()?;
    println!(
        "building {} (the first build takes some minutes)",
        names.join(", ")
    );
    let mut build = cargo();
    build.args(["build", "--release", "--package", "evictd"]);
    build.args(["--package", "evictd-tests"]);
    run(build.args(names.iter().flat_map(|name| ["--bin", name])))?;
    Ok(target_dir()?.join("release"))
}

/// Becomes another program: Ctrl-C reaches it alone. Returns only when that fails.
pub fn become_program(program: &Path, arguments: &[String]) -> Result<()> {
    let error = Command::new(program).args(arguments).exec();
    Err(error).with_context(|| format!("cannot start {}", program.display()))
}
