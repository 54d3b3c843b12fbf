//! Wake-ups on the CPU that charges.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

use aya::maps::{
    MapData, PerfEventArray,
    perf::{PerfBufferError, PerfEventArrayBuffer},
};
use evictd_sys::poll::poll;

/// The map that the programs write wake-ups to, which opens the events of the CPUs.
pub struct LocalWakeups(PerfEventArray<MapData>);

/// The perf event of one CPU. Readable when that CPU charges while an [`Action::WakeLocal`] is unread. Its reader
/// should be pinned to the same CPU, to be woken without another CPU's help.
///
/// [`Action::WakeLocal`]: crate::trigger::memory::Action::WakeLocal
pub struct LocalWakeup {
    event: PerfEventArrayBuffer<MapData>,
}

impl LocalWakeups {
    pub(crate) fn new(map: PerfEventArray<MapData>) -> Self {
        Self(map)
    }

    /// The event of a CPU, from now on. The kernel allocates memory for it.
    ///
    /// # Errors
    /// The CPU is offline, `perf_event_open` or its memory is refused.
    pub fn open(&mut self, cpu: usize) -> io::Result<LocalWakeup> {
        let cpu = u32::try_from(cpu).map_err(io::Error::other)?;
        // One page: each wake-up takes some thirty bytes of it until it is heard.
        let event = self.0.open(cpu, Some(1)).map_err(|error| match error {
            PerfBufferError::OpenError { io_error }
            | PerfBufferError::MMapError { io_error }
            | PerfBufferError::PerfEventEnableError { io_error }
            | PerfBufferError::IOError(io_error) => io_error,
            other => io::Error::other(other),
        })?;
        Ok(LocalWakeup { event })
    }
}

impl LocalWakeup {
    /// Forgets what has been heard, and makes room for what comes.
    pub fn clear(&mut self) {
        // It is readable as long as no thread has polled it since the last wake-up, whatever was read meanwhile
        // (`perf_poll`).
        poll([Some(self.event.as_fd())], Some(Duration::ZERO));
        self.event.for_each(|_| {});
    }
}

impl AsFd for LocalWakeup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
