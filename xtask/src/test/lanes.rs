//! Runs the test harnesses on this machine: most of them a few at a time, those that need it alone.

use std::{
    io::{BufRead as _, BufReader},
    process::{Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};

use super::tally::Tally;
use crate::{parallel::in_parallel, plan::Executable};

/// Integration tests whose name begins so run alone: they measure what a kernel does at that moment, or have real-time
/// threads react to it, and other tests would disturb them and be disturbed.
const ALONE: [&str; 6] = [
    "bench_",
    "kernel_",
    "policy_reflex",
    "reflex_",
    "rounds_",
    "run_",
];

/// What a harness has done.
struct Ran {
    title: String,
    /// Both streams.
    lines: Vec<String>,
    status: ExitStatus,
    took: Duration,
}

/// Names with how long each took.
pub type Durations = Vec<(String, Duration)>;

/// The harnesses that run beside each other, and those that run alone.
pub fn split(tests: Vec<Executable>) -> (Vec<Executable>, Vec<Executable>) {
    let alone = |test: &Executable| {
        test.kind == "test" && ALONE.iter().any(|begin| test.name.starts_with(begin))
    };
    tests.into_iter().partition(|test| !alone(test))
}

/// Runs them, so many at a time, and prints the output of each in one piece when it has ended.
///
/// # Errors
/// When one cannot be started.
pub fn run(tests: &[Executable], at_once: usize, tally: &mut Tally) -> Result<Durations> {
    let mut durations = Vec::new();
    for ran in in_parallel(tests, at_once, |test| {
        let ran = run_harness(test)?;
        // The lock of stdout keeps the piece together.
        println!(
            "\n---- {}: {:.1} s ----\n{}",
            ran.title,
            ran.took.as_secs_f64(),
            ran.lines.join("\n")
        );
        Ok::<_, anyhow::Error>(ran)
    }) {
        let ran = ran?;
        tally.begin(&ran.title);
        for line in &ran.lines {
            tally.read(line);
        }
        tally.end(ran.status.success(), &ran.status.to_string());
        durations.push((ran.title, ran.took));
    }
    Ok(durations)
}

/// Runs a harness as cargo would.
fn run_harness(test: &Executable) -> Result<Ran> {
    let mut command = Command::new(&test.path);
    command
        .current_dir(&test.package)
        .env("CARGO_MANIFEST_DIR", &test.package);
    let (begin, mut lines) = (Instant::now(), Vec::new());
    let status = run_and_read(&mut command, |line| lines.push(line.to_owned()))?;
    Ok(Ran {
        title: test.title(),
        lines,
        status,
        took: begin.elapsed(),
    })
}

/// Runs a command, and hands every line of both streams to `each` as it comes.
pub fn run_and_read(command: &mut Command, mut each: impl FnMut(&str)) -> Result<ExitStatus> {
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
        each(&line);
    }
    Ok(child.wait()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_streams_are_read_to_the_end() {
        let mut lines = Vec::new();
        let mut command = Command::new("sh");
        command.args(["-c", "echo out; echo err >&2; exit 3"]);
        let status = run_and_read(&mut command, |l| lines.push(l.to_owned())).unwrap();
        assert_eq!(status.code(), Some(3));
        lines.sort();
        assert_eq!(lines, ["err", "out"]);
    }
}
