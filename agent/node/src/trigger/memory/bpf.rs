//! The hooks with a kernel program: fexit, kprobe and tracepoint share maps and differ in where they sit.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Duration,
};

use aya::{
    maps::{Array, HashMap, MapData, RingBuf},
    programs::links::FdLink,
};
use evictd_common::memory::{AgentLease, LAYOUT, MemoryTrigger, VictimKey, VictimLimits};
use evictd_engine::{model::settings::MemoryHook, units::nanos};
use evictd_sys::page::page_size;

use super::{KernelVictim, MAX_SCOPES, MAX_TRIGGERS, MAX_VICTIMS, SLOTS_PER_SCOPE, TriggerEvent};
use crate::{
    bpf::{
        object::{AttachPoint, BpfObject, ProgramSpec, chain, os_error},
        perf_wakeup::LocalWakeups,
        pin::PinDirectory,
        ring::next_record,
        syscall::attach,
    },
    cgroup::memory::MemoryCgroup,
    trigger::{
        hook,
        memory::{
            Direction, Trigger, TriggerSet,
            kernel_kills::{KernelKill, KernelKills},
        },
    },
};

/// The program that sees uncharges, for falling triggers.
const UNCHARGE: ProgramSpec = ProgramSpec {
    name: "memory_uncharge_exit",
    attach_point: AttachPoint::Fexit("page_counter_uncharge"),
};

/// Reclaims that give nothing back, with the names of their links among what is pinned.
const RECLAIMS: [(&str, ProgramSpec); 2] = [
    (
        "reclaim",
        ProgramSpec {
            name: "memory_reclaim_of_cgroup",
            attach_point: AttachPoint::BtfTracepoint("mm_vmscan_memcg_reclaim_end"),
        },
    ),
    (
        "direct-reclaim",
        ProgramSpec {
            name: "memory_reclaim_of_machine",
            attach_point: AttachPoint::BtfTracepoint("mm_vmscan_direct_reclaim_end"),
        },
    ),
];

/// The name of the link among what is pinned.
const LINK: &str = "memory";
/// What was left at the agent's last look is believed for this share of the time in which the programs act without an
/// agent: of ten minutes half a minute.
const TRUSTED_SHARE: u64 = 20;
/// Why a kprobe cannot be pinned.
const KPROBES_BEFORE: &str = "kprobes have no links before 5.15";

/// Triggers in the kernel's map, crossings from its ring buffer.
pub struct BpfTriggers {
    attached: Attached,
    cgroup_ids: [u64; MAX_SCOPES as usize],
    triggers: Array<MapData, MemoryTrigger>,
    /// Rises with each arming: it invalidates the programs' cached skip allowance.
    generation_count: Array<MapData, u64>,
    victims: HashMap<MapData, VictimKey, VictimLimits>,
    /// The victims in the map, by scope and rank; the id 0 for none.
    ranked: [[KernelVictim; MAX_VICTIMS as usize]; MAX_SCOPES as usize],
    killed: KernelKills,
    guard: Array<MapData, AgentLease>,
    /// Time for which the programs act without an agent; `None` while nothing is pinned.
    expires_after: Option<Duration>,
    events: RingBuf<MapData>,
    /// `None` once they are handed over.
    wakeups: Option<LocalWakeups>,
    /// See reclaims that give nothing back, with the names of their links and their own; attached with the pins.
    reclaims: Vec<(&'static str, &'static str, OwnedFd)>,
    /// Those that the kernel refuses, with its reasons.
    unseen: Vec<String>,
    /// Slots with a falling trigger, a bit each.
    falling: u64,
    /// Where the program that sees uncharges reads them.
    slots_falling: Array<MapData, u64>,
    generations: [u64; MAX_TRIGGERS as usize],
    /// The generation of each slot whose crossing was handed on.
    handed_on: [u64; MAX_TRIGGERS as usize],
}

/// Programs of a hook that are attached in the kernel.
pub struct Attached {
    hook: MemoryHook,
    link: Link,
    /// Sees what is given back, for falling triggers; the per-page hook sees that by itself.
    _uncharge: Option<OwnedFd>,
}

/// Attachment of the hook's program.
enum Link {
    /// Attached for good.
    Fixed(OwnedFd),
    /// Attached for good, by a perf event: the kernel gives a link for it since 5.15.
    Kprobe(Option<FdLink>),
    /// Only while the usage is near: it costs several calls per page, a quarter of a page fault in the worst case. The
    /// others cost some nanoseconds per batch of 32 or 64 pages.
    Switched(Switch),
    /// Detached: the kernel has refused to pin it.
    Lost,
}

/// A program that is attached and detached.
struct Switch {
    program: OwnedFd,
    link: Option<OwnedFd>,
}

impl Switch {
    /// Attaches or detaches; whether that changed anything.
    fn set(&mut self, on: bool) -> io::Result<bool> {
        if on == self.link.is_some() {
            return Ok(false);
        }
        self.link = match on {
            true => Some(attach(self.program.as_fd())?),
            false => None,
        };
        Ok(true)
    }
}

impl Attached {
    /// Attaches the program of this hook; the reason is the kernel's.
    pub fn new(hook: MemoryHook, object: &mut BpfObject) -> Result<Self, String> {
        let program = hook::program(hook).ok_or_else(|| format!("{hook} has no kernel program"))?;
        let link = if matches!(program.attach_point, AttachPoint::Kprobe(_)) {
            Link::Kprobe(object.attach_kprobe(&program)?)
        } else {
            let program = object.load_program(&program)?;
            // Tried now, so that a kernel that refuses does so while there is another hook to take.
            let link = attach(program.as_fd()).map_err(|e| e.to_string())?;
            match hook {
                MemoryHook::Tracepoint => Link::Switched(Switch {
                    program,
                    link: Some(link),
                }),
                _ => Link::Fixed(link),
            }
        };
        // Refused, recovery is seen one charge or one look later.
        let uncharge = (hook == MemoryHook::Fexit)
            .then(|| object.load_program(&UNCHARGE).ok())
            .flatten()
            .and_then(|program| attach(program.as_fd()).ok());
        Ok(Self {
            hook,
            link,
            _uncharge: uncharge,
        })
    }
}

impl BpfTriggers {
    /// Takes the maps out of the object.
    pub fn new(
        attached: Attached,
        scopes: &[&MemoryCgroup],
        object: &mut BpfObject,
    ) -> Result<Self, String> {
        let (mut reclaims, mut unseen) = (Vec::new(), Vec::new());
        for (link, program) in RECLAIMS {
            match object.load_program(&program) {
                Ok(fd) => reclaims.push((link, program.name, fd)),
                Err(reason) => {
                    tracing::info!(
                        program = program.name,
                        reason,
                        "the pinned guard will not see this event while no agent runs"
                    );
                    unseen.push(format!("{}: {reason}", program.name));
                }
            }
        }
        let mut cgroup_ids = [0; MAX_SCOPES as usize];
        for (id, scope) in cgroup_ids.iter_mut().zip(scopes) {
            *id = scope.id();
        }
        let maps = || -> Result<Self, crate::bpf::object::ObjectError> {
            Ok(Self {
                attached,
                cgroup_ids,
                triggers: object.array("TRIGGERS")?,
                generation_count: object.array("GENERATION")?,
                slots_falling: object.array("FALLING")?,
                victims: object.hash("VICTIMS")?,
                ranked: Default::default(),
                killed: KernelKills::new(object.map("KILLED")?),
                guard: object.array("PINNED_GUARD")?,
                expires_after: None,
                events: object.ring("WAKEUPS")?,
                wakeups: Some(LocalWakeups::new(object.events("CPU_WAKEUPS")?)),
                reclaims,
                unseen,
                falling: 0,
                generations: [0; MAX_TRIGGERS as usize],
                handed_on: [0; MAX_TRIGGERS as usize],
            })
        };
        maps().map_err(|e| e.to_string())
    }

    /// Replaces the hook; the maps stay the same: the programs refer to them by descriptors that live here.
    pub fn set_hook(&mut self, attached: Attached) {
        self.attached = attached;
    }

    fn replace_victims(&mut self, scope: usize, victims: &[KernelVictim]) -> io::Result<()> {
        let ranked = self.ranked.get_mut(scope);
        let ranked = ranked.ok_or(io::ErrorKind::InvalidInput)?;
        let key = |victim: &KernelVictim| victim_key(scope, victim);
        // First those that may not be killed any more.
        for victim in ranked.iter_mut().filter(|victim| victim.cgroup_id != 0) {
            if victims.iter().all(|v| v.cgroup_id != victim.cgroup_id) {
                self.victims.remove(&key(victim)).map_err(os_error)?;
                *victim = KernelVictim::default();
            }
        }
        let before = std::mem::take(ranked);
        for (rank, (victim, named)) in ranked.iter_mut().zip(victims).enumerate() {
            *victim = *named;
            if before.get(rank) != Some(named) {
                let limits = named.limits;
                let entry = VictimLimits {
                    rank: rank as u64,
                    min_task_pages: limits.min_task_bytes / page_size(),
                    max_task_pages: limits.max_task_bytes / page_size(),
                    min_pod_pages: limits.min_pod_bytes / page_size(),
                };
                self.victims
                    .insert(key(named), entry, 0)
                    .map_err(os_error)?;
            }
        }
        Ok(())
    }
}

fn victim_key(scope: usize, victim: &KernelVictim) -> VictimKey {
    VictimKey {
        cgroup_id: victim.cgroup_id,
        scope: scope as u64,
    }
}

impl TriggerSet for BpfTriggers {
    fn hook(&self) -> MemoryHook {
        self.attached.hook
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
        // Below MAX_TRIGGERS, so it fits.
        let index = u32::try_from(slot).unwrap_or(u32::MAX);
        // First: no uncharge is missed by a trigger that is set.
        let is_falling = trigger.direction == Direction::Falling && !trigger.is_disabled();
        let falling = self.falling & !(1 << slot) | u64::from(is_falling) << slot;
        if falling != self.falling {
            self.falling = falling;
            self.slots_falling.set(0, falling, 0).map_err(os_error)?;
        }
        self.triggers.set(index, record, 0).map_err(os_error)?;
        let armings: u64 = self.generations.iter().sum();
        self.generation_count.set(0, armings, 0).map_err(os_error)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.events.as_fd())
    }

    fn next_crossing(&mut self) -> Option<TriggerEvent> {
        loop {
            let event: TriggerEvent = next_record(&mut self.events)?;
            let slot = event.slot as usize;
            let handed_on = self.handed_on.get_mut(slot);
            if self.generations.get(slot) != Some(&event.generation) {
                continue;
            }
            // Two CPUs that crossed at once have written two.
            if let Some(last) = handed_on.filter(|last| **last != event.generation) {
                *last = event.generation;
                return Some(event);
            }
        }
    }

    fn take_local_wakeups(&mut self) -> Option<LocalWakeups> {
        self.wakeups.take()
    }

    fn set_victims(&mut self, scope: usize, victims: &[KernelVictim]) -> io::Result<()> {
        let before = self.ranked.get(scope).copied().unwrap_or_default();
        let set = self.replace_victims(scope, victims);
        if set.is_err() {
            // One that nothing remembers could never be taken out again.
            for victim in before.iter().chain(victims) {
                let _ = self.victims.remove(&victim_key(scope, victim));
            }
            if let Some(ranked) = self.ranked.get_mut(scope) {
                *ranked = Default::default();
            }
        }
        set
    }

    fn next_kernel_kill(&mut self) -> Option<KernelKill> {
        self.killed.take()
    }

    fn renew_lease(&mut self, lease_ns: u64) {
        let Some(expires_after) = self.expires_after else {
            return;
        };
        let lasts = nanos(expires_after);
        let expires_ns = lease_ns.saturating_add(lasts);
        // Reclaims that fail are the better proof later, where the programs see them.
        let trusted_ns = match self.unseen.as_slice() {
            [] => lease_ns.saturating_add(lasts / TRUSTED_SHARE),
            _ => expires_ns,
        };
        let guard = AgentLease {
            layout: LAYOUT,
            lease_ns,
            trusted_ns,
            expires_ns,
        };
        // A lease that is not renewed makes the programs act: nothing else is lost.
        let _ = self.guard.set(0, guard, 0);
    }

    fn why_not_pinned(&self) -> Option<String> {
        matches!(self.attached.link, Link::Kprobe(None)).then(|| KPROBES_BEFORE.to_owned())
    }

    fn unseen_without_agent(&self) -> &[String] {
        &self.unseen
    }

    fn pin(&mut self, pins: &PinDirectory, expires_after: Duration) -> Result<(), String> {
        self.killed.pin(pins)?;
        let pinned = match &mut self.attached.link {
            Link::Fixed(link) => pins.pin(link.as_fd(), LINK),
            Link::Switched(switch) => switch.set(true).and_then(|_| match &switch.link {
                Some(link) => pins.pin(link.as_fd(), LINK),
                None => Err(io::ErrorKind::NotFound.into()),
            }),
            Link::Kprobe(link) => {
                let taken = link.take().ok_or(KPROBES_BEFORE)?;
                // Refused, the program is detached: there is no way back from aya's error.
                self.attached.link = Link::Lost;
                let pinned = taken.pin(pins.path_for(LINK)).map_err(|e| chain(&e))?;
                self.attached.link = Link::Kprobe(Some(pinned.into()));
                Ok(())
            }
            Link::Lost => Err(io::Error::from_raw_os_error(libc::ENOTCONN)),
        };
        pinned.map_err(|e| format!("bpf(BPF_OBJ_PIN): {e}"))?;
        // The pins keep them attached.
        for (name, program, fd) in self.reclaims.drain(..) {
            let pinned = attach(fd.as_fd()).and_then(|link| pins.pin(link.as_fd(), name));
            if let Err(error) = pinned {
                tracing::info!(program, %error, "the pinned guard will not see this event while no agent runs");
                self.unseen.push(format!("{program}: {error}"));
            }
        }
        self.expires_after = Some(expires_after);
        Ok(())
    }

    fn set_near(&mut self, near: bool) -> io::Result<bool> {
        match &mut self.attached.link {
            Link::Switched(switch) => switch.set(near || self.expires_after.is_some()),
            Link::Fixed(_) | Link::Kprobe(_) => Ok(false),
            Link::Lost => Err(io::Error::from_raw_os_error(libc::ENOTCONN)),
        }
    }

    fn is_attached(&self) -> bool {
        match &self.attached.link {
            Link::Switched(switch) => switch.link.is_some(),
            Link::Fixed(_) | Link::Kprobe(_) => true,
            Link::Lost => false,
        }
    }
}
