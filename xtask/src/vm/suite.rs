//! Runs the kernel-facing tests: every test is a process of its own, in one boot for as long as the guest lives.

use std::{
    collections::VecDeque,
    fs,
    io::Write as _,
    path::PathBuf,
    process,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

use super::{
    MachineOptions,
    build::{self, Programs, Test},
    cache, initramfs,
    kernels::{self, Fetched, KERNELS, Kernel},
    logs, matrix_entry, programs,
    protocol::{Job, Report},
    qemu::{Cgroup, Event},
    root,
    table::{Outcome, Row, Summary, judge, printed_lines},
};

/// The part of a test's output that is kept; what comes later is dropped, and that is said.
const KEPT: usize = 4 << 20;

/// What to test, and where.
#[derive(clap::Args, Debug, Clone)]
pub struct Options {
    /// Kernels of the matrix; all when none is named
    pub kernels: Vec<String>,
    #[command(flatten)]
    pub machine: MachineOptions,
    /// Only tests whose name (`binary::test`) contains this
    #[arg(long)]
    pub filter: Option<String>,
    /// Only the test of exactly this name, with or without its binary
    #[arg(long, value_name = "TEST")]
    pub exact: Option<String>,
    /// Seconds until a test is killed
    #[arg(long, default_value_t = 180)]
    pub timeout: u64,
    /// Show the tests' output while they run
    #[arg(long, short)]
    pub verbose: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            kernels: Vec::new(),
            machine: MachineOptions::default(),
            filter: None,
            exact: None,
            timeout: 180,
            verbose: false,
        }
    }
}

impl Options {
    fn wants(&self, test: &Test) -> bool {
        let id = test.id();
        self.filter.as_ref().is_none_or(|part| id.contains(part))
            && self
                .exact
                .as_ref()
                .is_none_or(|name| *name == id || *name == test.name)
    }
}

/// Runs the tests, prints one table, and returns what came out. A kernel that cannot be had is a skipped row.
///
/// # Errors
/// When the options name what does not exist, or the guest's programs do not compile.
pub fn test(options: &Options) -> Result<Summary> {
    let mut wanted = Vec::new();
    for name in &options.kernels {
        wanted.push(matrix_entry(name)?);
    }
    if wanted.is_empty() {
        wanted.extend(KERNELS);
    }
    let mut summary = Summary::default();
    let unavailable = if cfg!(target_arch = "x86_64") {
        programs::ensure().err().map(|reason| format!("{reason:#}"))
    } else {
        Some(
            "the kernels of the matrix are for x86_64, and so must be the programs built here"
                .to_owned(),
        )
    };
    if let Some(reason) = unavailable {
        summary.skip_kernel("all", "", &reason);
        summary.print();
        return Ok(summary);
    }
    let built = build::build(&root())?;
    let tests: Vec<Test> = build::list(&built)?
        .into_iter()
        .filter(|test| options.wants(test))
        .collect();
    if tests.is_empty() {
        bail!(
            "no test matches --exact {:?} --filter {:?}",
            options.exact,
            options.filter
        );
    }
    let cgroups = options
        .machine
        .cgroup
        .map_or_else(|| vec![Cgroup::V2, Cgroup::V1], |only| vec![only]);
    for (name, suite) in wanted {
        let kernel = match kernels::fetch(&cache(), name, suite)? {
            Fetched::Ready(kernel) => kernel,
            Fetched::Unavailable(reason) => {
                summary.skip_kernel(name, "", &reason);
                continue;
            }
        };
        for cgroup in &cgroups {
            let lacks = if *cgroup == Cgroup::V1 {
                kernel.lacks_v1()?
            } else {
                None
            };
            match lacks {
                Some(reason) => summary.skip_kernel(name, &cgroup.to_string(), &reason),
                None => Run {
                    options,
                    kernel: &kernel,
                    cgroup: *cgroup,
                    built: &built,
                }
                .all(&tests, &mut summary)?,
            }
        }
    }
    summary.print();
    fs::write(
        logs().join("results.json"),
        serde_json::to_vec_pretty(&summary)?,
    )?;
    Ok(summary)
}

/// One kernel with one cgroup version.
struct Run<'a> {
    options: &'a Options,
    kernel: &'a Kernel,
    cgroup: Cgroup,
    built: &'a Programs,
}

/// What one boot has brought so far.
#[derive(Default)]
struct Progress {
    current: Option<(usize, Vec<u8>)>,
    done: Vec<(Outcome, Vec<u8>, u64)>,
    unmet: Option<String>,
}

impl Run<'_> {
    /// Boots as often as it takes: a test that takes the guest down costs itself and one boot.
    fn all(&self, tests: &[Test], summary: &mut Summary) -> Result<()> {
        self.clear()?;
        let mut pending: VecDeque<&Test> = tests.iter().collect();
        let mut boots = 0;
        while !pending.is_empty() {
            boots += 1;
            let begin = Instant::now();
            let console = self.path(&format!("boot{boots}.console"));
            let (progress, end) = self.boot(&pending, &console)?;
            if let Some(reason) = progress.unmet {
                summary.skip_kernel(self.kernel.name, &self.cgroup.to_string(), &reason);
                return Ok(());
            }
            for (outcome, output, millis) in progress.done {
                if let Some(test) = pending.pop_front() {
                    self.record(test, outcome, &output, millis, summary)?;
                }
            }
            let Some(test) = pending.front() else { break };
            // The guest went down in the middle of this one, or did not come up.
            let (output, what) = match progress.current {
                Some((_, output)) => (output, format!("{end} in the middle of this test")),
                None => (Vec::new(), format!("the machine did not come up: {end}")),
            };
            let outcome = Outcome::Failed(format!("{what}; {}", console.display()));
            let millis = u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX);
            self.record(test, outcome, &output, millis, summary)?;
            pending.pop_front();
        }
        Ok(())
    }

    /// Takes away what the last run of this kernel left.
    fn clear(&self) -> Result<()> {
        fs::create_dir_all(logs())?;
        let mine = format!("{}-{}-", self.kernel.name, self.cgroup);
        for entry in fs::read_dir(logs())? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(&mine) {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    fn boot(
        &self,
        tests: &VecDeque<&Test>,
        console: &std::path::Path,
    ) -> Result<(Progress, String)> {
        let jobs: Vec<Job> = tests.iter().map(|test| self.job(test)).collect();
        let initramfs = self.path(&format!("{}.cpio", process::id()));
        initramfs::write(&initramfs, self.kernel, self.built, &jobs)?;
        let mut progress = Progress::default();
        let timeout = Duration::from_secs(self.options.timeout);
        let machine = MachineOptions {
            cgroup: Some(self.cgroup),
            ..self.options.machine.clone()
        };
        let end = machine
            .machine(self.kernel, &initramfs, console)
            .run(|event| match event {
                Event::Report(Report::Ready { release, unmet }) => {
                    println!(
                        "vm: {release}, cgroup {}, {} tests",
                        self.cgroup,
                        jobs.len()
                    );
                    progress.unmet = unmet;
                    None
                }
                Event::Report(Report::Started { job }) => {
                    progress.current = Some((job, Vec::new()));
                    Some(timeout)
                }
                Event::Output(bytes) => {
                    if self.options.verbose {
                        // A closed terminal is no reason to stop testing.
                        let _ = std::io::stdout()
                            .write_all(&bytes)
                            .and_then(|()| std::io::stdout().flush());
                    }
                    if let Some((_, output)) = &mut progress.current {
                        keep(output, &bytes);
                    }
                    None
                }
                Event::Report(Report::Ended { status, millis, .. }) => {
                    let output = progress
                        .current
                        .take()
                        .map(|(_, output)| output)
                        .unwrap_or_default();
                    let outcome = judge(&status, &String::from_utf8_lossy(&output));
                    if let Some(test) = tests.get(progress.done.len()) {
                        println!(
                            "\nvm: {} {} {}: {outcome}",
                            self.kernel.name,
                            self.cgroup,
                            test.id()
                        );
                    }
                    progress.done.push((outcome, output, millis));
                    Some(timeout)
                }
            })?;
        fs::remove_file(&initramfs)?;
        Ok((progress, end.to_string()))
    }

    fn job(&self, test: &Test) -> Job {
        let program = format!("{}/{}", initramfs::TESTS_DIR, test.binary);
        let argv = [
            &program,
            "--exact",
            &test.name,
            "--nocapture",
            "--test-threads=1",
        ];
        Job {
            argv: argv.map(str::to_owned).into(),
            timeout_secs: self.options.timeout,
            terminal: false,
        }
    }

    /// Files of a run are named after it, so that the next run replaces them.
    fn path(&self, what: &str) -> PathBuf {
        logs().join(format!("{}-{}-{what}", self.kernel.name, self.cgroup))
    }

    fn record(
        &self,
        test: &Test,
        outcome: Outcome,
        output: &[u8],
        millis: u64,
        into: &mut Summary,
    ) -> Result<()> {
        let text = String::from_utf8_lossy(output);
        let log = self.path(&format!("{}.log", test.id().replace("::", "-")));
        fs::write(&log, output)?;
        if let Outcome::Failed(reason) = &outcome {
            println!(
                "---- {} {} {} ----\n{text}\n{reason}\n----",
                self.kernel.name,
                self.cgroup,
                test.id()
            );
        }
        let (name, cgroup) = (self.kernel.name.to_owned(), self.cgroup.to_string());
        into.matrix
            .extend(printed_lines(&text).map(|line| line.of(&name, &cgroup)));
        into.rows.push(Row {
            kernel: name,
            cgroup,
            test: test.id(),
            outcome,
            millis,
        });
        Ok(())
    }
}

fn keep(output: &mut Vec<u8>, bytes: &[u8]) {
    const NOTE: &[u8] = b"\n[more output was dropped]\n";
    if output.len() + bytes.len() <= KEPT {
        output.extend_from_slice(bytes);
    } else if !output.ends_with(NOTE) {
        output.extend_from_slice(NOTE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_chosen_by_part_or_by_whole_name() {
        let test = Test {
            binary: "kernel_facts".into(),
            name: "oom::memcg".into(),
        };
        let with = |filter: Option<&str>, exact: Option<&str>| Options {
            filter: filter.map(str::to_owned),
            exact: exact.map(str::to_owned),
            ..Options::default()
        };
        assert!(with(None, None).wants(&test));
        assert!(with(Some("facts::oom"), None).wants(&test));
        assert!(with(None, Some("oom::memcg")).wants(&test));
        assert!(with(None, Some("kernel_facts::oom::memcg")).wants(&test));
        assert!(!with(None, Some("memcg")).wants(&test));
        assert!(!with(Some("kernel_oom"), Some("oom::memcg")).wants(&test));
    }

    #[test]
    fn output_is_bounded_and_says_so_once() {
        let mut output = Vec::new();
        for _ in 0..3 {
            keep(&mut output, &vec![b'x'; KEPT / 2 + 1]);
        }
        assert!(output.len() < KEPT);
        assert!(output.ends_with(b"x\n[more output was dropped]\n"));
    }
}
