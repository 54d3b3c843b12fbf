//! Waiting for descriptors, without allocating.

use std::{array, os::fd::BorrowedFd, time::Duration};

use rustix::event::{self, PollFd, PollFlags, Timespec};

/// Waits until one of `fds` is readable, or for `timeout`; `None` waits for ever. Returns `revents` of poll(2) for
/// each, 0 for a `None` entry. A signal ends the wait early, with zeros.
pub fn poll<const N: usize>(
    fds: [Option<BorrowedFd<'_>>; N],
    timeout: Option<Duration>,
) -> [i16; N] {
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    let mut there = fds.iter().flatten();
    let Some(first) = there.next() else {
        // Only the time is waited for.
        let _ = event::poll(&mut [], timeout.as_ref());
        return [0; N];
    };
    let mut polled = array::from_fn::<_, N, _>(|_| PollFd::new(first, PollFlags::IN));
    let mut count = 1;
    for fd in there {
        polled[count].set_fd(fd);
        count += 1;
    }
    // After an error, as that of a signal, all are silent.
    let _ = event::poll(&mut polled[..count], timeout.as_ref());
    let mut polled = polled.iter();
    fds.map(|fd| {
        let polled = fd.and_then(|_| polled.next());
        polled.map_or(0, |polled| polled.revents().bits().cast_signed())
    })
}
