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
    tripwire::{
        ANY_SLOT, Direction, MAX_SCOPES, MAX_TRIPWIRES, SLOTS_PER_SCOPE, Trip, Tripwire, Wire,
        page_size,
    },
};
use crate::observe::cgroup::{MemoryCgroup, Version, is_gone};

/// One eventfd for all wires of all scopes.
pub struct Eventfd {
    event: OwnedFd,
    scopes: [Option<Files>; MAX_SCOPES as usize],
    wires: [Wire; MAX_TRIPWIRES as usize],
}

/// What a threshold is registered with.
struct Files {
    usage: File,
    control: File,
}

impl Eventfd {
    /// Opens the `cgroup.event_control` of each scope; the reason says why not.
    pub fn new(scopes: &[&MemoryCgroup]) -> Result<Self, String> {
        let event = eventfd().map_err(|e| format!("eventfd: {e}"))?;
        let mut tripwire = Self {
            event,
            scopes: Default::default(),
            wires: [Wire::NEVER; MAX_TRIPWIRES as usize],
        };
        for (index, scope) in scopes.iter().enumerate() {
            tripwire.open(index, scope)?;
        }
        Ok(tripwire)
    }

    fn open(&mut self, index: usize, scope: &MemoryCgroup) -> Result<(), String> {
        if scope.version() != Version::V1 {
            return Err("cgroup v2 has no usage notification".to_owned());
        }
        let path = scope.path();
        let open = |name: &str, write: bool| {
            let file = path.join(name);
            let opened = File::options().read(!write).write(write).open(&file);
            opened.map_err(|e| format!("{}: {e}", file.display()))
        };
        let files = Files {
            usage: open("memory.usage_in_bytes", false)?,
            control: open("cgroup.event_control", true)?,
        };
        // The registration of a threshold is the part that a kernel can refuse; try it before it is needed.
        let probe = eventfd().map_err(|e| format!("eventfd: {e}"))?;
        files
            .register(&probe, u64::MAX / 2)
            .map_err(|e| format!("{}/cgroup.event_control: {e}", path.display()))?;
        let place = self.scopes.get_mut(index).ok_or("too many scopes")?;
        *place = Some(files);
        Ok(())
    }

    /// Registers all wires with a new eventfd: a threshold cannot be taken back singly, and closing the old one takes
    /// back all of them.
    fn register_all(&mut self) -> io::Result<()> {
        let event = eventfd()?;
        let scopes = self.wires.chunks(SLOTS_PER_SCOPE as usize);
        for (files, wires) in self.scopes.iter().zip(scopes) {
            for wire in wires.iter().filter(|w| !w.is_never()) {
                let files = files.as_ref().ok_or(io::ErrorKind::InvalidInput)?;
                // The kernel compares with >; one page less makes it "at the limit".
                let limit = match wire.direction {
                    Direction::Rising => wire.limit.saturating_sub(page_size()),
                    Direction::Falling => wire.limit,
                };
                match files.register(&event, limit) {
                    // A scope that was removed must not take the other one's wires with it.
                    Err(e) if is_gone(&e) => {}
                    other => other?,
                }
            }
        }
        self.event = event;
        Ok(())
    }
}

impl Files {
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

    fn watch(&mut self, scope: usize, cgroup: &MemoryCgroup) -> io::Result<()> {
        let slots = scope * SLOTS_PER_SCOPE as usize..(scope + 1) * SLOTS_PER_SCOPE as usize;
        let wires = self.wires.get_mut(slots);
        wires.ok_or(io::ErrorKind::InvalidInput)?.fill(Wire::NEVER);
        self.open(scope, cgroup).map_err(io::Error::other)?;
        self.register_all()
    }

    fn arm(&mut self, slot: usize, wire: Wire) -> io::Result<()> {
        // A floor needs a program in the kernel; here it is a threshold like any other and wakes the agent.
        let Some(armed) = self.wires.get_mut(slot) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        // These stay armed after a crossing.
        if *armed == wire {
            return Ok(());
        }
        *armed = wire;
        self.register_all()
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

    fn set_first_victim(&mut self, _: usize, _: Option<u64>) -> io::Result<()> {
        Ok(())
    }

    fn set_near(&mut self, _: bool) -> io::Result<bool> {
        Ok(false)
    }

    fn is_attached(&self) -> bool {
        true
    }
}
