//! Builds what runs inside: the agent, the kernel-facing tests and the guest's init, all static as the whole plan is, so
//! that the initramfs needs no C library.

use super::cache;
use crate::{
    plan::{self, Executable},
    prelude::*,
};

/// Integration tests that have the kernel as their counterpart.
const KERNEL_FACING: [&str; 2] = ["fastpath", "kernel"];
/// Programs that those tests start, beside the agent.
const HELPERS: [&str; 2] = ["forker", "hog"];

pub struct Programs {
    pub init: PathBuf,
    pub agent: PathBuf,
    pub tests: Vec<(String, PathBuf)>,
    pub helpers: Vec<(String, PathBuf)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Test {
    /// The binary: `kernel`.
    pub binary: String,
    /// The function's path inside: `facts::memcg_oom_is_counted`.
    pub name: String,
}

impl Test {
    /// The name that tables and filters use: `kernel::facts::memcg_oom_is_counted`.
    pub fn id(&self) -> String {
        format!("{}::{}", self.binary, self.name)
    }

    /// The function's path inside its file: `memcg_oom_is_counted`.
    pub fn function(&self) -> &str {
        self.name
            .split_once("::")
            .map_or(&self.name, |(_, name)| name)
    }
}

/// Builds them, with what else the plan has of binaries.
pub fn build() -> Result<Programs> {
    let mut targets = vec!["--bins"];
    for name in KERNEL_FACING {
        targets.extend(["--test", name]);
    }
    let mut built = Programs {
        init: PathBuf::new(),
        agent: PathBuf::new(),
        tests: Vec::new(),
        helpers: Vec::new(),
    };
    for program in plan::build(targets)? {
        let Executable {
            is_test,
            name,
            path,
            ..
        } = program;
        match (is_test, name.as_str()) {
            (true, _) => built.tests.push((name, stripped(&path)?)),
            (false, "vm-init") => built.init = stripped(&path)?,
            (false, "evictd") => built.agent = stripped(&path)?,
            (false, helper) if HELPERS.contains(&helper) => {
                built.helpers.push((name, stripped(&path)?));
            }
            _ => {}
        }
    }
    built.tests.sort();
    Ok(built)
}

/// A copy without line tables, which would take the guest's memory: names in backtraces stay, lines go.
fn stripped(built: &Path) -> Result<PathBuf> {
    let dir = cache().join("programs");
    fs::create_dir_all(&dir)?;
    let name = built.file_name().context("the program has no name")?;
    let copy = dir.join(name);
    let modified = |path: &Path| fs::metadata(path).and_then(|file| file.modified());
    if modified(&copy).is_ok_and(|copied| modified(built).is_ok_and(|built| built <= copied)) {
        return Ok(copy);
    }
    // Renamed when it is whole: another run may read it.
    let partial = dir.join(format!("{}.{}", name.display(), std::process::id()));
    output(
        Command::new("strip")
            .arg("--strip-debug")
            .arg("-o")
            .args([&partial, built]),
    )?;
    fs::rename(&partial, &copy)?;
    Ok(copy)
}

/// Asks the binaries, which run on the host as well as inside, for their tests. Ignored ones are left out.
pub fn list(programs: &Programs) -> Result<Vec<Test>> {
    let mut tests = Vec::new();
    for (binary, path) in &programs.tests {
        let ignored = plan::tests_of(path, &["--ignored"])?;
        tests.extend(
            plan::tests_of(path, &[])?
                .into_iter()
                .filter(|name| !ignored.contains(name))
                .map(|name| Test {
                    binary: binary.clone(),
                    name,
                }),
        );
    }
    Ok(tests)
}
