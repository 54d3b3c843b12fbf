//! Processes by descriptor: a PID may be given to another process at any time, a pidfd stays with the process that it was
//! opened for.

use std::{
    io,
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
};

/// A process, whatever becomes of its PID. Opening one takes a descriptor and some memory of the kernel's, nothing else.
#[derive(Debug)]
pub struct Pidfd(OwnedFd);

impl Pidfd {
    /// The process that has this PID now (`pidfd_open`, 5.3+); `None` if there is none.
    ///
    /// # Errors
    /// No descriptor or memory is left (EMFILE, ENFILE, ENOMEM), or a filter forbids the call (ENOSYS, EPERM).
    pub fn open(pid: i32) -> io::Result<Option<Self>> {
        // SAFETY: plain integers; the result is checked.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        match i32::try_from(fd) {
            // SAFETY: the descriptor is new and has no other owner.
            Ok(fd) if fd >= 0 => Ok(Some(Self(unsafe { OwnedFd::from_raw_fd(fd) }))),
            _ => match io::Error::last_os_error() {
                // The last two: the PID is a thread's now, or its process has been reaped.
                e if matches!(
                    e.raw_os_error(),
                    Some(libc::ESRCH | libc::EINVAL | libc::ENOENT)
                ) =>
                {
                    Ok(None)
                }
                e => Err(e),
            },
        }
    }

    /// Sends a signal (`pidfd_send_signal`, 5.1+).
    ///
    /// # Errors
    /// ESRCH when the process has ended, EPERM when it may not be signalled.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        // SAFETY: a held descriptor, no siginfo, no flags.
        let sent = unsafe {
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                self.0.as_raw_fd(),
                signal,
                std::ptr::null::<libc::siginfo_t>(),
                0,
            )
        };
        if sent == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
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
