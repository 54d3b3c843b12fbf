//! Reads a test's output: how it came out, and what it says about signals and hooks.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::protocol::Status;
use crate::libtest;

/// Outcome of a test, with the reason when it did not pass.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    Passed,
    Skipped(String),
    Failed(String),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed => f.write_str("ok"),
            Self::Skipped(reason) => write!(f, "SKIPPED: {reason}"),
            Self::Failed(reason) => write!(f, "FAILED: {reason}"),
        }
    }
}

/// A line `MATRIX {"signal": .., "hook": .., "detail": ..}` of a test, with where it was printed.
#[derive(Debug, Serialize, Deserialize)]
pub struct MatrixRow {
    #[serde(skip_deserializing)]
    pub kernel: String,
    #[serde(skip_deserializing)]
    pub cgroup: String,
    pub signal: String,
    pub hook: String,
    pub detail: String,
}

/// Why a job did not end by itself with exit code 0, if it did not.
pub fn failure(status: &Status) -> Option<String> {
    match status {
        Status::Exited(0) => None,
        Status::Exited(code) => Some(format!("exit code {code}")),
        Status::Killed(signal) => Some(format!("killed by signal {signal}")),
        Status::TimedOut => Some("its time was up".to_owned()),
        Status::NotStarted(reason) => Some(reason.clone()),
    }
}

/// Judges a test by its process and by what it printed.
pub fn judge(status: &Status, output: &str) -> Outcome {
    if let Some(why) = failure(status) {
        let has_ended = matches!(status, Status::Exited(_));
        let panic = libtest::panic(output).filter(|_| has_ended);
        return Outcome::Failed(panic.unwrap_or(why));
    }
    let skipped = output.lines().find_map(libtest::skipped);
    if let Some((_, reason)) = skipped.and_then(|skipped| skipped.split_once(": ")) {
        return Outcome::Skipped(reason.trim().to_owned());
    }
    match output.lines().find_map(libtest::counts) {
        Some((1, 0)) => Outcome::Passed,
        _ => {
            Outcome::Failed("exit code 0, but libtest did not say that one test passed".to_owned())
        }
    }
}

/// The MATRIX lines in a test's output.
pub fn matrix_rows(kernel: &str, cgroup: &str, output: &str) -> impl Iterator<Item = MatrixRow> {
    let rows = |line: &str| serde_json::from_str(line.split_once("MATRIX ")?.1).ok();
    output.lines().filter_map(rows).map(move |row| MatrixRow {
        kernel: kernel.to_owned(),
        cgroup: cgroup.to_owned(),
        ..row
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_passes_only_when_libtest_says_so() {
        let ok =
            "running 1 test\ntest a ... ok\n\ntest result: ok. 1 passed; 0 failed; 0 ignored\n";
        assert_eq!(judge(&Status::Exited(0), ok), Outcome::Passed);
        let none = "running 0 tests\n\ntest result: ok. 0 passed; 0 failed\n";
        assert!(matches!(
            judge(&Status::Exited(0), none),
            Outcome::Failed(_)
        ));
        assert_eq!(
            judge(&Status::Exited(101), ok),
            Outcome::Failed("exit code 101".into())
        );
        let panicked = "test a ... \nthread 'a' (7) panicked at tests/x.rs:9:5:\nfour is not five\n  left: 4\n";
        assert_eq!(
            judge(&Status::Exited(101), panicked),
            Outcome::Failed("tests/x.rs:9:5: four is not five".into())
        );
        assert_eq!(
            judge(&Status::Killed(9), ok),
            Outcome::Failed("killed by signal 9".into())
        );
        assert!(matches!(judge(&Status::TimedOut, ok), Outcome::Failed(_)));
    }

    #[test]
    fn a_test_that_skips_gives_its_reason() {
        let output = "test a ... SKIPPED a: no PSI\nok\n\ntest result: ok. 1 passed; 0 failed\n";
        assert_eq!(
            judge(&Status::Exited(0), output),
            Outcome::Skipped("no PSI".into())
        );
        assert!(matches!(
            judge(&Status::Exited(1), output),
            Outcome::Failed(_)
        ));
        let named = "test a ... SKIPPED kernel_memory line 7: cgroup v2: no eventfd\nok\n";
        assert_eq!(
            judge(&Status::Exited(0), named),
            Outcome::Skipped("cgroup v2: no eventfd".into())
        );
    }

    #[test]
    fn matrix_lines_are_found_after_other_text() {
        let output =
            "test a ... MATRIX {\"signal\":\"oom\",\"hook\":\"fexit\",\"detail\":\"3 us\"}\nx\n";
        let rows = matrix_rows("6.12", "v2", output);
        let rows = rows.map(|row| [row.kernel, row.cgroup, row.signal, row.hook, row.detail]);
        let expected = ["6.12", "v2", "oom", "fexit", "3 us"].map(str::to_owned);
        assert_eq!(rows.collect::<Vec<_>>(), [expected]);
    }
}
