//! `cargo xtask test`: every test there is, and a count of what could not run and why.

use std::{
    io::{BufRead as _, BufReader},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};

use crate::{
    setup,
    shell::{cargo, run as sh},
    vm::{self, Cgroup, MachineOptions},
};

/// Real kernels that take part: the oldest with cgroup v1, and the newest that QEMU's software emulation runs without
/// fault (docs/kernels.md tells of 7.2). `cargo xtask vm test` runs all of them.
const KERNELS: [(&str, Cgroup); 2] = [("5.10", Cgroup::V1), ("6.12", Cgroup::V2)];
/// Seconds for each of them.
const WITHIN: u64 = 150;
/// What runs there: the kernel's programs against the files that show the same numbers. The reflex under emulation takes
/// longer than there is time; `cargo xtask vm test` runs that too.
const IN_GUESTS: &str = "kernel_";

/// Which tests.
#[derive(clap::Args)]
pub struct Arguments {
    /// Leave out the tests in virtual machines
    #[arg(long)]
    without_vm: bool,
    /// Flags of `cargo test`, such as a filter
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

/// Runs the tests; an error when one has failed.
pub fn run(arguments: &Arguments) -> Result<()> {
    setup::run()?;
    setup::for_tests();
    setup::tracefs();
    // The tests start these by their path.
    sh(cargo().args(["build", "--workspace", "--exclude", "evictd-ebpf", "--bins"]))?;
    let mut tally = Tally::default();
    let status = run_and_read(
        cargo()
            .args([
                "test",
                "--workspace",
                "--exclude",
                "evictd-ebpf",
                "--no-fail-fast",
            ])
            .args(&arguments.rest),
        |line| tally.read(line),
    )?;
    // A filter means that somebody looks for something of his own.
    if arguments.rest.is_empty() && !arguments.without_vm {
        for (kernel, cgroup) in KERNELS {
            let options = vm::Options {
                kernels: vec![kernel.to_owned()],
                machine: MachineOptions {
                    cgroup: Some(cgroup),
                    ..MachineOptions::default()
                },
                within: Some(WITHIN),
                filter: Some(IN_GUESTS.to_owned()),
                ..vm::Options::default()
            };
            match vm::test(&options) {
                Ok(summary) => tally.add(&summary),
                // No QEMU, no kernel, no way to build for it: this machine's lack, not the tests'.
                Err(why) => tally.lacks(kernel, &why),
            }
        }
    }
    tally.close();
    if !status || tally.failed > 0 {
        bail!("tests have failed");
    }
    Ok(())
}

/// What the test harnesses have said.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    passed: u64,
    failed: u64,
    skipped: Vec<String>,
}

impl Tally {
    fn read(&mut self, line: &str) {
        // A skip may stand behind the harness's own "test name ... ".
        if let Some((_, reason)) = line.split_once("SKIPPED ") {
            self.skipped.push(reason.to_owned());
        }
        let Some(result) = line.strip_prefix("test result: ") else {
            return;
        };
        let number = |word: &str| {
            let before = result.split(word).next()?.trim().rsplit(' ').next()?;
            before.parse::<u64>().ok()
        };
        self.passed += number("passed").unwrap_or(0);
        self.failed += number("failed").unwrap_or(0);
    }

    /// Takes in what virtual machines have brought, where nothing passes that was skipped.
    fn add(&mut self, machines: &vm::Summary) {
        let skipped = machines.skipped();
        self.passed += (machines.passed() + skipped.len()) as u64;
        self.failed += machines.failed() as u64;
        self.skipped.extend(skipped);
    }

    /// A kernel that could not be booted at all.
    fn lacks(&mut self, kernel: &str, why: &anyhow::Error) {
        self.passed += 1;
        self.skipped.push(format!("kernel {kernel}: {why:#}"));
    }

    fn close(&self) {
        println!("\n{} could not run here in full:", self.skipped.len());
        for reason in &self.skipped {
            println!("  {reason}");
        }
        // A skipped test passes for its harness; here it is counted as what it is.
        let skipped = self.skipped.len() as u64;
        let passed = self.passed.saturating_sub(skipped);
        println!(
            "\n{passed} passed, {} failed, {skipped} skipped",
            self.failed
        );
    }
}

/// Runs a command, shows what it says, and hands every line of both streams to `each`.
fn run_and_read(command: &mut Command, mut each: impl FnMut(&str)) -> Result<bool> {
    let (reader, writer) = std::io::pipe()?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer)
        .spawn()
        .with_context(|| format!("cannot start {command:?}"))?;
    // The command keeps the writing ends open until it is dropped or given others.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    for line in BufReader::new(reader).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        each(&line);
    }
    Ok(child.wait()?.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_and_skips_are_counted() {
        let mut tally = Tally::default();
        for line in [
            "test a ... SKIPPED a line 4: needs root",
            "ok",
            "test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured; 2 filtered out; finished in 1.17s",
            "test result: FAILED. 7 passed; 12 failed; 0 ignored",
        ] {
            tally.read(line);
        }
        let skipped = vec!["a line 4: needs root".to_owned()];
        assert_eq!(
            tally,
            Tally {
                passed: 12,
                failed: 12,
                skipped
            }
        );
    }

    #[test]
    fn a_kernel_that_cannot_be_had_is_a_skip() {
        let mut machines = vm::Summary::default();
        machines.skip_kernel("5.10", "v1", "no QEMU");
        let mut tally = Tally::default();
        tally.add(&machines);
        assert_eq!(tally.skipped, ["kernel 5.10 cgroup v1 *: no QEMU"]);
        assert_eq!((tally.passed - 1, tally.failed), (0, 0));
    }

    #[test]
    fn both_streams_are_read_to_the_end() {
        let mut lines = Vec::new();
        let mut command = Command::new("sh");
        command.args(["-c", "echo out; echo err >&2; exit 3"]);
        assert!(!run_and_read(&mut command, |l| lines.push(l.to_owned())).unwrap());
        lines.sort();
        assert_eq!(lines, ["err", "out"]);
    }
}
