//! Starts the `forker` binary inside a cgroup and gives it orders.

use std::{
    fs::File,
    io::{self, BufRead as _, BufReader, Write as _},
    os::unix::process::CommandExt as _,
    path::Path,
    process::{ChildStdout, Command, Stdio},
    time::Duration,
};

use crate::{hog::binary, reaped::Reaped};

/// A running forker; killed with its children and reaped when dropped.
pub struct Forker {
    child: Reaped,
    answers: BufReader<ChildStdout>,
}

/// Held by a test whose threshold is what the machine has left of process ids: another such test would cross it.
pub fn process_ids_of_the_machine() -> io::Result<File> {
    let lock = File::create(std::env::temp_dir().join("evictd-tests-pids.lock"))?;
    lock.lock()?;
    Ok(lock)
}

/// Whether no forker that has ended waits to be reaped.
pub fn all_are_reaped() -> io::Result<bool> {
    for process in std::fs::read_dir("/proc")? {
        let stat = std::fs::read_to_string(process?.path().join("stat"));
        // What is no process, or has ended meanwhile, has none.
        if stat.is_ok_and(|stat| stat.contains("(forker) Z")) {
            return Ok(false);
        }
    }
    Ok(true)
}

impl Forker {
    /// Starts a forker inside the cgroup directory (`None`: in the test's own), and returns when it is in there.
    pub fn start(cgroup: Option<&Path>) -> io::Result<Self> {
        let procs = cgroup.map(|c| c.join("cgroup.procs")).unwrap_or_default();
        let mut command = Command::new(binary("forker")?);
        command
            .arg("--cgroup")
            .arg(procs)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        Self::wait_for(command)
    }

    /// The same below a process that reaps none: whatever ends in there keeps its number until this is dropped.
    pub fn start_unreaped(cgroup: &Path) -> io::Result<Self> {
        let mut command = Command::new("sh");
        // A background job has no standard input but what it is given.
        command
            .args([
                "-c",
                "exec 3<&0; \"$0\" --cgroup \"$1\" <&3 & exec sleep 1000",
            ])
            .arg(binary("forker")?)
            .arg(cgroup.join("cgroup.procs"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let adopt = || {
            // SAFETY: plain integers.
            match unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        };
        // SAFETY: between fork and exec there is one system call.
        unsafe { command.pre_exec(adopt) };
        Self::wait_for(command)
    }

    fn wait_for(mut command: Command) -> io::Result<Self> {
        let mut child = Reaped(command.spawn()?);
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

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn answer(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }
}
