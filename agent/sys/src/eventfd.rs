//! An eventfd that one thread notifies and another one polls.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
};

use rustix::event::{EventfdFlags, eventfd};

/// An eventfd: wakes the thread that polls it.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl EventFd {
    /// A silent one.
    ///
    /// # Errors
    /// The system has no descriptor to give.
    pub fn new() -> io::Result<Self> {
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        Ok(Self(eventfd(0, flags)?))
    }

    /// Wakes the thread that polls [`Self::fd`].
    pub fn notify(&self) {
        // It fails only when the counter is full, and then it is readable already.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Forgets that it was notified.
    pub fn clear(&self) {
        // Nothing to read is fine.
        let _ = rustix::io::read(&self.0, &mut [0_u8; size_of::<u64>()]);
    }

    /// Becomes readable when it was notified.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
