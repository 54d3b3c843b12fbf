//! SIGTERM, SIGINT and SIGHUP, as requests to the agent.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Action that a signal asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignalAction {
    /// SIGHUP: read the configuration again.
    Reload,
    /// SIGTERM or SIGINT: an orderly end.
    Shutdown,
}

/// The signals that ask for something, instead of what the kernel does by default: end the process there and then, or,
/// where it is the first of its PID namespace, nothing.
pub struct OsSignals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl OsSignals {
    /// From here on they wait until they are taken.
    ///
    /// # Errors
    /// The handler or the pipe behind it was refused.
    pub fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// The next of them. Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> SignalAction {
        tokio::select! {
            _ = self.terminate.recv() => SignalAction::Shutdown,
            _ = self.interrupt.recv() => SignalAction::Shutdown,
            _ = self.hangup.recv() => SignalAction::Reload,
        }
    }
}
