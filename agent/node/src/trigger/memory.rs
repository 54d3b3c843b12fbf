//! Triggers on memory: one interface for every hook of the order of preference.

mod bpf;
mod cgroup_v1;
mod kernel_kills;
mod notifier;
mod self_test;

use std::{io, os::fd::BorrowedFd, time::Duration};

use evictd_common::memory::{MemoryTrigger, NEVER};
use evictd_engine::{accounting::KillLimits, model::settings::MemoryHook};
use evictd_sys::page::page_size;

use crate::{
    bpf::{
        object::{BpfObject, ObjectError},
        perf_wakeup::LocalWakeups,
        pin::PinDirectory,
    },
    cgroup::memory::MemoryCgroup,
    trigger::{
        hook::{self, HookUnavailable, SelectedHook},
        memory::{
            bpf::{Attached, BpfTriggers},
            cgroup_v1::CgroupV1Triggers,
        },
    },
};

pub use self::kernel_kills::{KernelKill, inherit as inherit_kills};
pub use evictd_common::memory::{
    Action, CHARGE_BATCH, Direction, MAX_SCOPES, MAX_TRIGGERS, MAX_VICTIMS, SLOTS_PER_SCOPE,
    TriggerEvent, batch_bytes, is_unlimited, slot,
};

/// Limit that a trigger watches, with the direction and the action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trigger {
    /// Usage of the scope's memory counter, in bytes.
    pub limit: u64,
    /// Direction in which the limit is crossed.
    pub direction: Direction,
    /// Action at a crossing.
    pub action: Action,
    /// Limit of the hard threshold as if no page cache counted as available, in bytes; 0 for other triggers. Past it,
    /// and without an agent, the kernel kills the allocating task that holds [`KillLimits::min_task_bytes`].
    pub full: u64,
}

impl Trigger {
    /// A trigger that nothing crosses.
    pub const DISABLED: Self = Self {
        limit: u64::MAX,
        direction: Direction::Rising,
        action: Action::Wake,
        full: 0,
    };

    /// Whether it is one that nothing crosses.
    pub fn is_disabled(&self) -> bool {
        self.limit == u64::MAX
    }

    /// Pages are rounded so that the trigger is never crossed before its limit in bytes is.
    pub(super) fn record(&self, cgroup_id: u64, generation: u64) -> MemoryTrigger {
        let page = page_size();
        MemoryTrigger {
            cgroup_id,
            limit: match self.direction {
                _ if self.is_disabled() => NEVER,
                Direction::Rising => self.limit.div_ceil(page),
                Direction::Falling => self.limit / page,
            },
            generation,
            direction: self.direction as u32,
            full: self.full.div_ceil(page),
            action: self.action as u32,
        }
    }
}

/// A pod whose tasks the kernel may kill.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelVictim {
    /// Id of its cgroup.
    pub cgroup_id: u64,
    /// When the kernel may kill one of its tasks.
    pub limits: KillLimits,
}

/// Slot number in a [`TriggerEvent`] of a hook that cannot tell which of its triggers was crossed.
pub const ANY_SLOT: u32 = u32::MAX;

/// The number of a scope's slot ([`slot`]) among all of them.
pub fn slot_of(scope: usize, slot: u32) -> usize {
    scope * SLOTS_PER_SCOPE as usize + slot as usize
}

/// One attached hook with its triggers on up to [`MAX_SCOPES`] scopes. Allocates nothing after it was built, except in
/// [`watch`](Self::watch): the fast path calls it between wake-up and SIGKILL.
pub trait TriggerSet: Send {
    /// Kind of the attached hook.
    fn hook(&self) -> MemoryHook;

    /// From now on the slots of this scope (below [`MAX_SCOPES`]) are about another cgroup; they are to be armed anew.
    ///
    /// # Errors
    /// A map that the kernel refuses to read or write, or a hook that it refuses; so for all that follow.
    fn watch(&mut self, _scope: usize, _cgroup: &MemoryCgroup) -> io::Result<()> {
        Ok(())
    }

    /// Sets the trigger of a slot below [`MAX_TRIGGERS`], see [`slot_of`]; it trips once, until it is armed again. A
    /// usage that has crossed the limit already may or may not trip it: read the usage after arming. Slots behind one
    /// that was never armed are not looked at.
    fn arm(&mut self, _slot: usize, _trigger: Trigger) -> io::Result<()> {
        Ok(())
    }

    /// Becomes readable at a crossing; `None` for the sampler.
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// The next crossing that was reported, oldest first; `None` when there is no more. Crossings of triggers that
    /// have been armed anew in the meantime are left out.
    fn next_crossing(&mut self) -> Option<TriggerEvent> {
        None
    }

    /// Hands over, once, what an [`Action::WakeLocal`] that no thread has read wakes when a CPU charges; `None` for hooks
    /// that cannot tell where that is.
    fn take_local_wakeups(&mut self) -> Option<LocalWakeups> {
        None
    }

    /// Names the pods whose tasks the kernel may kill for a scope, by rank, at most [`MAX_VICTIMS`]: the first one past
    /// the floor, the others when no agent is there. Hooks without a kernel program ignore it.
    fn set_victims(&mut self, _scope: usize, _victims: &[KernelVictim]) -> io::Result<()> {
        Ok(())
    }

    /// The next pod from which the kernel has killed by itself since the agent took note of one; `None` when there is
    /// no more.
    fn next_kernel_kill(&mut self) -> Option<KernelKill> {
        None
    }

    /// The agent lives, and will say so again before `lease_ns` (nanoseconds of CLOCK_MONOTONIC).
    fn renew_lease(&mut self, _lease_ns: u64) {}

    /// Why what is attached cannot be pinned; `None` if it can, as far as that is known beforehand.
    fn why_not_pinned(&self) -> Option<String> {
        Some(format!("the hook {} has no kernel program", self.hook()))
    }

    /// Descriptions of what the programs will not see without an agent, each with the kernel's reason.
    fn unseen_without_agent(&self) -> &[String] {
        &[]
    }

    /// Pins what is attached, so that the kernel goes on with the last victims when the agent is stopped or gone, for
    /// so long. From now on the hook stays attached.
    ///
    /// # Errors
    /// Why this hook cannot: it has no kernel program, or the kernel refuses.
    fn pin(&mut self, _pins: &PinDirectory, _expires_after: Duration) -> Result<(), String> {
        Err(format!("the hook {} has no kernel program", self.hook()))
    }

    /// Tells how close the usage is. The per-page hook is attached only while it is near; `Ok(true)` when that
    /// attached or detached something just now.
    fn set_near(&mut self, _near: bool) -> io::Result<bool> {
        Ok(false)
    }

    /// Whether a crossing would be seen now; while not, the caller has to look as often as with a sampler.
    fn is_attached(&self) -> bool {
        true
    }

    /// Whether a kernel program compares: only that can act by itself past a floor, and knows the counter.
    fn has_program(&self) -> bool {
        self.hook().has_program()
    }
}

/// No hook: the caller has to look.
struct Sampler;

impl TriggerSet for Sampler {
    fn hook(&self) -> MemoryHook {
        MemoryHook::Sampler
    }

    fn is_attached(&self) -> bool {
        false
    }
}

/// Result of [`build`].
pub struct Built {
    /// The hook with its triggers, for the fast path thread.
    pub trigger: Box<dyn TriggerSet>,
    /// Hook in use, and why the better ones are not.
    pub selected_hook: SelectedHook,
}

/// The loaded eBPF object, and what was built with it.
pub type Loaded = (
    Result<BpfObject, ObjectError>,
    Result<Built, HookUnavailable>,
);

/// [`build`] with the eBPF object, or with the reason why there is none. The programs stay attached for as long as the
/// object lives.
pub fn load(
    mut object: Result<BpfObject, ObjectError>,
    scopes: &[&MemoryCgroup],
    forced: Option<MemoryHook>,
) -> Loaded {
    let refusal = object.as_ref().err().map(ToString::to_string);
    let loaded = object.as_mut();
    let loaded = loaded.map_err(|_| refusal.as_deref().unwrap_or_default());
    let built = build(scopes, loaded, forced);
    (object, built)
}

/// Probes the hooks from the best down (only `forced`, when given), decides, and builds the trigger of up to
/// [`MAX_SCOPES`] scopes. `object` is the loaded eBPF object, or the reason why there is none.
///
/// # Errors
/// The forced hook is refused.
pub fn build(
    scopes: &[&MemoryCgroup],
    object: Result<&mut BpfObject, &str>,
    forced: Option<MemoryHook>,
) -> Result<Built, HookUnavailable> {
    let (mut object, mut with_program) = (object, None);
    let (selected_hook, trigger) = hook::probe(forced, |hook| match (hook, &mut object) {
        (MemoryHook::Sampler, _) => Ok(Box::new(Sampler) as Box<dyn TriggerSet>),
        (MemoryHook::Eventfd, _) => CgroupV1Triggers::new(scopes).map(|e| Box::new(e) as _),
        (_, Ok(object)) => attach(hook, scopes, object, &mut with_program),
        (_, Err(reason)) => Err((*reason).to_owned()),
    })?;
    Ok(Built {
        trigger,
        selected_hook,
    })
}

/// Attaches the program of a hook and has it tested. What fails the test stays in `refused` for the next hook, with the
/// maps.
fn attach(
    hook: MemoryHook,
    scopes: &[&MemoryCgroup],
    object: &mut BpfObject,
    refused: &mut Option<BpfTriggers>,
) -> Result<Box<dyn TriggerSet>, String> {
    let attached = Attached::new(hook, object)?;
    let mut trigger = match refused.take() {
        Some(mut trigger) => {
            trigger.set_hook(attached);
            trigger
        }
        None => BpfTriggers::new(attached, scopes, object)?,
    };
    match self_test::run(&mut trigger, scopes) {
        Ok(()) => Ok(Box::new(trigger)),
        Err(reason) => {
            // A kprobe of a kernel before 5.15 goes with the object.
            if let Some(program) = hook::program(hook) {
                object.detach(program.name);
            }
            *refused = Some(trigger);
            Err(reason)
        }
    }
}
