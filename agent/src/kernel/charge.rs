//! The rungs with a kernel program: fexit, kprobe and tracepoint share maps and differ in where they sit.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use aya::maps::{Array, MapData, RingBuf};
use evictd_common::memory::Tripwire as Record;

use super::{
    ladder::{Cost, MemoryHook},
    link::TracingLink,
    object::{Object, os_error},
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
    /// Set for the rung that is attached only while the usage is near.
    switch: Option<Switch>,
    generations: [u64; MAX_TRIPWIRES as usize],
}

/// A program that is attached and detached.
struct Switch {
    program: OwnedFd,
    link: Option<TracingLink>,
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
        let switch = match hook.cost() {
            Cost::PerPage => {
                let program = object.load_program(&program)?;
                // Tried now, so that a kernel that refuses does so while there is another rung to take.
                let link = Some(TracingLink::attach(&program).map_err(|e| e.to_string())?);
                Some(Switch { program, link })
            }
            Cost::PerBatch | Cost::None => {
                object.attach(&program)?;
                None
            }
        };
        let maps = || -> Result<Self, super::object::ObjectError> {
            Ok(Self {
                hook,
                cgroup_id: scope.id(),
                wires: object.array("TRIPWIRES")?,
                first_victim: object.array("FIRST_VICTIM")?,
                trips: object.ring("WAKEUPS")?,
                switch,
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

    fn set_near(&mut self, near: bool) -> io::Result<bool> {
        let Some(Switch { program, link }) = &mut self.switch else {
            return Ok(false);
        };
        if near == link.is_some() {
            return Ok(false);
        }
        *link = if near {
            Some(TracingLink::attach(program)?)
        } else {
            None
        };
        Ok(true)
    }

    fn has_program(&self) -> bool {
        true
    }

    fn is_attached(&self) -> bool {
        self.switch.as_ref().is_none_or(|s| s.link.is_some())
    }
}
