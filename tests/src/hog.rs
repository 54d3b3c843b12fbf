//! Starts the `hog` binary inside a cgroup and waits for it without leaving zombies.

use std::{
    io::{self, BufRead as _, BufReader, Write as _},
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::{ChildStdout, Command, Stdio},
    time::Duration,
};

use crate::{reaped::Reaped, wait::until};

/// More than any test of a slow machine needs.
const TIMEOUT: Duration = Duration::from_secs(300);

/// A running hog; killed and reaped when dropped.
pub struct Hog {
    child: Reaped,
    says: Option<BufReader<ChildStdout>>,
}

/// Where a binary of this package is: beside the test that runs (`target/<profile>/deps/..`), or in `EVICTD_HOG`,
/// `EVICTD_FORKER`.
pub(crate) fn binary(name: &str) -> io::Result<PathBuf> {
    if let Some(path) = std::env::var_os(format!("EVICTD_{}", name.to_uppercase())) {
        return Ok(path.into());
    }
    let exe = std::env::current_exe()?;
    exe.ancestors()
        .skip(1)
        .take(2)
        .map(|dir| dir.join(name))
        .find(|path| path.is_file())
        .ok_or_else(|| io::Error::other(format!("no {name} binary near {}", exe.display())))
}

impl Hog {
    /// Starts a hog inside the cgroup directory with further arguments, and returns when it is in there.
    pub fn start(cgroup: &Path, arguments: &[&str]) -> io::Result<Self> {
        let mut child = Command::new(binary("hog")?)
            .arg("--cgroup")
            .arg(cgroup.join("cgroup.procs"))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let says = child.stdout.take().map(BufReader::new);
        let mut hog = Self {
            child: Reaped(child),
            says,
        };
        if hog.says("ready")? {
            Ok(hog)
        } else {
            Err(io::Error::other("the hog did not start"))
        }
    }

    /// Waits for its next line; whether it is this word. False when it has ended.
    pub fn says(&mut self, word: &str) -> io::Result<bool> {
        let mut line = String::new();
        if let Some(says) = &mut self.says {
            says.read_line(&mut line)?;
        }
        Ok(line.trim() == word)
    }

    /// Lets a hog that was started with `--wait` go.
    pub fn go(&mut self) -> io::Result<()> {
        match self.child.stdin.as_mut() {
            Some(stdin) => stdin.write_all(b"\n"),
            None => Ok(()),
        }
    }

    /// The same for its head start (`--head`); returns when it has it.
    pub fn take_head(&mut self) -> io::Result<()> {
        self.go()?;
        match self.says("ahead")? {
            true => Ok(()),
            false => Err(io::Error::other("the hog died during its head start")),
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for its end; the signal that ended it, if one did.
    /// An error if it lives on and on: a test that waits for ever tells nothing.
    pub fn wait(&mut self) -> io::Result<Option<i32>> {
        if !until(TIMEOUT, || !self.is_alive()) {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("nobody has ended it in {TIMEOUT:?}"),
            ));
        }
        Ok(self.child.wait()?.signal())
    }

    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}
