//! Runs the test harnesses on this machine: most of them a few at a time, those that need it alone.

use std::{
    io::{BufRead as _, BufReader},
    process::ExitStatus,
};

use super::tally::Tally;
use crate::{
    parallel::in_parallel,
    plan::{self, Executable},
    prelude::*,
};

/// Integration tests whose title begins so run alone: they measure what a kernel does at that moment, or how soon real-time
/// threads react to it, and other tests would disturb them and be disturbed.
const ALONE: [&str; 4] = [
    "agent::bench_",
    "agent::manager_embedded",
    "fastpath::",
    "kernel::",
];
/// Not these: there the kernel's program kills in the task that charges, or pods go after ten seconds.
const NOT_ALONE: [&str; 2] = ["fastpath::guard", "fastpath::paced"];
/// Harnesses whose tests mostly wait for intervals of seconds, and so many of them at a time.
const MOSTLY_WAIT: [(&str, &str); 9] = [
    ("fastpath::pace", "3"),
    ("fastpath::paced", "3"),
    ("agent::manager_embedded", "4"),
    ("agent::run_modes", "4"),
    ("agent::run_stalled", "4"),
    ("kube::evicts", "4"),
    ("kube::manager", "6"),
    ("kube::node", "4"),
    ("kube::recreation", "4"),
];
/// The longest that run beside others, which begin first: none of them runs on by itself at the end.
const LONGEST_FIRST: [&str; 10] = [
    "kube::manager",
    "kube::chaos",
    "agent::run_modes",
    "policy::fastpath",
    "store (lib evictd_store)",
    "fastpath::guard",
    "kube::evicts",
    "agent::run_reload",
    "kube::fleet",
    "agent::run_stalled",
];

/// Tests that share a process: the unit tests of a library or binary, or those of one file of an integration test.
pub struct Harness {
    program: Executable,
    /// The file's module; empty for what stands in `main.rs`, and for unit tests.
    module: String,
    /// Tests that are run; everything when this is empty.
    tests: Vec<String>,
}

impl Harness {
    /// All of a program, which is asked for its tests.
    pub fn of(program: Executable) -> Result<Vec<Self>> {
        if program.kind != "test" {
            return Ok(vec![Self {
                program,
                module: String::new(),
                tests: Vec::new(),
            }]);
        }
        let mut modules = BTreeMap::<String, Vec<String>>::new();
        for test in plan::tests_of(&program.path, &[])? {
            let module = test.split_once("::").map_or("", |(module, _)| module);
            modules.entry(module.to_owned()).or_default().push(test);
        }
        let modules = modules.into_iter();
        Ok(modules
            .map(|(module, tests)| Self {
                program: program.clone(),
                module,
                tests,
            })
            .collect())
    }

    /// What tables and headings call it: `kernel::pids`; of unit tests, the package and what they test.
    pub fn title(&self) -> String {
        let program = self.program.title();
        match &*self.module {
            "" => program,
            module => format!("{program}::{module}"),
        }
    }
}

struct Ran {
    title: String,
    program: String,
    /// Lines of both output streams.
    lines: Vec<String>,
    status: ExitStatus,
    took: Duration,
}

/// Names with how long each took.
pub type Durations = Vec<(String, Duration)>;

/// The place of a harness among the longest, if it is one of them.
fn place(test: &Harness) -> Option<usize> {
    let title = test.title();
    LONGEST_FIRST.iter().position(|long| *long == title)
}

/// Whether a harness takes tens of seconds of the processors' time.
pub fn is_long(test: &Harness) -> bool {
    place(test).is_some()
}

/// The harnesses that run beside each other, the longest first, and those that run alone.
pub fn split(tests: Vec<Harness>) -> (Vec<Harness>, Vec<Harness>) {
    let is_alone = |test: &Harness| {
        let title = test.title();
        let begins = |begin: &&str| title.starts_with(begin);
        ALONE.iter().any(begins) && !NOT_ALONE.iter().any(begins)
    };
    let (alone, mut beside): (Vec<_>, Vec<_>) = tests.into_iter().partition(is_alone);
    beside.sort_by_key(|test| place(test).unwrap_or(LONGEST_FIRST.len()));
    (beside, alone)
}

/// Runs them, so many at a time, and prints the output of each in one piece when it has ended. `begins` is told of each.
pub fn run(
    tests: &[Harness],
    at_once: usize,
    tally: &mut Tally,
    begins: impl Fn(&Harness) + Sync,
) -> Result<Durations> {
    let mut durations = Vec::new();
    for ran in in_parallel(tests, at_once, |test| {
        begins(test);
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
        let how = format!("{}: {}", ran.title, ran.status);
        let ended = ran.status.success().then_some(()).ok_or(how);
        tally.read(&ran.program, &ran.lines, ended);
        durations.push((ran.title, ran.took));
    }
    Ok(durations)
}

/// Seconds that a harness may take: several times what the slowest needs. One that hangs must not hold up CI in silence.
const LONGEST: &str = "1500";

/// Runs a harness as cargo would.
fn run_harness(test: &Harness) -> Result<Ran> {
    let program = &test.program;
    let mut command = Command::new("timeout");
    command
        .args(["--kill-after=10", LONGEST])
        .arg(&program.path)
        .current_dir(&program.package)
        .env("CARGO_MANIFEST_DIR", &program.package);
    let title = test.title();
    if let Some((_, threads)) = MOSTLY_WAIT.iter().find(|(name, _)| *name == title) {
        command.env("RUST_TEST_THREADS", threads);
    }
    if !test.tests.is_empty() {
        command.arg("--exact").args(&test.tests);
    }
    let (begin, mut lines) = (Instant::now(), Vec::new());
    let status = run_and_read(&mut command, |line| lines.push(line.to_owned()))?;
    Ok(Ran {
        title,
        program: program.title(),
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
    fn titles_say_what_runs_alone() {
        let harness = |name: &str, module: &str| Harness {
            program: Executable {
                package: "/w/tests".into(),
                kind: "test".into(),
                name: name.into(),
                is_test: true,
                path: "/t/x".into(),
            },
            module: module.into(),
            tests: Vec::new(),
        };
        let all = [
            ("agent", "cri_scripted"),
            ("agent", "bench_smoke"),
            ("fastpath", "guard"),
            ("golden", ""),
            ("kernel", "pids"),
        ];
        let (beside, alone) = split(all.map(|(n, m)| harness(n, m)).into());
        let titles = |these: &[Harness]| these.iter().map(Harness::title).collect::<Vec<_>>();
        assert_eq!(
            titles(&beside),
            ["fastpath::guard", "agent::cri_scripted", "golden"]
        );
        assert_eq!(titles(&alone), ["agent::bench_smoke", "kernel::pids"]);
    }

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
