//! An eventfd that one thread notifies and another one polls.

use std::{
    io,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd},
};

/// An eventfd: wakes the thread that polls it.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl EventFd {
    /// A silent one.
    ///
    /// # Errors
    /// The system has no descriptor to give.
    pub fn new() -> io::Result<Self> {
        // SAFETY: takes plain integers; the result is checked.
        let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and has no other owner.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Wakes the thread that polls [`Self::fd`].
    pub fn notify(&self) {
        let one = 1_u64;
        // SAFETY: writes the eight bytes of a local. It fails only when the counter is full, and then it is readable already.
        unsafe {
            libc::write(
                self.0.as_raw_fd(),
                (&raw const one).cast(),
                size_of::<u64>(),
            )
        };
    }

    /// Forgets that it was notified.
    pub fn clear(&self) {
        let mut count = 0_u64;
        // SAFETY: reads eight bytes into the eight bytes of a local; nothing to read is fine.
        unsafe {
            libc::read(
                self.0.as_raw_fd(),
                (&raw mut count).cast(),
                size_of::<u64>(),
            )
        };
    }

    /// Becomes readable when it was notified.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
