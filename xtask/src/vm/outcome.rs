//! Reads a test's output: how it came out, and what it says about signals and hooks.

use std::fmt;

use serde::Serialize;

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

/// A line `MATRIX signal=.. hook=.. result=.. detail=..` of a test, with where it was printed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct MatrixRow {
    pub kernel: String,
    pub cgroup: String,
    pub signal: String,
    pub hook: String,
    pub result: String,
    /// The rest of the line; it may have spaces.
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

/// The MATRIX lines in a test's output; one that lacks a field shows that in the table.
pub fn matrix_rows(kernel: &str, cgroup: &str, output: &str) -> impl Iterator<Item = MatrixRow> {
    let lines = output.lines().filter_map(|line| line.split_once("MATRIX "));
    lines.map(move |(_, fields)| MatrixRow {
        kernel: kernel.to_owned(),
        cgroup: cgroup.to_owned(),
        ..matrix_row(fields)
    })
}

fn matrix_row(fields: &str) -> MatrixRow {
    let mut line = MatrixRow::default();
    let fields = match fields.split_once("detail=") {
        Some((before, detail)) => {
            line.detail = detail.trim().to_owned();
            before
        }
        None => fields,
    };
    for (key, value) in fields
        .split_whitespace()
        .filter_map(|field| field.split_once('='))
    {
        match key {
            "signal" => line.signal = value.to_owned(),
            "hook" => line.hook = value.to_owned(),
            "result" => line.result = value.to_owned(),
            // Unknown keys are kept where people see them.
            _ => line.detail = format!("{key}={value} {}", line.detail).trim().to_owned(),
        }
    }
    line
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
        let output = "test a ... MATRIX signal=memory.available hook=fexit result=ok detail=crossed in 3 us\nx\n\
                      MATRIX signal=pid.available result=refused cpus=2\n";
        let rows: Vec<MatrixRow> = matrix_rows("6.12", "v2", output).collect();
        let row = |signal: &str, hook: &str, result: &str, detail: &str| MatrixRow {
            kernel: "6.12".into(),
            cgroup: "v2".into(),
            signal: signal.into(),
            hook: hook.into(),
            result: result.into(),
            detail: detail.into(),
        };
        let crossed = row("memory.available", "fexit", "ok", "crossed in 3 us");
        let refused = row("pid.available", "", "refused", "cpus=2");
        assert_eq!(rows, [crossed, refused]);
    }
}
