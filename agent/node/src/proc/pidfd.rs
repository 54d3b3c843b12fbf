//! Processes by descriptor: a PID may be given to another process at any time, a pidfd stays with the process that it
//! was opened for.

use std::{
    io,
    os::fd::{AsRawFd as _, OwnedFd},
};

use rustix::{
    io::Errno,
    process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal},
};

pub use rustix::process::Signal;

/// A PID as the kernel's calls take it; `None` for what is the number of no process.
pub(crate) fn pid_of(number: i32) -> Option<Pid> {
    (number > 0).then(|| Pid::from_raw(number)).flatten()
}

/// A process, whatever becomes of its PID. Opening one takes a descriptor and some memory of the kernel's, nothing
/// else.
#[derive(Debug)]
pub struct Pidfd(OwnedFd);

impl Pidfd {
    /// The process that has this PID now (`pidfd_open`, 5.3+); `None` if there is none.
    ///
    /// # Errors
    /// No descriptor or memory is left (EMFILE, ENFILE, ENOMEM), or a filter forbids the call (ENOSYS, EPERM).
    pub fn open(pid: i32) -> io::Result<Option<Self>> {
        let Some(pid) = pid_of(pid) else {
            return Ok(None);
        };
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(fd) => Ok(Some(Self(fd))),
            // The last two: the PID is a thread's now, or its process has been reaped.
            Err(Errno::SRCH | Errno::INVAL | Errno::NOENT) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Sends a signal (`pidfd_send_signal`, 5.1+).
    ///
    /// # Errors
    /// ESRCH when the process has ended, EPERM when it may not be signalled.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        Ok(pidfd_send_signal(&self.0, signal)?)
    }

    /// Frees a dying process's memory in this thread, while its own waits for a CPU (`process_mrelease`, 5.15+).
    ///
    /// # Errors
    /// EINVAL for a process that is not dying; then, as after every other refusal, nothing has changed.
    pub fn release_memory(&self) -> io::Result<()> {
        // SAFETY: a held descriptor and no flags.
        let released = unsafe { libc::syscall(libc::SYS_process_mrelease, self.0.as_raw_fd(), 0) };
        if released == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }
}
