//! One kernel with one cgroup version: boots it as often as it takes to run every test, each a process of its own.

use std::{
    collections::VecDeque,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process,
    time::{Duration, Instant},
};

use anyhow::Result;

use super::{
    MachineOptions,
    build::{Programs, Test},
    initramfs,
    kernels::Kernel,
    logs,
    outcome::{Outcome, judge, printed_lines},
    protocol::{Job, Report},
    qemu::{Cgroup, Event},
    suite::Options,
    table::{Row, Summary},
};

/// The part of a test's output that is kept; what comes later is dropped, and that is said.
const KEPT: usize = 4 << 20;

/// One kernel with one cgroup version.
pub struct Run<'a> {
    pub options: &'a Options,
    pub kernel: &'a Kernel,
    pub cgroup: Cgroup,
    pub built: &'a Programs,
}

struct Current {
    output: Vec<u8>,
    begun: Instant,
}

/// A test that had run for longer when the time was up hangs: the others take seconds.
const HANGS: Duration = Duration::from_secs(90);

/// What one boot has brought so far.
#[derive(Default)]
struct Progress {
    current: Option<Current>,
    done: Vec<(Outcome, Vec<u8>, u64)>,
    unmet: Option<String>,
}

impl Run<'_> {
    /// Boots as often as it takes: a test that takes the guest down costs itself and one boot.
    pub fn all(&self, tests: &[Test], summary: &mut Summary) -> Result<()> {
        self.clear()?;
        let mut pending: VecDeque<&Test> = tests.iter().collect();
        let mut boots = 0;
        let end = self
            .options
            .within
            .map(|seconds| Instant::now() + Duration::from_secs(seconds));
        let is_over = || end.is_some_and(|end| Instant::now() >= end);
        while !pending.is_empty() {
            if boots > 0 && is_over() {
                for test in pending.drain(..) {
                    let outcome = Outcome::Skipped("the time for this kernel was up".to_owned());
                    self.record(test, outcome, &[], 0, summary)?;
                }
                break;
            }
            boots += 1;
            let begin = Instant::now();
            let console = self.path(&format!("boot{boots}.console"));
            let (progress, how) = self.boot(&pending, &console, end)?;
            if let Some(reason) = progress.unmet {
                summary.skip_kernel(self.kernel.name, &self.cgroup.to_string(), &reason);
                return Ok(());
            }
            for (outcome, output, millis) in progress.done {
                if let Some(test) = pending.pop_front() {
                    self.record(test, outcome, &output, millis, summary)?;
                }
            }
            let hangs = progress
                .current
                .as_ref()
                .is_some_and(|current| current.begun.elapsed() > HANGS);
            if is_over() && !hangs {
                continue;
            }
            let Some(test) = pending.front() else { break };
            // The guest went down in the middle of this one, or did not come up.
            let (output, what) = match progress.current {
                Some(current) => (current.output, format!("{how} in the middle of this test")),
                None => (Vec::new(), format!("the machine did not come up: {how}")),
            };
            let said = fs::read(&console).unwrap_or_default();
            let panic = kernel_panic(&String::from_utf8_lossy(&said));
            let outcome = Outcome::Failed(format!("{what}{panic}; {}", console.display()));
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

    /// Boots once, with all these tests, and goes on until the last one or that moment.
    fn boot(
        &self,
        tests: &VecDeque<&Test>,
        console: &Path,
        end: Option<Instant>,
    ) -> Result<(Progress, String)> {
        let jobs: Vec<Job> = tests.iter().map(|test| self.job(test)).collect();
        let initramfs = self.path(&format!("{}.cpio", process::id()));
        initramfs::write(&initramfs, self.kernel, self.built, &jobs)?;
        let mut progress = Progress::default();
        // How long the guest may be silent from now on.
        let timeout = || {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            let timeout = Duration::from_secs(self.options.timeout);
            left.map_or(timeout, |left| left.min(timeout))
        };
        let machine = MachineOptions {
            cgroup: Some(self.cgroup),
            ..self.options.machine.clone()
        };
        let how = machine
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
                Event::Report(Report::Started { .. }) => {
                    progress.current = Some(Current {
                        output: Vec::new(),
                        begun: Instant::now(),
                    });
                    Some(timeout())
                }
                Event::Output(bytes) => {
                    if self.options.verbose {
                        // A closed terminal is no reason to stop testing.
                        let _ = std::io::stdout()
                            .write_all(&bytes)
                            .and_then(|()| std::io::stdout().flush());
                    }
                    if let Some(current) = &mut progress.current {
                        keep(&mut current.output, &bytes);
                    }
                    None
                }
                Event::Report(Report::Ended { status, millis, .. }) => {
                    let output = progress
                        .current
                        .take()
                        .map(|current| current.output)
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
                    Some(timeout())
                }
            })?;
        fs::remove_file(&initramfs)?;
        Ok((progress, how.to_string()))
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

/// What the kernel died of, if the console tells: the panic, and before it the oops that led there with its place.
pub fn kernel_panic(console: &str) -> String {
    const SIGNS: [&str; 4] = ["Oops: ", "BUG: ", "RIP: ", "Kernel panic - not syncing: "];
    let first = |sign: &str| {
        let (_, reason) = console.lines().find_map(|line| line.split_once(sign))?;
        Some(format!(": {sign}{}", reason.trim()))
    };
    match first(SIGNS[3]) {
        Some(panic) => {
            SIGNS[..3]
                .iter()
                .filter_map(|s| first(s))
                .collect::<String>()
                + &panic
        }
        None => String::new(),
    }
}

pub fn keep(output: &mut Vec<u8>, bytes: &[u8]) {
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
    fn a_kernel_panic_is_quoted() {
        let console = "[ 4.01] BUG: x\n[ 4.02] Kernel panic - not syncing: sysrq triggered crash\r\n[ 4.03] y\n";
        assert_eq!(
            kernel_panic(console),
            ": BUG: x: Kernel panic - not syncing: sysrq triggered crash"
        );
        let oops = "[ 4.01] Oops: int3: 0000 [#1] SMP\n[ 4.02] RIP: 0010:f+0x1/0x2\n[ 4.03] Kernel panic - not syncing: y\n";
        assert_eq!(
            kernel_panic(oops),
            ": Oops: int3: 0000 [#1] SMP: RIP: 0010:f+0x1/0x2: Kernel panic - not syncing: y"
        );
        assert_eq!(kernel_panic("[ 4.01] reboot: Restarting system\n"), "");
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
