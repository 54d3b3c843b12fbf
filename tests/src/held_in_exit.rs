//! A process that SIGKILL does not end for a while, as one that waits for a disk: it is held at the begin of its exit, with all
//! its memory.

use std::{
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread::{self, JoinHandle},
};

use nix::{
    sys::{
        ptrace,
        wait::{WaitPidFlag, waitpid},
    },
    unistd::Pid,
};

use crate::prelude::*;

/// Holds it until this is dropped. To be dropped before the process is waited for.
pub struct HeldInExit {
    release: Option<mpsc::Sender<()>>,
    tracer: Option<JoinHandle<()>>,
}

impl HeldInExit {
    /// Takes hold of a child of this process.
    pub fn hold(pid: u32) -> Result<Self> {
        let (release, released) = mpsc::channel();
        let (held, ready) = mpsc::channel();
        // The kernel lets go of what a thread traces when that thread ends.
        let tracer = thread::spawn(move || trace(pid.cast_signed(), &held, &released));
        ready.recv().context("the tracing thread has ended")??;
        Ok(Self {
            release: Some(release),
            tracer: Some(tracer),
        })
    }
}

fn trace(pid: i32, held: &mpsc::Sender<nix::Result<()>>, released: &Receiver<()>) {
    let pid = Pid::from_raw(pid);
    let seized = ptrace::seize(pid, ptrace::Options::PTRACE_O_TRACEEXIT);
    if held.send(seized).is_err() || seized.is_err() {
        return;
    }
    // That it has stopped is told once, and must not pass for its end.
    let pause = Duration::from_millis(5);
    while released.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        let _ = waitpid(pid, Some(WaitPidFlag::WNOHANG | WaitPidFlag::__WALL));
    }
}

impl Drop for HeldInExit {
    fn drop(&mut self) {
        drop(self.release.take());
        if let Some(tracer) = self.tracer.take() {
            let _ = tracer.join();
        }
    }
}
