//! Runs the `evictd` binary as a daemon, waits until it watches, and ends it.

use std::{
    os::unix::process::CommandExt as _,
    process::{Child, Output},
    sync::mpsc,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{heard::Heard, prelude::*, reaped::Reaped, talker};

/// A running `evictd run`, reaped when dropped. A test that fails meanwhile kills it and shows its log.
pub struct Agent {
    child: Reaped,
    log: Heard,
    ends_well: bool,
}

/// Finds the `evictd` binary: in `EVICTD_BIN`, or where the binaries of the tests are.
pub fn binary() -> Result<PathBuf> {
    talker::binary("evictd", "EVICTD_BIN")
}

/// Runs the binary to its end: words, then options with the paths that they take.
pub fn evictd(words: &[&str], paths: &[(&str, &Path)]) -> Output {
    let mut command = Command::new(binary().expect("the binary"));
    command.args(words);
    for (option, path) in paths {
        command.arg(option).arg(path);
    }
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    until_its_end(command.spawn().expect("a process"))
}

/// Waits for a process that must end by itself; one that does not is killed, and the test fails.
pub fn until_its_end(child: Child) -> Output {
    let pid = Pid::from_raw(child.id().cast_signed());
    let (done, ended) = mpsc::channel();
    std::thread::spawn(move || {
        // The receiver is gone where the time was over.
        let _ = done.send(child.wait_with_output());
    });
    match ended.recv_timeout(SOON * 2) {
        Ok(output) => output.expect("an end"),
        Err(_) => {
            // It has not been waited for, so that its PID is still its own.
            kill(pid, Signal::SIGKILL).expect("its end");
            panic!("evictd goes on where it had to end");
        }
    }
}

/// Runs `evictd` with input that it refuses, and returns what it says of it.
#[track_caller]
pub fn refused(words: &[&str], paths: &[(&str, &Path)]) -> String {
    refusal(&evictd(words, paths))
}

/// Returns what `evictd` said of bad input that has ended it.
#[track_caller]
pub(crate) fn refusal(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    said
}

/// Returns what `evictd` said, which must have ended well.
#[track_caller]
pub fn text(output: &Output) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    String::from_utf8(output.stdout.clone()).expect("text")
}

/// The same, as JSON.
#[track_caller]
pub fn json(output: &Output) -> Value {
    serde_json::from_str(&text(output)).expect("JSON")
}

/// Runs `evictd check`, and returns what it finds.
pub fn check(paths: &[(&str, &Path)]) -> Value {
    let output = evictd(&["check", "-o", "json"], paths);
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// Runs `evictd check`, and returns what it finds on one topic.
pub fn finding(paths: &[(&str, &Path)], topic: &str) -> Value {
    found(&check(paths), "findings", topic)
}

/// What a check has found on a topic of its `findings`, or on one of its `signals`.
#[track_caller]
pub fn found(check: &Value, list: &str, topic: &str) -> Value {
    let mut all = check[list].as_array().into_iter().flatten();
    let found = all.find(|f| f["topic"] == topic || f["signal"] == topic);
    found
        .unwrap_or_else(|| panic!("{topic}: {check:#}"))
        .clone()
}

/// As a container runtime starts a container's root: a bounding set of what to `keep`, and no new privileges.
pub fn limit_capabilities(
    command: &mut Command,
    keep: impl Fn(libc::c_ulong) -> bool + Send + Sync + 'static,
) {
    const LAST: libc::c_ulong = 40;
    let restrict = move || {
        for capability in (0..=LAST).filter(|capability| !keep(*capability)) {
            // SAFETY: plain numbers; older kernels refuse capabilities that they do not know, which is as good.
            unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
        }
        // SAFETY: plain numbers.
        match unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: between fork and exec the closure makes system calls only and allocates nothing.
    unsafe { command.pre_exec(restrict) };
}

impl Agent {
    /// Starts the daemon and returns when its trigger is armed; it is killed when dropped, unless it has to end well.
    /// The error holds what it said.
    pub fn start(config: &Path, more: &[&str]) -> Result<Self> {
        Self::start_as(config, more, |_| {})
    }

    /// Starts the daemon like [`Agent::start`], with something changed before it starts.
    pub fn start_as(
        config: &Path,
        more: &[&str],
        change: impl FnOnce(&mut Command),
    ) -> Result<Self> {
        Self::launch(&binary()?, config, more, change)
    }

    /// Starts the daemon like [`Agent::start`], from another program than the one that was built with the tests.
    pub fn start_program(program: &Path, config: &Path) -> Result<Self> {
        Self::launch(program, config, &[], |_| {})
    }

    /// Starts the daemon, and returns as soon as it says these words on its way to watch.
    pub fn begin(config: &Path, words: &str) -> Result<Self> {
        let mut command = Command::new(binary()?);
        let agent = Self::spawn(command.args(["run", "--config"]).arg(config))?;
        ensure!(agent.says(words), "{}", agent.log());
        Ok(agent)
    }

    fn spawn(command: &mut Command) -> Result<Self> {
        let mut child = Reaped(command.stderr(Stdio::piped()).spawn()?);
        let stderr = child.stderr.take();
        Ok(Self {
            log: Heard::from(stderr.context("no pipe")?),
            child,
            ends_well: false,
        })
    }

    fn launch(
        program: &Path,
        config: &Path,
        more: &[&str],
        change: impl FnOnce(&mut Command),
    ) -> Result<Self> {
        let mut command = Command::new(program);
        command.args(["run", "--config"]).arg(config).args(more);
        change(&mut command);
        let agent = Self::spawn(&mut command)?;
        match agent.log.has("watching", SOON * 2) {
            true => Ok(agent),
            false => bail!(
                "evictd did not start: {}",
                agent.log().trim_end().replace('\n', " | ")
            ),
        }
    }

    /// Has the agent told to end when it is dropped, and the test fail where it does not end well.
    #[must_use]
    pub fn ends_well(mut self) -> Self {
        self.ends_well = true;
        self
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    pub fn log(&self) -> String {
        self.log.lock().clone()
    }

    /// Locks the log: the agent's standard error is not read until this is dropped.
    pub fn unread(&self) -> MutexGuard<'_, String> {
        self.log.lock()
    }

    /// Waits until its log has these words; false when it does not in time.
    pub fn says(&self, words: &str) -> bool {
        self.log.has(words, SOON)
    }

    /// Whether it says that a kernel program has killed a pod more than ten seconds before it: that is only logged, as the
    /// pod may run again by then.
    pub fn came_too_late(&self) -> bool {
        let log = self.log();
        let mut lines = log.lines();
        let told = lines.find(|line| line.contains("a pod that is not evicted for it"));
        let ago = told.and_then(|line| line.rsplit_once("ago=")?.1.strip_suffix('s'));
        ago.is_some_and(|ago| ago.parse::<f64>().is_ok_and(|ago| ago > 10.0))
    }

    /// SIGTERM, whose effect is not waited for.
    pub fn ask_to_end(&self) -> Result<()> {
        signal(&self.child, Signal::SIGTERM)
    }

    /// SIGTERM, and its exit code.
    pub fn terminate(&mut self) -> Result<Option<i32>> {
        self.ends_well = false;
        if !self.has_ended()? {
            self.ask_to_end()?;
        }
        until(SOON * 2, || !matches!(self.has_ended(), Ok(false)));
        match self.child.try_wait()? {
            Some(status) => Ok(status.code()),
            None => bail!("it goes on where it had to end"),
        }
    }

    /// SIGKILL; returns when it is gone.
    pub fn kill(mut self) {
        self.ends_well = false;
    }

    /// SIGHUP: it reads its configuration again.
    pub fn reload(&self) -> Result<()> {
        signal(&self.child, Signal::SIGHUP)
    }

    /// SIGSTOP: it does nothing any more; its programs in the kernel go on.
    pub fn stop(&self) -> Result<()> {
        signal(&self.child, Signal::SIGSTOP)
    }

    /// SIGCONT.
    pub fn go_on(&self) -> Result<()> {
        signal(&self.child, Signal::SIGCONT)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        } else if self.ends_well {
            let code = self.terminate().expect("its end");
            assert_eq!(code, Some(0), "{}", self.log());
        }
    }
}

/// Sends a signal to a child that was not waited for: until then the process id is the child's.
pub fn signal(child: &Child, signal: Signal) -> Result<()> {
    Ok(kill(Pid::from_raw(child.id().cast_signed()), signal)?)
}
