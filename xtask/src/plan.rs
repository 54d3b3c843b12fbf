//! The one build of all that tests start: binaries and test harnesses, for this machine's target and statically linked.
//!
//! The tests on this machine and the guests of `cargo xtask vm` share it, so that every crate is compiled once, and the
//! tests run what nodes run: a static binary. An explicit `--target` keeps the flags from build scripts and proc-macros,
//! which cannot be static.

use crate::{image::Arch, prelude::*};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Executable {
    /// The directory of its package: `agent`, `tests`.
    pub package: PathBuf,
    /// `lib`, `bin` or `test`.
    pub kind: String,
    pub name: String,
    /// Whether it is a test harness: of the integration tests of that name, or of the unit tests of that library or binary.
    pub is_test: bool,
    pub path: PathBuf,
}

impl Executable {
    /// What tables and headings call it: the name of an integration test; of unit tests, the package and what they test.
    pub fn title(&self) -> String {
        let package = self.package.file_name().unwrap_or_default().display();
        match &*self.kind {
            "test" => self.name.clone(),
            kind => format!("{package} ({kind} {})", self.name),
        }
    }
}

/// A cargo command with the flags of the plan; every one takes the whole workspace, so that all see the same features. What
/// `EVICTD_RUSTC_WRAPPER` names compiles the workspace's own crates: CI has them linted and documented on the way.
pub fn command(subcommand: &str) -> Command {
    let mut cargo = cargo();
    cargo
        .arg(subcommand)
        .args(["--workspace", "--exclude", "evictd-ebpf"])
        .args(["--target", Arch::host().rust_target()])
        .current_dir(workspace_root())
        .env("RUSTFLAGS", "-Ctarget-feature=+crt-static")
        .env_remove("CARGO_ENCODED_RUSTFLAGS");
    if let Some(wrapper) = std::env::var_os("EVICTD_RUSTC_WRAPPER") {
        cargo.env("RUSTC_WORKSPACE_WRAPPER", wrapper);
    }
    cargo
}

/// Builds these of the workspace's targets, and returns the executables among them.
pub fn build<'a>(targets: impl IntoIterator<Item = &'a str>) -> Result<Vec<Executable>> {
    require_static_libc()?;
    let mut cargo = command("build");
    cargo
        .args(targets)
        .args(["--message-format", "json-render-diagnostics"])
        .stderr(Stdio::inherit());
    let output = cargo
        .output()
        .with_context(|| format!("cannot start {cargo:?}"))?;
    ensure!(
        output.status.success(),
        "{cargo:?} ended with {}",
        output.status
    );
    Ok(String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(executable)
        .collect())
}

/// Asks a test harness for the names of its tests.
pub fn tests_of(program: &Path, arguments: &[&str]) -> Result<Vec<String>> {
    let mut command = Command::new(program);
    let list = output(
        command
            .args(["--list", "--format", "terse"])
            .args(arguments),
    )?;
    Ok(test_names(&list).map(str::to_owned).collect())
}

fn test_names(list: &str) -> impl Iterator<Item = &str> {
    list.lines().filter_map(|line| line.strip_suffix(": test"))
}

/// Debian's libc6-dev has it; other distributions have a package of its own.
fn require_static_libc() -> Result<()> {
    // gcc gives back the bare name of a library that it does not find.
    let found = output(Command::new("cc").arg("-print-file-name=libc.a"))?;
    if !Path::new(found.trim()).is_absolute() {
        bail!(
            "the static C library (libc.a) is missing; install glibc-static, or libc6-dev on Debian"
        );
    }
    Ok(())
}

fn executable(line: &str) -> Option<Executable> {
    let message: Value = serde_json::from_str(line).ok()?;
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let target = message.get("target")?;
    let manifest = PathBuf::from(text(message.get("manifest_path")?)?);
    Some(Executable {
        path: text(message.get("executable")?)?.into(),
        package: manifest.parent()?.to_owned(),
        kind: text(target.get("kind")?.get(0)?)?,
        name: text(target.get("name")?)?,
        is_test: message.get("profile")?.get("test")?.as_bool()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executables_are_read_from_cargo_messages() {
        let line = r#"{"reason":"compiler-artifact","manifest_path":"/w/tests/Cargo.toml","target":{"kind":["test"],"name":"kernel_facts"},"profile":{"test":true},"executable":"/t/kernel_facts-1"}"#;
        let test = Executable {
            package: "/w/tests".into(),
            kind: "test".into(),
            name: "kernel_facts".into(),
            is_test: true,
            path: "/t/kernel_facts-1".into(),
        };
        assert_eq!(executable(line), Some(test));
        let library = r#"{"reason":"compiler-artifact","manifest_path":"/w/agent/Cargo.toml","target":{"kind":["lib"],"name":"evictd"},"profile":{"test":false},"executable":null}"#;
        assert_eq!(executable(library), None);
        assert_eq!(executable("not json"), None);
    }

    #[test]
    fn benchmarks_are_not_tests() {
        let list = "a::b: test\nc: benchmark\nd: test\n";
        assert_eq!(test_names(list).collect::<Vec<_>>(), ["a::b", "d"]);
    }
}
