//! Reads what test harnesses print, and says at the end how many tests passed, failed and were skipped, and which.

use super::lanes::Durations;
use crate::{libtest, prelude::*, vm};

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Tally {
    passed: u64,
    failed: u64,
    skipped: Vec<String>,
    failures: Vec<String>,
}

impl Tally {
    /// Takes in all that a harness has printed. One that ended badly without a failed test, such as by a signal, or without its
    /// closing line is a failure of its own.
    pub fn read(&mut self, harness: &str, lines: &[impl AsRef<str>], ended: Result<(), String>) {
        let (mut failed_here, mut is_complete) = (0, false);
        // The harness prints `failures:` twice, the second time before names alone.
        let mut listed = Vec::new();
        for line in lines.iter().map(AsRef::as_ref) {
            self.skipped
                .extend(libtest::skipped(line).map(str::to_owned));
            if line == "failures:" {
                listed.clear();
            }
            if let Some(name) = line.strip_prefix("    ") {
                listed.push(format!("{harness}::{name}"));
            }
            if let Some((passed, failed)) = libtest::counts(line) {
                is_complete = true;
                self.passed += passed;
                failed_here += failed;
                if failed > 0 {
                    self.failures.append(&mut listed);
                }
            }
        }
        self.failed += failed_here;
        match ended {
            Err(how) if failed_here == 0 => self.fails(&format!("{harness}: {how}")),
            Ok(()) if !is_complete => {
                self.fails(&format!("{harness}: it ended in the middle of its tests"))
            }
            _ => {}
        }
    }

    /// Takes in what virtual machines have brought, where nothing passes that was skipped.
    /// Returns how long each was up.
    pub fn add(&mut self, machines: Result<vm::Summary>) -> Durations {
        let machines = match machines {
            Ok(machines) => machines,
            // What this machine lacks is among the skipped ones.
            Err(why) => {
                self.fails(&format!("real kernels: {why:#}"));
                return Durations::new();
            }
        };
        let skipped = machines.skipped();
        self.passed += (machines.passed() + skipped.len()) as u64;
        self.failed += machines.failed() as u64;
        self.failures.extend(machines.failures());
        self.skipped.extend(skipped);
        machines.machines
    }

    /// Counts a failure of what could not be run for a reason that is none of this machine's.
    fn fails(&mut self, what: &str) {
        self.failed += 1;
        self.failures.push(what.to_owned());
    }

    pub const fn has_failed(&self) -> bool {
        self.failed > 0
    }

    /// Prints what was skipped, and what has failed.
    pub fn print_names(&self) {
        println!("\n{} could not run here in full:", self.skipped.len());
        for reason in &self.skipped {
            println!("  {reason}");
        }
        if self.failed > 0 {
            println!("\n{} failed:", self.failed);
        }
        for name in &self.failures {
            println!("  {name}");
        }
    }

    /// The closing line. A skipped test passes for its harness; here it is counted as what it is.
    pub fn print_counts(&self) {
        let skipped = self.skipped.len() as u64;
        let passed = self.passed.saturating_sub(skipped);
        println!(
            "\n{passed} passed, {} failed, {skipped} skipped",
            self.failed
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::outcome::Outcome;

    #[test]
    fn results_and_skips_are_counted() {
        let mut tally = Tally::default();
        let lines = [
            "test a ... SKIPPED a line 4: needs root",
            "ok",
            "test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured; 2 filtered out; finished in 1.17s",
            "test result: FAILED. 7 passed; 12 failed; 0 ignored",
        ];
        tally.read("kernel_pids", &lines, Err("exit status: 101".into()));
        assert_eq!((tally.passed, tally.failed), (12, 12));
        assert_eq!(tally.skipped, ["a line 4: needs root"]);
    }

    #[test]
    fn failed_tests_are_named_with_their_harness() {
        let mut tally = Tally::default();
        let lines = [
            "test a ... FAILED",
            "failures:",
            "---- a stdout ----",
            "    left: 1",
            "failures:",
            "    a",
            "    m::b",
            "",
            "test result: FAILED. 7 passed; 2 failed; 0 ignored",
        ];
        tally.read("kernel_pids", &lines, Err("exit status: 101".into()));
        assert_eq!(tally.failures, ["kernel_pids::a", "kernel_pids::m::b"]);
        assert_eq!(tally.failed, 2);
    }

    #[test]
    fn a_harness_that_is_killed_has_failed() {
        let mut tally = Tally::default();
        let killed = Err("signal: 9 (SIGKILL)".into());
        tally.read("kernel_oom", &["test a ... "], killed);
        assert_eq!(tally.failed, 1);
        assert_eq!(tally.failures, ["kernel_oom: signal: 9 (SIGKILL)"]);
        tally.read("kernel_pids", &["test a ... "], Ok(()));
        assert_eq!(tally.failed, 2);
    }

    #[test]
    fn a_kernel_that_cannot_be_had_is_a_skip() {
        let mut machines = vm::Summary::default();
        machines.add_machine("5.10", "v1", Outcome::Skipped("no QEMU".into()));
        let mut tally = Tally::default();
        tally.add(Ok(machines));
        assert_eq!(tally.skipped, ["kernel 5.10 cgroup v1 *: no QEMU"]);
        assert_eq!((tally.passed - 1, tally.failed), (0, 0));
    }
}
