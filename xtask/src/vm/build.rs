//! Builds what runs inside: the agent, the kernel-facing tests and the guest's init, all static, so that the
//! initramfs needs no C library.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::shell::output;

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Integration tests whose file begins so have the kernel as their counterpart.
const KERNEL_FACING: [&str; 2] = ["kernel_", "reflex_"];

/// The static executables.
pub struct Programs {
    pub init: PathBuf,
    pub agent: PathBuf,
    /// Test binaries by name, in order.
    pub tests: Vec<(String, PathBuf)>,
    /// What the tests start: the binaries of their package.
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

/// Compiles everything into a target directory of its own, so that the normal build stays as it is.
///
/// # Errors
/// When something does not compile.
pub fn build(root: &Path) -> Result<Programs> {
    let sources = test_names(&root.join("tests/tests"))?;
    let mut args = vec![
        "build",
        "--package",
        "evictd",
        "--package",
        "xtask",
        "--package",
        "evictd-tests",
    ];
    args.extend(["--bin", "evictd", "--bin", "vm-init"]);
    for name in &sources {
        // Cargo builds the package's own binaries along, because integration tests may start them.
        args.extend(["--test", name]);
    }
    let mut built = Programs {
        init: PathBuf::new(),
        agent: PathBuf::new(),
        tests: Vec::new(),
        helpers: Vec::new(),
    };
    for Executable { kind, name, path } in executables(root, &args)? {
        match (kind.as_str(), name.as_str()) {
            ("bin", "vm-init") => built.init = path,
            ("bin", "evictd") => built.agent = path,
            ("bin", _) => built.helpers.push((name, path)),
            ("test", _) => built.tests.push((name, path)),
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

/// What cargo says it has built.
#[derive(Debug, PartialEq, Eq)]
struct Executable {
    /// `bin` or `test`.
    kind: String,
    name: String,
    path: PathBuf,
}

/// Runs cargo and returns the executables that it reports.
fn executables(root: &Path, args: &[&str]) -> Result<Vec<Executable>> {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .args(args)
        .args([
            "--target",
            TARGET,
            "--message-format",
            "json-render-diagnostics",
            "--target-dir",
        ])
        .arg(root.join("target/static"))
        .current_dir(root)
        .env("RUSTFLAGS", "-Ctarget-feature=+crt-static")
        // The initramfs lies in the guest's memory: names in backtraces stay, lines go.
        .env("CARGO_PROFILE_DEV_DEBUG", "false")
        .env("CARGO_PROFILE_DEV_STRIP", "debuginfo")
        .stderr(Stdio::inherit());
    let output = cargo
        .output()
        .with_context(|| format!("cannot start {cargo:?}"))?;
    if !output.status.success() {
        bail!("{cargo:?} ended with {}", output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(executable)
        .collect())
}

fn executable(line: &str) -> Option<Executable> {
    let message: Value = serde_json::from_str(line).ok()?;
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let target = message.get("target")?;
    Some(Executable {
        path: text(message.get("executable")?)?.into(),
        kind: text(target.get("kind")?.get(0)?)?,
        name: text(target.get("name")?)?,
    })
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
    fn executables_are_read_from_cargo_messages() {
        let line = r#"{"reason":"compiler-artifact","target":{"kind":["test"],"name":"kernel_facts"},"executable":"/t/kernel_facts-1"}"#;
        let test = Executable {
            kind: "test".into(),
            name: "kernel_facts".into(),
            path: "/t/kernel_facts-1".into(),
        };
        assert_eq!(executable(line), Some(test));
        let library = r#"{"reason":"compiler-artifact","target":{"kind":["lib"],"name":"evictd"},"executable":null}"#;
        assert_eq!(executable(library), None);
        assert_eq!(executable("not json"), None);
    }

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
