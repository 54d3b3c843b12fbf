//! The tests on one kernel with one cgroup version, each a process of its own.

use super::{
    MachineOptions,
    build::{Programs, Test},
    guest::{self, Ended, Event, Guest, How},
    initramfs,
    kernels::Kernel,
    logs,
    outcome::{Outcome, judge, matrix_rows},
    protocol::Job,
    qemu::Cgroup,
    show,
    suite::Options,
    table::{Row, Summary},
};
use crate::prelude::*;

/// One kernel with one cgroup version, or a part of its tests.
pub struct Run<'a> {
    pub options: &'a Options,
    pub kernel: &'a Kernel,
    pub cgroup: Cgroup,
    pub part: usize,
    pub built: &'a Programs,
}

impl Run<'_> {
    /// Makes each test a row of the summary, or the whole kernel one where it cannot run them.
    pub fn all(&self, tests: &[&Test], summary: &mut Summary) -> Result<()> {
        let options = MachineOptions {
            cgroup: Some(self.cgroup),
            ..self.options.machine.clone()
        };
        let within = self.options.within.map(Duration::from_secs);
        let guest = Guest {
            kernel: self.kernel,
            options: &options,
            disk: None,
            files: &initramfs::files(self.built)?,
            trees: &[],
            consoles: &self.path(&format!("part{}-", self.part)),
            end: within.map(|within| Instant::now() + within),
        };
        let jobs = tests.iter().map(|test| self.job(test)).collect();
        let mut rest = tests.iter();
        let unmet = guest::run(&guest, jobs, |event| {
            match event {
                Event::Up { release, jobs } => {
                    println!("vm: {release}, cgroup {}, {jobs} tests", self.cgroup);
                }
                Event::Output(bytes) if self.options.verbose => show(bytes),
                Event::Output(_) => {}
                Event::Ended(ended) => {
                    if let Some(test) = rest.next() {
                        self.record(test, &ended, summary)?;
                    }
                }
            }
            Ok(())
        })?;
        if let Some(reason) = unmet {
            let outcome = Outcome::Skipped(reason);
            summary.add_machine(self.kernel.name, &self.cgroup.to_string(), outcome);
            return Ok(());
        }
        for test in rest {
            let outcome = Outcome::Skipped("the time for this kernel was up".to_owned());
            self.add(test, outcome, &[], 0, summary)?;
        }
        Ok(())
    }

    /// Takes away what the last run of this kernel left.
    pub fn clear(&self) -> Result<()> {
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

    fn job(&self, test: &Test) -> Job {
        let program = format!("{}/{}", initramfs::TESTS_DIR, test.binary);
        let argv = [
            &program,
            "--exact",
            &test.name,
            "--nocapture",
            "--test-threads=1",
        ];
        guest::job(argv.map(str::to_owned).into(), self.options.timeout)
    }

    /// Files of a run are named after it, so that the next run replaces them.
    fn path(&self, what: &str) -> PathBuf {
        logs().join(format!("{}-{}-{what}", self.kernel.name, self.cgroup))
    }

    /// Judges a test that is over.
    fn record(&self, test: &Test, ended: &Ended<'_>, into: &mut Summary) -> Result<()> {
        let console = ended.console.display();
        let outcome = match &ended.how {
            How::ByItself(status) => judge(status, &String::from_utf8_lossy(&ended.output)),
            How::Down(why) => {
                Outcome::Failed(format!("in the middle of this test {why}; {console}"))
            }
            How::NotUp(why) => {
                Outcome::Failed(format!("the machine did not come up: {why}; {console}"))
            }
        };
        let (kernel, cgroup) = (self.kernel.name, self.cgroup);
        println!("\nvm: {kernel} {cgroup} {}: {outcome}", test.id());
        self.add(test, outcome, &ended.output, ended.millis, into)
    }

    /// Adds a row, and writes the output beside the consoles.
    fn add(
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
        into.matrix.extend(matrix_rows(&name, &cgroup, &text));
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
