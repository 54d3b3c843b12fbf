//! The rungs with a kernel program: fexit, kprobe and tracepoint share maps and differ in where they sit.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
};

use aya::maps::{Array, MapData, MapError, RingBuf};
use evictd_common::memory::Tripwire as Record;

use super::{
    ladder::MemoryHook,
    object::{Object, chain},
    tripwire::{MAX_TRIPWIRES, Trip, Tripwire, Wire},
};
use crate::observe::cgroup::MemoryCgroup;

/// Wires in the kernel's map, crossings from its ring buffer.
pub struct Charge {
    hook: MemoryHook,
    cgroup_id: u64,
    wires: Array<MapData, Record>,
    first_victim: Array<MapData, u64>,
    trips: RingBuf<MapData>,
    generations: [u64; MAX_TRIPWIRES as usize],
}

impl Charge {
    /// Attaches the program of this rung; the reason is the kernel's.
    pub fn new(
        hook: MemoryHook,
        scope: &MemoryCgroup,
        object: &mut Object,
    ) -> Result<Self, String> {
        let program = hook
            .program()
            .ok_or_else(|| format!("{hook} has no kernel program"))?;
        object.attach(&program)?;
        let mut maps = || -> Result<Self, super::object::ObjectError> {
            Ok(Self {
                hook,
                cgroup_id: scope.id(),
                wires: object.array("TRIPWIRES")?,
                first_victim: object.array("FIRST_VICTIM")?,
                trips: object.ring("WAKEUPS")?,
                generations: [0; MAX_TRIPWIRES as usize],
            })
        };
        maps().map_err(|e| e.to_string())
    }
}

impl Tripwire for Charge {
    fn hook(&self) -> MemoryHook {
        self.hook
    }

    fn arm(&mut self, slot: usize, wire: Wire) -> io::Result<()> {
        let Some(generation) = self.generations.get_mut(slot) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        *generation += 1;
        let record = wire.record(self.cgroup_id, *generation);
        // Below MAX_TRIPWIRES, so it fits.
        let index = u32::try_from(slot).unwrap_or(u32::MAX);
        self.wires.set(index, record, 0).map_err(os_error)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.trips.as_fd())
    }

    fn next(&mut self) -> Option<Trip> {
        loop {
            let item = self.trips.next()?;
            let Ok(bytes) = <&[u8; size_of::<Trip>()]>::try_from(&*item) else {
                continue;
            };
            // SAFETY: Trip is made of integers, so that every pattern of its bytes is one.
            let trip: Trip = unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast()) };
            if self.generations.get(trip.slot as usize) == Some(&trip.generation) {
                return Some(trip);
            }
        }
    }

    fn set_first_victim(&mut self, cgroup_id: Option<u64>) -> io::Result<()> {
        self.first_victim
            .set(0, cgroup_id.unwrap_or(0), 0)
            .map_err(os_error)
    }

    fn set_near(&mut self, _: bool) -> io::Result<bool> {
        Ok(false)
    }
}

/// The errno behind aya's error: made without allocating, because the reflex may meet it.
fn os_error(error: MapError) -> io::Error {
    match error {
        MapError::SyscallError(e) => e.io_error,
        other => {
            tracing::debug!(error = %chain(&other), "map");
            io::ErrorKind::InvalidInput.into()
        }
    }
}
