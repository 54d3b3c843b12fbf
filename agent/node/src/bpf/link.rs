//! Attaching a tracing program by its descriptor, without a library in between: the fast path does it near a threshold,
//! where nothing may be allocated.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use super::syscall;

/// An attached program; detached when dropped.
#[derive(Debug)]
pub struct TracingLink(OwnedFd);

impl AsFd for TracingLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl TracingLink {
    /// Attaches a loaded `tp_btf` or fexit program. Does not allocate.
    ///
    /// # Errors
    /// What `bpf(2)` answers.
    pub fn attach(program: &OwnedFd) -> io::Result<Self> {
        syscall::attach(program.as_fd()).map(Self)
    }
}
