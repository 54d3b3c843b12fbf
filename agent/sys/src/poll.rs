//! Waiting for descriptors, without allocating.

use std::{
    os::fd::{AsRawFd as _, BorrowedFd},
    time::Duration,
};

/// Waits until one of `fds` is readable, or for `timeout`; `None` waits for ever. Returns `revents` of poll(2) for each, 0 for a `None`
/// entry. A signal ends the wait early, with zeros.
pub fn poll<const N: usize>(
    fds: [Option<BorrowedFd<'_>>; N],
    timeout: Option<Duration>,
) -> [i16; N] {
    let mut fds = fds.map(|fd| libc::pollfd {
        // The kernel passes over a negative one.
        fd: fd.map_or(-1, |fd| fd.as_raw_fd()),
        events: libc::POLLIN,
        revents: 0,
    });
    let timeout = timeout.map(|timeout| libc::timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(timeout.subsec_nanos()),
    });
    let timeout = timeout.as_ref().map_or(std::ptr::null(), |t| &raw const *t);
    // SAFETY: N entries, and a time that is none or a local that outlives the call; no signal mask is given.
    unsafe {
        libc::ppoll(
            fds.as_mut_ptr(),
            N as libc::nfds_t,
            timeout,
            std::ptr::null(),
        )
    };
    fds.map(|fd| fd.revents)
}
