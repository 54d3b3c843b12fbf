//! One scope with what the loop knows of it: its pressure, and its triggers.

mod arming;
mod machine_share;

use std::io;

use evictd_engine::{
    growth::Room,
    model::settings::MemoryHook,
    pace::{Pace, Shortage},
};
use evictd_node::{
    cgroup::memory::Version,
    memory_scope::{Limits, MemorySample, Scope},
    sampling::FlushDeadline,
    trigger::memory::{KernelVictim, MAX_VICTIMS, TriggerEvent, page_size},
};
use evictd_sys::clock::sleep_then_now;

use crate::{
    spin::{SpinPolicy, Wait, spin_window},
    stat_lag::StatLag,
};
use machine_share::MachineShare;

/// Pods change places only by growing, and less than this is no reason to ask all of them again.
const NAMING_BYTES: u64 = 2 << 20;
/// A pod that has grown by less has not used up what was left, as far as the kernel is told.
const STEP_BYTES: u64 = 16 << 20;

/// What is known of the crossing that started the present pressure.
#[derive(Clone, Copy, Default)]
pub(super) struct PressureStart {
    pub crossed: u64,
    pub woken: u64,
    pub usage: u64,
    pub hook: Option<MemoryHook>,
}

impl PressureStart {
    fn new(woken: u64, triggers: &ScopeTriggers, hook: MemoryHook) -> Self {
        match triggers.trip {
            Some(trip) => Self {
                crossed: trip.time_ns,
                woken,
                usage: trip.usage * page_size(),
                hook: Some(hook),
            },
            None => Self {
                woken,
                // The trigger was set anew just before it would have tripped.
                hook: triggers.counter.map(|_| hook),
                ..Self::default()
            },
        }
    }
}

/// What the hook has told since the last turn about one scope.
#[derive(Clone, Copy, Default)]
pub(super) struct ScopeTriggers {
    /// The first crossing of the hard threshold's trigger or of the floor's.
    pub trip: Option<TriggerEvent>,
    /// What the counter read when the calibrating trigger tripped, in bytes.
    pub counter: Option<u64>,
    /// The threshold is close.
    pub approached: bool,
}

/// The pods that the kernel may kill from for one scope.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Victims {
    positions: [usize; MAX_VICTIMS as usize],
    named: [KernelVictim; MAX_VICTIMS as usize],
    count: usize,
}

impl Victims {
    /// Adds the next one in rank; those without room are left out.
    pub fn push(&mut self, position: usize, victim: KernelVictim) {
        if let (Some(at), Some(to)) = (
            self.positions.get_mut(self.count),
            self.named.get_mut(self.count),
        ) {
            (*at, *to) = (position, victim);
            self.count += 1;
        }
    }

    /// As the kernel is told, by rank.
    pub fn named(&self) -> &[KernelVictim] {
        self.named.get(..self.count).unwrap_or_default()
    }

    /// Their positions in the table that they were taken from, with the ids of their cgroups.
    pub fn iter(&self) -> impl Iterator<Item = (usize, u64)> {
        let ids = self.named.into_iter().map(|victim| victim.cgroup_id);
        self.positions.into_iter().zip(ids).take(self.count)
    }
}

/// A scope that is watched.
pub(super) struct ScopeMonitor {
    pub scope: Scope,
    index: usize,
    /// The last look.
    pub sample: MemorySample,
    /// The threshold is met: the scope is below `resolved` and has been below `threshold`.
    pub pressed: bool,
    /// It was reported that no candidate is left.
    pub no_candidates: bool,
    /// Pressed, and nothing is left to do until the recovery's trigger trips.
    pub idle: bool,
    /// It was said that the scope cannot be read.
    pub gone: bool,
    pub start: PressureStart,
    /// The pods that the kernel may kill from, by rank: positions in the table, and ids of their cgroups.
    pub victims: Victims,
    /// What was available when that was decided, in bytes.
    named_at: u64,
    armed_limit: u64,
    /// Where the floor's trigger lies; 0 before it was set.
    floor_limit: u64,
    recovery_limit: Option<u64>,
    spin: SpinPolicy,
    /// Bytes before the threshold at which its trigger lies.
    spin_window: u64,
    /// That trigger has not tripped since it was set.
    spin_armed: bool,
    /// What the counter reads above the usage, in bytes; `None` while that is not known.
    offset: Option<i64>,
    stat_lag: StatLag,
    /// When pods may go for it.
    pub pace: Pace,
    machine: MachineShare,
    /// When the kernel is made to flush its statistics.
    flush: FlushDeadline,
}

impl ScopeMonitor {
    /// `growth` is the fastest that the machine can make, in bytes per second, on so many CPUs.
    pub fn new(scope: Scope, index: usize, growth: u64, cpus: u64) -> Self {
        let stat_lag = StatLag::new(cpus, scope.cgroup().counts_kernel_memory());
        Self {
            scope,
            index,
            sample: MemorySample::default(),
            pressed: false,
            no_candidates: false,
            idle: false,
            gone: false,
            start: PressureStart::default(),
            victims: Victims::default(),
            named_at: 0,
            armed_limit: 0,
            floor_limit: 0,
            recovery_limit: None,
            spin: SpinPolicy::default(),
            spin_window: spin_window(growth),
            spin_armed: false,
            offset: None,
            stat_lag,
            pace: Pace::default(),
            machine: MachineShare::open(),
            flush: FlushDeadline::default(),
        }
    }

    /// A fresh look; whether the threshold is met follows from it. `add_up` makes the kernel's statistics of the pods
    /// fresh, where they lag; `growth` is the fastest that the machine can make, in bytes per second; victims hold `dying` bytes.
    pub fn sample(
        &mut self,
        woken: u64,
        dying: u64,
        triggers: &ScopeTriggers,
        hook: MemoryHook,
        growth: u64,
        mut add_up: impl FnMut(),
    ) -> io::Result<()> {
        let limits = self.scope.limits();
        let was_pressed = self.pressed;
        let is_pressing = |available: u64| {
            available < limits.threshold || (was_pressed && available < limits.resolved)
        };
        let is_short =
            |look: &MemorySample, missing| is_pressing(look.available.saturating_add(missing));
        if self.depends_on_statistics(woken, growth) {
            add_up();
        }
        self.stat_lag.bound(limits.threshold);
        let (look, missing) =
            self.stat_lag
                .sample(|| self.scope.sample(), is_short, add_up, sleep_then_now)?;
        self.sample = look;
        self.gone = false;
        self.pressed = is_pressing(self.sample.available);
        if self.scope.is_limited() {
            // What a process unmaps leaves the statistics first, and the counter when it is freed: a victim's is no page cache.
            self.apply_machine_share(missing.saturating_sub(dying));
        }
        if self.pressed && !was_pressed {
            self.start = PressureStart::new(woken, triggers, hook);
            self.spin.reset();
        }
        self.spin_armed &= !triggers.approached;
        Ok(())
    }

    /// What the machine's counters tell of what is charged and is not in the cgroup's statistics.
    fn apply_machine_share(&mut self, missing: u64) {
        let is_v1 = self.scope.cgroup().version() == Version::V1;
        if missing > 0 {
            let cache = self.machine.cache_in(missing);
            self.sample.count_unlisted_as_cache(cache);
        } else if !self.pressed {
            let threshold = self.scope.limits().threshold;
            let is_far = self.sample.available >= threshold.saturating_mul(2);
            let kernel = (is_v1 && is_far).then_some(self.sample.kernel);
            self.machine.settle(kernel);
        }
        if is_v1 {
            let slab = self.machine.slab_in(self.sample.kernel);
            self.sample.count_slab_as_reclaimable(slab);
        }
    }

    /// Whether the counter alone does not tell what is short, and the fastest growth could have used up since the last time
    /// what the statistics said was left: page cache that they still show may have become something else.
    fn depends_on_statistics(&mut self, now: u64, growth: u64) -> bool {
        let Shortage {
            threshold, room, ..
        } = self.sample.shortage;
        if !self.scope.is_limited() {
            return false;
        }
        let free = self.scope.capacity().saturating_sub(self.sample.usage);
        let left = room.at_once.saturating_sub(threshold);
        self.flush.is_due(now, free, threshold, left, growth)
    }

    /// The statistics were flushed at `now` without a look.
    pub fn note_flush(&mut self, now: u64) {
        self.flush.was_flushed(now);
    }

    /// What is short as the pace is decided by it; `shadow` bytes are taken for given back already, `dying` bytes are victims',
    /// who had `dying_before` when the look began.
    pub fn shortage(&self, shadow: u64, dying: u64, dying_before: u64) -> Shortage {
        let seen = self.sample.shortage;
        let used = seen.used.saturating_sub(shadow);
        Shortage {
            used,
            dying: dying.min(used),
            skew: dying.abs_diff(dying_before),
            room: Room {
                at_once: seen.room.at_once.saturating_add(shadow),
                ..seen.room
            },
            ..seen
        }
    }

    /// Whether the scope has moved since the floor victims were published: by a sixteenth of what is left, for far
    /// from the floor an older answer does no harm.
    pub fn has_moved(&self) -> bool {
        self.sample.available.abs_diff(self.named_at) >= (self.distance() / 16).max(NAMING_BYTES)
    }

    /// The kernel has been told.
    pub fn note_victims_published(&mut self) {
        self.named_at = self.sample.available;
    }

    /// The pod of this cgroup, which `held` so many bytes at the last look, as the kernel may kill from it: a task must hold enough
    /// to have used up all that was left then, whatever page cache there is later, and cannot hold more than there was. In
    /// steps by which memory may move without being a growth; later ranks may use up to half of the threshold as well.
    pub fn kernel_victim(&self, cgroup_id: u64, rank: usize, held: u64) -> KernelVictim {
        let Limits {
            threshold, floor, ..
        } = self.scope.limits();
        let room = self.sample.shortage.room.total();
        let left = room.saturating_sub(threshold.max(floor.unwrap_or(0)));
        let step = self.step();
        let in_steps = |bytes: u64| {
            let steps = held.saturating_add(bytes).div_ceil(step);
            steps.saturating_add(1).saturating_mul(step)
        };
        let deeper = threshold / (2 * u64::from(MAX_VICTIMS)) * rank as u64;
        KernelVictim {
            cgroup_id,
            enough: in_steps(left).saturating_add(deeper),
            most: in_steps(room),
        }
    }

    /// By so many bytes memory may move without being a growth.
    pub fn step(&self) -> u64 {
        (self.scope.limits().threshold / 16).clamp(1, STEP_BYTES)
    }

    /// Bytes that may still be used before the threshold is met.
    pub fn distance(&self) -> u64 {
        let threshold = self.scope.limits().threshold;
        self.sample.available.saturating_sub(threshold)
    }

    /// How to wait, if the threshold is about to be crossed.
    pub fn wait(&mut self, now: u64) -> Option<Wait> {
        self.spin.observe(now, self.distance(), self.spin_window)
    }

    /// The scope is another one: nothing that was known is true any more.
    pub fn replace(&mut self, scope: &mut Scope) {
        self.resize(scope);
        self.offset = None;
        self.stat_lag.forget();
        self.pace.reset();
        self.machine.forget();
        self.flush.forget();
    }

    /// The scope has another capacity: what grows in it, and since when its threshold is met, is as true as before. Memory may come
    /// and go with every look (a balloon), and a pod that is due must not wait for the end of that.
    pub fn resize(&mut self, scope: &mut Scope) {
        std::mem::swap(&mut self.scope, scope);
        (self.armed_limit, self.floor_limit, self.recovery_limit) = (0, 0, None);
        self.gone = false;
        self.spin.reset();
    }
}
