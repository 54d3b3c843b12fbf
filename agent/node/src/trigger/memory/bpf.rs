//! The hooks with a kernel program: fexit, kprobe and tracepoint share maps and differ in where they sit.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use aya::{
    maps::{Array, MapData, PerfEventArray, RingBuf},
    util::KernelVersion,
};
use evictd_common::memory::MemoryTrigger as Record;
use evictd_engine::model::settings::MemoryHook;

use super::{MAX_SCOPES, MAX_TRIGGERS, SLOTS_PER_SCOPE, TriggerEvent};
use crate::{
    bpf::{
        link::TracingLink,
        object::{AttachPoint, BpfObject, ProgramSpec, os_error},
        perf_wakeup::LocalWakeup,
    },
    cgroup::memory::MemoryCgroup,
    trigger::{
        hook::{self, Cost},
        memory::{Direction, MemoryTrigger, Trigger},
    },
};

/// What is given back, beside [`MemoryHook::Fexit`].
const UNCHARGE: ProgramSpec = ProgramSpec {
    name: "memory_uncharge_exit",
    attach_point: AttachPoint::FunctionExit("page_counter_uncharge"),
};

/// Triggers in the kernel's map, crossings from its ring buffer.
pub struct BpfMemoryTrigger {
    hook: MemoryHook,
    cgroup_ids: [u64; MAX_SCOPES as usize],
    triggers: Array<MapData, Record>,
    /// How often a trigger was set: what a program remembers of the distance does not outlive that.
    generation_count: Array<MapData, u64>,
    first_victim: Array<MapData, u64>,
    events: RingBuf<MapData>,
    wakeups: PerfEventArray<MapData>,
    /// Set for the hook that is attached only while the usage is near.
    switch: Option<Switch>,
    /// Sees what is given back, for falling triggers; the per-page hook sees that by itself.
    uncharge: Option<Switch>,
    /// Slots with a falling trigger, a bit each.
    falling: u32,
    generations: [u64; MAX_TRIGGERS as usize],
    /// The generation of each slot whose crossing was handed on.
    handed_on: [u64; MAX_TRIGGERS as usize],
}

/// Whether a fexit program can be attached once more: before 5.13 its trampoline goes with its first link, and
/// `bpf_tracing_prog_attach` answers ENOENT.
fn can_attach_again() -> bool {
    KernelVersion::current().is_ok_and(|version| version >= KernelVersion::new(5, 13, 0))
}

/// A program that is attached and detached.
struct Switch {
    program: OwnedFd,
    link: Option<TracingLink>,
    /// The kernel attaches it only once: it stays where it is.
    stays: bool,
}

impl Switch {
    /// Attaches or detaches; whether that changed anything.
    fn set(&mut self, on: bool) -> io::Result<bool> {
        if on == self.link.is_some() || (self.stays && !on) {
            return Ok(false);
        }
        self.link = match on {
            true => Some(TracingLink::attach(&self.program)?),
            false => None,
        };
        Ok(true)
    }
}

impl BpfMemoryTrigger {
    /// Attaches the program of this hook; the reason is the kernel's.
    pub fn new(
        hook: MemoryHook,
        scopes: &[&MemoryCgroup],
        object: &mut BpfObject,
    ) -> Result<Self, String> {
        let program = hook::program(hook).ok_or_else(|| format!("{hook} has no kernel program"))?;
        let switch = match hook::cost(hook) {
            Cost::PerPage => {
                let program = object.load_program(&program)?;
                // Tried now, so that a kernel that refuses does so while there is another hook to take.
                let link = Some(TracingLink::attach(&program).map_err(|e| e.to_string())?);
                Some(Switch {
                    program,
                    link,
                    stays: false,
                })
            }
            Cost::PerBatch | Cost::None => {
                object.attach(&program)?;
                None
            }
        };
        // Refused, recovery is seen one charge or one look later.
        let uncharge = (hook == MemoryHook::Fexit)
            .then(|| object.load_program(&UNCHARGE).ok())
            .flatten()
            .map(|program| Switch {
                program,
                link: None,
                stays: !can_attach_again(),
            });
        let mut cgroup_ids = [0; MAX_SCOPES as usize];
        for (id, scope) in cgroup_ids.iter_mut().zip(scopes) {
            *id = scope.id();
        }
        let maps = || -> Result<Self, crate::bpf::object::ObjectError> {
            Ok(Self {
                hook,
                cgroup_ids,
                triggers: object.array("TRIGGERS")?,
                generation_count: object.array("ARMINGS")?,
                first_victim: object.array("FIRST_VICTIM")?,
                events: object.ring("WAKEUPS")?,
                wakeups: object.events("WAKERS")?,
                switch,
                uncharge,
                falling: 0,
                generations: [0; MAX_TRIGGERS as usize],
                handed_on: [0; MAX_TRIGGERS as usize],
            })
        };
        maps().map_err(|e| e.to_string())
    }
}

impl MemoryTrigger for BpfMemoryTrigger {
    fn hook(&self) -> MemoryHook {
        self.hook
    }

    fn watch(&mut self, scope: usize, cgroup: &MemoryCgroup) -> io::Result<()> {
        let id = self.cgroup_ids.get_mut(scope);
        *id.ok_or(io::ErrorKind::InvalidInput)? = cgroup.id();
        Ok(())
    }

    fn arm(&mut self, slot: usize, trigger: Trigger) -> io::Result<()> {
        let id = self.cgroup_ids.get(slot / SLOTS_PER_SCOPE as usize);
        let (Some(id), Some(generation)) = (id, self.generations.get_mut(slot)) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        *generation += 1;
        let record = trigger.record(*id, *generation);
        self.falling &= !(1 << slot);
        if trigger.direction == Direction::Falling && !trigger.is_disabled() {
            self.falling |= 1 << slot;
        }
        if let Some(uncharge) = &mut self.uncharge
            && uncharge.set(self.falling != 0).is_err()
        {
            self.uncharge = None;
        }
        // Below MAX_TRIGGERS, so it fits.
        let index = u32::try_from(slot).unwrap_or(u32::MAX);
        self.triggers.set(index, record, 0).map_err(os_error)?;
        let armings: u64 = self.generations.iter().sum();
        self.generation_count.set(0, armings, 0).map_err(os_error)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.events.as_fd())
    }

    fn next(&mut self) -> Option<TriggerEvent> {
        loop {
            let item = self.events.next()?;
            let Ok(bytes) = <&[u8; size_of::<TriggerEvent>()]>::try_from(&*item) else {
                continue;
            };
            // SAFETY: Trip is made of integers, so that every pattern of its bytes is one.
            let trip: TriggerEvent = unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast()) };
            let slot = trip.slot as usize;
            let told = self.handed_on.get_mut(slot);
            if self.generations.get(slot) != Some(&trip.generation) {
                continue;
            }
            // Two CPUs that crossed at once have written two.
            if let Some(told) = told.filter(|told| **told != trip.generation) {
                *told = trip.generation;
                return Some(trip);
            }
        }
    }

    fn local_wakeup(&mut self, cpu: u32) -> io::Result<Option<LocalWakeup>> {
        LocalWakeup::open(&mut self.wakeups, cpu).map(Some)
    }

    fn set_first_victim(&mut self, scope: usize, cgroup_id: Option<u64>) -> io::Result<()> {
        // A number below MAX_SCOPES; the map refuses any other.
        let index = u32::try_from(scope).unwrap_or(u32::MAX);
        self.first_victim
            .set(index, cgroup_id.unwrap_or(0), 0)
            .map_err(os_error)
    }

    fn set_near(&mut self, near: bool) -> io::Result<bool> {
        match &mut self.switch {
            Some(switch) => switch.set(near),
            None => Ok(false),
        }
    }

    fn is_attached(&self) -> bool {
        self.switch.as_ref().is_none_or(|s| s.link.is_some())
    }
}
