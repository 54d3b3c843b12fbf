//! Builds what runs inside: the agent, the kernel-facing tests and the guest's init, all static as the whole plan is, so
//! that the initramfs needs no C library.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use super::cache;
use crate::{
    plan::{self, Executable},
    shell::output,
};

/// Integration tests whose file begins so have the kernel as their counterpart.
const KERNEL_FACING: [&str; 2] = ["kernel_", "reflex_"];
/// What those tests start, beside the agent.
const HELPERS: [&str; 2] = ["forker", "hog"];

/// The static executables.
pub struct Programs {
    pub init: PathBuf,
    pub agent: PathBuf,
    /// Test binaries by name, in order.
    pub tests: Vec<(String, PathBuf)>,
    /// What the tests start.
    pub helpers: Vec<(String, PathBuf)>,
}

/// One test function of one binary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Test {
    /// The binary, which is the file's name: `kernel_facts`.
    pub binary: String,
    /// The function's path inside: `memcg_oom_is_counted`.
    pub name: String,
}

impl Test {
    /// The name that tables and filters use: `kernel_facts::memcg_oom_is_counted`.
    pub fn id(&self) -> String {
        format!("{}::{}", self.binary, self.name)
    }
}

/// Builds them, with what else the plan has of binaries.
///
/// # Errors
/// When something does not compile.
pub fn build(root: &Path) -> Result<Programs> {
    let sources = test_names(&root.join("tests/tests"))?;
    let mut targets = vec!["--bins"];
    for name in &sources {
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

/// The kernel-facing test files.
fn test_names(dir: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| format!("{}", dir.display()))? {
        let file = entry?.file_name();
        let Some(name) = file.to_str().and_then(|file| file.strip_suffix(".rs")) else {
            continue;
        };
        if KERNEL_FACING.iter().any(|prefix| name.starts_with(prefix)) {
            names.push(name.to_owned());
        }
    }
    names.sort();
    Ok(names)
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
///
/// # Errors
/// When a binary cannot be run.
pub fn list(programs: &Programs) -> Result<Vec<Test>> {
    let mut tests = Vec::new();
    for (binary, path) in &programs.tests {
        let ask = |extra: &[&str]| {
            output(
                Command::new(path)
                    .args(["--list", "--format", "terse"])
                    .args(extra),
            )
        };
        let (all, ignored) = (ask(&[])?, ask(&["--ignored"])?);
        let ignored: Vec<&str> = names(&ignored).collect();
        tests.extend(
            names(&all)
                .filter(|name| !ignored.contains(name))
                .map(|name| Test {
                    binary: binary.clone(),
                    name: name.to_owned(),
                }),
        );
    }
    Ok(tests)
}

fn names(list: &str) -> impl Iterator<Item = &str> {
    list.lines().filter_map(|line| line.strip_suffix(": test"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn benchmarks_are_not_tests() {
        let list = "a::b: test\nc: benchmark\nd: test\n";
        assert_eq!(names(list).collect::<Vec<_>>(), ["a::b", "d"]);
    }

    #[test]
    fn only_kernel_facing_files_are_taken() -> Result<()> {
        let dir = tempfile::tempdir()?;
        for file in [
            "reflex_kill.rs",
            "kernel_facts.rs",
            "api.rs",
            "kernel_notes.md",
        ] {
            fs::write(dir.path().join(file), "")?;
        }
        assert_eq!(test_names(dir.path())?, ["kernel_facts", "reflex_kill"]);
        Ok(())
    }
}
