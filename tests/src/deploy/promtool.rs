//! Prometheus's own checker of rules, from the `PATH` or from Debian's package, which is unpacked below `target/` and not installed.

use std::sync::OnceLock;

use super::{fetched, run};
use crate::prelude::*;

const PACKAGE: &str = "prometheus";

/// The program, fetched when it is needed for the first time; or why it cannot be had here.
pub fn promtool() -> Result<&'static Path, &'static str> {
    static PROMTOOL: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let found = PROMTOOL.get_or_init(|| find().map_err(|e| format!("no promtool: {e:#}")));
    found.as_deref().map_err(String::as_str)
}

fn find() -> Result<PathBuf> {
    if Command::new("promtool").arg("--version").output().is_ok() {
        return Ok("promtool".into());
    }
    let unpacked = fetched("promtool", |partial| {
        let download = || {
            let mut apt = Command::new("apt-get");
            apt.current_dir(partial).args(["download", "-qq", PACKAGE]);
            run(&mut apt)
        };
        // A machine that has never looked has no lists of packages.
        if download().is_err() {
            run(Command::new("apt-get").args(["update", "-qq"]))?;
            download()?;
        }
        let package = fs::read_dir(partial)?
            .flatten()
            .map(|entry| entry.path())
            .find(|path| path.extension().is_some_and(|e| e == "deb"))
            .context("apt-get downloaded no package")?;
        run(Command::new("dpkg").arg("-x").arg(&package).arg(partial))?;
        Ok(())
    })?;
    Ok(unpacked.join("usr/bin/promtool"))
}
