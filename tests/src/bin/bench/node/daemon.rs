//! Another project's daemon as a process, and what it says.

use evictd_tests::{heard::Heard, prelude::*, reaped::Reaped};

use super::guest;

/// Python and a C++ daemon take seconds to start under emulation.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes of what a daemon has said that are told: the last ones.
const TOLD: usize = 2000;

/// Another project's daemon; killed and reaped when dropped.
pub struct Daemon {
    child: Reaped,
    said: Heard,
}

impl Daemon {
    /// Starts it, and waits until it has said `ready`. The error is what it said instead.
    pub fn start(command: &mut Command, ready: &str, oom_score: i32) -> Result<Self> {
        let (read, write) = io::pipe()?;
        command.stdin(Stdio::null()).stdout(write.try_clone()?);
        let spawned = command.stderr(write).spawn();
        // The command would keep the pipe's other end.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let program = command.get_program().display();
        let child = spawned.with_context(|| program.to_string())?;
        let mut daemon = Self {
            child: Reaped(child),
            said: Heard::from(read),
        };
        guest::set_oom_score(daemon.child.id(), oom_score)?;
        if daemon.said.has(ready, TIMEOUT) {
            return Ok(daemon);
        }
        // A pipe is closed a little before the process has ended.
        let look = || daemon.child.try_wait().ok().flatten();
        let ended = wait_for(Duration::from_secs(1), look);
        let said = last_lines(&daemon.log());
        match ended {
            Some(status) => bail!("it ended with {status}: {said}"),
            None => bail!("it was not ready after {} s: {said}", TIMEOUT.as_secs()),
        }
    }

    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// The end of what it has said.
    pub fn log(&self) -> String {
        let text = self.said.lock();
        text[text.ceil_char_boundary(text.len().saturating_sub(TOLD))..].to_owned()
    }
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(|l| !l.is_empty())
        .collect();
    lines[lines.len().saturating_sub(3)..].join(" | ")
}
