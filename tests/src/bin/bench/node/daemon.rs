//! Another project's daemon as a process, and what it says.

use std::{
    io::{self, Read as _},
    process::{Command, Stdio},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use evictd_tests::reaped::Reaped;

use super::guest;

/// Python and a C++ daemon take seconds to start under emulation.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes of what a daemon has said that are kept: the last ones.
const KEPT: usize = 2000;

/// Another project's daemon; killed and reaped when dropped.
pub struct Daemon {
    child: Reaped,
    said: Arc<Mutex<String>>,
}

impl Daemon {
    /// Starts it, and waits until it has said `ready`. The error is what it said instead.
    pub fn start(command: &mut Command, ready: &str, oom_score: i32) -> Result<Self, String> {
        let (read, write) = io::pipe().map_err(|e| e.to_string())?;
        let errors = write.try_clone().map_err(|e| e.to_string())?;
        let child = command
            .stdin(Stdio::null())
            .stdout(write)
            .stderr(errors)
            .spawn()
            .map_err(|e| format!("{}: {e}", command.get_program().display()))?;
        // The command holds the pipe's other end.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let said = Arc::new(Mutex::new(String::new()));
        let heard = Arc::clone(&said);
        std::thread::spawn(move || listen(read, &heard));
        let mut daemon = Self {
            child: Reaped(child),
            said,
        };
        guest::set_oom_score(daemon.child.id(), oom_score).map_err(|e| e.to_string())?;
        let over = Instant::now() + TIMEOUT;
        while !daemon.log().contains(ready) {
            if let Ok(Some(status)) = daemon.child.try_wait() {
                // The rest of what it said is on its way.
                std::thread::sleep(Duration::from_millis(200));
                return Err(format!(
                    "it ended with {status}: {}",
                    last_lines(&daemon.log())
                ));
            }
            if Instant::now() > over {
                let seconds = TIMEOUT.as_secs();
                let said = last_lines(&daemon.log());
                return Err(format!("it was not ready after {seconds} s: {said}"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(daemon)
    }

    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// The end of what it has said.
    pub fn log(&self) -> String {
        self.said
            .lock()
            .map(|text| text.clone())
            .unwrap_or_default()
    }
}

fn listen(mut from: io::PipeReader, into: &Mutex<String>) {
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        let Ok(mut text) = into.lock() else { return };
        text.push_str(&String::from_utf8_lossy(&buffer[..length]));
        let mut from = text.len().saturating_sub(KEPT);
        while !text.is_char_boundary(from) {
            from += 1;
        }
        text.drain(..from);
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
