//! Starts the `hog` binary inside a cgroup and waits for it without leaving zombies.

use std::os::unix::process::ExitStatusExt as _;

use crate::{
    prelude::*,
    talker::{Talker, binary},
};

/// More than any test needs.
fn timeout() -> Duration {
    // An emulated machine is slow.
    Duration::from_secs(if in_guest() { 300 } else { 120 })
}

/// A running hog; killed and reaped when dropped.
pub struct Hog(Talker);

impl Hog {
    /// Starts a hog inside the cgroup directory with further arguments, and returns when it is in there.
    pub fn start(cgroup: &Path, arguments: &[&str]) -> Result<Self> {
        let mut command = Command::new(binary("hog", "EVICTD_HOG")?);
        let procs = cgroup.join("cgroup.procs");
        let command = command.arg("--cgroup").arg(procs).args(arguments);
        Talker::start(command).map(Self)
    }

    /// Starts a hog that takes too much, and returns when it has been killed, as it has to be.
    #[track_caller]
    pub fn until_killed(cgroup: &Path, arguments: &[&str]) {
        Self::start(cgroup, arguments).expect("a hog").killed();
    }

    /// Waits until it has been killed, as it has to be.
    #[track_caller]
    pub fn killed(&mut self) {
        assert_eq!(self.wait().expect("its end"), Some(libc::SIGKILL));
    }

    /// SIGKILL, which it may be held from dying of.
    pub fn kill(&mut self) -> io::Result<()> {
        self.0.child.kill()
    }

    /// Waits for its next line; whether it is this word. False when it has ended.
    pub fn says(&mut self, word: &str) -> Result<bool> {
        Ok(self.0.hear()? == word)
    }

    /// Lets a hog that was started with `--wait` go.
    pub fn go(&mut self) -> io::Result<()> {
        self.0.tell("")
    }

    /// Lets the hog take its head start (`--head`), and returns when it has it.
    pub fn take_head(&mut self) -> Result<()> {
        self.go()?;
        match self.says("ahead")? {
            true => Ok(()),
            false => bail!("the hog died during its head start"),
        }
    }

    pub fn pid(&self) -> u32 {
        self.0.child.id()
    }

    /// Waits for its end; the signal that ended it, if one did.
    /// An error if it lives on and on: a test that waits for ever tells nothing.
    pub fn wait(&mut self) -> Result<Option<i32>> {
        let timeout = timeout();
        if !until(timeout, || !self.is_alive()) {
            bail!("it is alive after {timeout:?}");
        }
        Ok(self.0.child.wait()?.signal())
    }

    pub fn is_alive(&mut self) -> bool {
        matches!(self.0.child.try_wait(), Ok(None))
    }
}
