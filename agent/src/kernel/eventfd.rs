//! The cgroup v1 rung: the kernel's own usage notification (`Documentation/admin-guide/cgroup-v1/memory.rst`, 9).
//!
//! The kernel compares once per 128 charged pages, in either direction, and does not say which threshold it was.

use std::{
    fs::File,
    io::{self, Write as _},
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

use super::{
    ladder::MemoryHook,
    tripwire::{ANY_SLOT, Direction, MAX_TRIPWIRES, Trip, Tripwire, Wire, page_size},
};
use crate::observe::cgroup::{MemoryCgroup, Version};

/// One eventfd for all wires of a scope.
pub struct Eventfd {
    event: OwnedFd,
    usage: File,
    control: File,
    wires: [Wire; MAX_TRIPWIRES as usize],
}

impl Eventfd {
    /// Opens the scope's `cgroup.event_control`; the reason says why not.
    pub fn new(scope: &MemoryCgroup) -> Result<Self, String> {
        if scope.version() != Version::V1 {
            return Err("cgroup v2 has no usage notification".to_owned());
        }
        let path = scope.path();
        let open = |name: &str, write: bool| {
            let file = path.join(name);
            let opened = File::options().read(!write).write(write).open(&file);
            opened.map_err(|e| format!("{}: {e}", file.display()))
        };
        let usage = open("memory.usage_in_bytes", false)?;
        let control = open("cgroup.event_control", true)?;
        let event = eventfd().map_err(|e| format!("eventfd: {e}"))?;
        let tripwire = Self {
            event,
            usage,
            control,
            wires: [Wire::NEVER; MAX_TRIPWIRES as usize],
        };
        // The registration of a threshold is the part that a kernel can refuse; try it before it is needed.
        tripwire
            .register(
                &eventfd().map_err(|e| format!("eventfd: {e}"))?,
                u64::MAX / 2,
            )
            .map_err(|e| format!("{}/cgroup.event_control: {e}", path.display()))?;
        Ok(tripwire)
    }

    fn register(&self, event: &OwnedFd, limit: u64) -> io::Result<()> {
        // "<event fd> <fd of memory.usage_in_bytes> <threshold in bytes>", written at once and without allocating.
        let mut line = [0_u8; 64];
        let mut cursor = io::Cursor::new(&mut line[..]);
        write!(
            cursor,
            "{} {} {limit}",
            event.as_raw_fd(),
            self.usage.as_raw_fd()
        )?;
        let length = usize::try_from(cursor.position()).unwrap_or(0);
        (&self.control).write_all(&line[..length])
    }
}

fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: takes plain integers; the result is checked.
    let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

impl Tripwire for Eventfd {
    fn hook(&self) -> MemoryHook {
        MemoryHook::Eventfd
    }

    fn arm(&mut self, slot: usize, wire: Wire) -> io::Result<()> {
        // A floor needs a program in the kernel; here it is a threshold like any other and wakes the agent.
        let Some(armed) = self.wires.get_mut(slot) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        *armed = wire;
        // A threshold cannot be taken back singly: closing the eventfd takes back all of them.
        let event = eventfd()?;
        for wire in self.wires.iter().filter(|w| w.limit < u64::MAX) {
            // The kernel compares with >; one page less makes it "at the limit".
            let limit = match wire.direction {
                Direction::Rising => wire.limit.saturating_sub(page_size()),
                Direction::Falling => wire.limit,
            };
            self.register(&event, limit)?;
        }
        self.event = event;
        Ok(())
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.event.as_fd())
    }

    fn next(&mut self) -> Option<Trip> {
        let mut count = 0_u64;
        // SAFETY: an eventfd gives exactly eight bytes into the eight bytes of `count`.
        let got = unsafe {
            libc::read(
                self.event.as_raw_fd(),
                (&raw mut count).cast(),
                size_of::<u64>(),
            )
        };
        (got == 8 && count > 0).then(|| Trip {
            slot: ANY_SLOT,
            ..Trip::default()
        })
    }

    fn set_first_victim(&mut self, _: Option<u64>) -> io::Result<()> {
        Ok(())
    }

    fn set_near(&mut self, _: bool) -> io::Result<bool> {
        Ok(false)
    }

    fn is_attached(&self) -> bool {
        true
    }
}
