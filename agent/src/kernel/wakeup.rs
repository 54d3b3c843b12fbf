//! Wake-ups on the CPU where a wire was crossed.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
};

use aya::maps::{
    MapData, PerfEventArray,
    perf::{PerfBufferError, PerfEventArrayBuffer},
};

/// One CPU's event: becomes readable when a wire was crossed there, and its reader is woken there. Before it is opened and
/// after it is dropped, a crossing on that CPU wakes whoever polls [`Tripwire::fd`](super::tripwire::Tripwire::fd).
pub struct LocalWakeup {
    event: PerfEventArrayBuffer<MapData>,
}

impl LocalWakeup {
    /// The event of a CPU.
    ///
    /// # Errors
    /// The CPU is offline, `perf_event_open` or its memory is refused.
    pub(super) fn open(events: &mut PerfEventArray<MapData>, cpu: u32) -> io::Result<Self> {
        // One page: each wake-up takes some thirty bytes of it until it is heard.
        let event = events.open(cpu, Some(1)).map_err(|error| match error {
            PerfBufferError::OpenError { io_error }
            | PerfBufferError::MMapError { io_error }
            | PerfBufferError::PerfEventEnableError { io_error }
            | PerfBufferError::IOError(io_error) => io_error,
            other => io::Error::other(other),
        })?;
        Ok(Self { event })
    }

    /// Forgets what has been heard, and makes room for what comes.
    pub fn silence(&mut self) {
        self.event.for_each(|_| {});
    }
}

impl AsFd for LocalWakeup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
