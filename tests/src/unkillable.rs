//! A process that SIGKILL does not end for a while, as one that waits for a disk: it is held at the begin of its exit, with all
//! its memory.

use std::{
    io,
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread::{self, JoinHandle},
    time::Duration,
};

/// Holds it until this is dropped. To be dropped before the process is waited for.
pub struct Undying {
    release: Option<mpsc::Sender<()>>,
    tracer: Option<JoinHandle<()>>,
}

impl Undying {
    /// Takes hold of a child of this process.
    pub fn hold(pid: u32) -> io::Result<Self> {
        let (release, released) = mpsc::channel();
        let (held, ready) = mpsc::channel();
        // The kernel lets go of what a thread traces when that thread ends.
        let tracer = thread::spawn(move || trace(pid.cast_signed(), &held, &released));
        let gone = |_| io::Error::other("the tracing thread has ended");
        ready.recv().map_err(gone).and_then(|held| held)?;
        Ok(Self {
            release: Some(release),
            tracer: Some(tracer),
        })
    }
}

fn trace(pid: i32, held: &mpsc::Sender<io::Result<()>>, released: &Receiver<()>) {
    let nothing = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: takes plain numbers; the process is a child that was not waited for.
    let refused = unsafe {
        libc::ptrace(
            libc::PTRACE_SEIZE,
            pid,
            nothing,
            libc::PTRACE_O_TRACEEXIT as *mut libc::c_void,
        )
    } != 0;
    let seized = match refused {
        true => Err(io::Error::last_os_error()),
        false => Ok(()),
    };
    if held.send(seized).is_err() || refused {
        return;
    }
    // That it has stopped is told once, and must not pass for its end.
    let pause = Duration::from_millis(5);
    while released.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        let mut status = 0;
        // SAFETY: writes into a local.
        unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG | libc::__WALL) };
    }
}

impl Drop for Undying {
    fn drop(&mut self) {
        drop(self.release.take());
        if let Some(tracer) = self.tracer.take() {
            let _ = tracer.join();
        }
    }
}
