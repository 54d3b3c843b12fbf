//! Starts the `forker` binary inside a cgroup and gives it orders.

use std::{
    io::{self, BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
    time::Duration,
};

use crate::hog::binary;

/// A running forker; killed with its children and reaped when dropped.
pub struct Forker {
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl Forker {
    /// Starts a forker inside the cgroup directory (`None`: in the test's own), and returns when it is in there.
    pub fn start(cgroup: Option<&Path>) -> io::Result<Self> {
        let procs = cgroup.map(|c| c.join("cgroup.procs")).unwrap_or_default();
        let mut child = Command::new(binary("forker")?)
            .arg("--cgroup")
            .arg(procs)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let answers = child.stdout.take().map(BufReader::new);
        let mut forker = Self {
            answers: answers.ok_or_else(|| io::Error::other("no output"))?,
            child,
        };
        if forker.answer()? == "ready" {
            Ok(forker)
        } else {
            Err(io::Error::other("the forker did not start"))
        }
    }

    /// Gives an order, waits until it is carried out, and returns the CPU time that took.
    pub fn order(&mut self, order: &str) -> io::Result<Duration> {
        self.begin(order)?;
        self.done()
    }

    /// Gives an order without waiting.
    pub fn begin(&mut self, order: &str) -> io::Result<()> {
        match self.child.stdin.as_mut() {
            Some(stdin) => writeln!(stdin, "{order}"),
            None => Ok(()),
        }
    }

    /// Waits for the order that was begun.
    pub fn done(&mut self) -> io::Result<Duration> {
        let answer = self.answer()?;
        let nanoseconds = answer
            .parse()
            .map_err(|_| io::Error::other(format!("the forker died: {answer:?}")))?;
        Ok(Duration::from_nanos(nanoseconds))
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn answer(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }
}

impl Drop for Forker {
    fn drop(&mut self) {
        // Already dead is fine.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
