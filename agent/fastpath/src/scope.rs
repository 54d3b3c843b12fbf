//! One watched scope: its pressure, its pace and its triggers.

mod arming;
mod machine_estimate;

use std::io;

use evictd_engine::{
    accounting::MemorySample,
    flush_deadline::{FlushDeadline, FlushInputs},
    growth::Headroom,
    model::settings::MemoryHook,
    pace::Pace,
    shortage::Shortage,
    units::SECOND,
};
use evictd_node::{
    cgroup::memory::Version,
    memory_scope::Scope,
    trigger::memory::{ANY_SLOT, KernelVictim, MAX_VICTIMS, TriggerEvent},
};
use evictd_sys::{clock::sleep_then_now, page::page_size};

use crate::{
    spin::{SpinPolicy, Wait, spin_window},
    stat_lag::StatLag,
};
use machine_estimate::MachineEstimate;

/// Kernel victims are published anew only after memory has moved by this: pods change their rank by growing.
const REPUBLISH_BYTES: u64 = 2 << 20;

/// A decision that comes later than this after a crossing is not due to it, in nanoseconds.
const CROSSING_NS: u64 = SECOND;

/// What a decision is due to: the crossing that started the pressure, or a later look; 0 where something is not known.
#[derive(Clone, Copy, Default)]
pub(super) struct Crossing {
    /// Time at which the trigger tripped, in nanoseconds of CLOCK_MONOTONIC.
    pub crossed: u64,
    /// Time at which the thread was woken, in nanoseconds of CLOCK_MONOTONIC.
    pub woken: u64,
    /// Bytes that were charged when the trigger tripped.
    pub usage: u64,
    /// The hook that saw it; `None`: a sample found it.
    pub hook: Option<MemoryHook>,
}

/// The events of one scope's triggers since the last cycle.
#[derive(Clone, Copy, Default)]
pub(super) struct ScopeTriggers {
    /// The first crossing of the hard threshold's trigger or of the floor's.
    pub trip: Option<TriggerEvent>,
    /// The usage counter when the calibrating trigger tripped, in bytes.
    pub counter: Option<u64>,
    /// The threshold is close.
    pub approached: bool,
}

/// The pods that the kernel may kill from for one scope, by rank.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct KernelVictims {
    positions: [usize; MAX_VICTIMS as usize],
    published: [KernelVictim; MAX_VICTIMS as usize],
    count: usize,
}

impl KernelVictims {
    /// Adds the next one in rank, if there is room for it.
    pub fn push(&mut self, position: usize, victim: KernelVictim) {
        if let (Some(at), Some(to)) = (
            self.positions.get_mut(self.count),
            self.published.get_mut(self.count),
        ) {
            (*at, *to) = (position, victim);
            self.count += 1;
        }
    }

    /// Returns the victims as they are published to the kernel programs, by rank.
    pub fn published(&self) -> &[KernelVictim] {
        self.published.get(..self.count).unwrap_or_default()
    }

    /// Iterates over the victims: their positions in the table that they were taken from, with the ids of their
    /// cgroups.
    pub fn iter(&self) -> impl Iterator<Item = (usize, u64)> {
        let ids = self.published.into_iter().map(|victim| victim.cgroup_id);
        self.positions.into_iter().zip(ids).take(self.count)
    }
}

/// Inputs of [`ScopeMonitor::sample`] in one cycle.
#[derive(Clone, Copy)]
pub(super) struct SampleContext<'a> {
    /// Time at which the thread was woken, in nanoseconds of CLOCK_MONOTONIC.
    pub woken: u64,
    /// Bytes that victims hold at its beginning.
    pub dying: u64,
    pub triggers: &'a ScopeTriggers,
    pub hook: MemoryHook,
    /// The fastest growth that the machine can make, in bytes per second.
    pub fastest_growth: u64,
}

/// A scope that is watched.
pub(super) struct ScopeMonitor {
    pub scope: Scope,
    index: usize,
    /// Whether the floor's trigger may be armed to kill; false in shadow mode.
    pub kernel_may_kill: bool,
    /// The sample that was taken last.
    pub sample: MemorySample,
    /// The threshold is met ([`MemoryThresholds::is_pressing`]).
    ///
    /// [`MemoryThresholds::is_pressing`]: evictd_engine::accounting::MemoryThresholds::is_pressing
    pub pressed: bool,
    /// The event that no candidate is left was sent.
    pub no_candidates_reported: bool,
    /// Until this time, in nanoseconds of CLOCK_MONOTONIC, all pods together cannot end the shortage, so that none goes
    /// which is not urgent.
    pub in_vain_until: u64,
    /// Pressed, with nothing to do until the recovery's trigger trips.
    pub idle: bool,
    /// The event that the scope cannot be read was sent.
    pub gone: bool,
    pub crossing: Crossing,
    /// The pods that the kernel may kill from.
    pub victims: KernelVictims,
    /// Bytes that were available when the kernel victims were published last.
    available_when_published: u64,
    /// Position of the threshold's trigger, in bytes of the usage counter; 0 before it was set.
    armed_limit: u64,
    /// Position of the floor's trigger, in bytes of the usage counter; 0 before it was set.
    floor_limit: u64,
    recovery_limit: Option<u64>,
    spin: SpinPolicy,
    /// Bytes before the threshold at which its trigger lies.
    spin_window: u64,
    /// That trigger has not tripped since it was set.
    spin_armed: bool,
    /// The usage counter less the usage, in bytes; `None` while that is not known.
    offset: Option<i64>,
    stat_lag: StatLag,
    /// Pace of evictions for the scope.
    pub pace: Pace,
    machine: MachineEstimate,
    /// Deadline of the next flush of the kernel's statistics.
    flush: FlushDeadline,
}

impl ScopeMonitor {
    /// `fastest_growth`: of the machine, in bytes per second, on so many CPUs.
    pub fn new(
        scope: Scope,
        index: usize,
        fastest_growth: u64,
        cpus: u64,
        kernel_may_kill: bool,
    ) -> Self {
        let stat_lag = StatLag::new(cpus, scope.cgroup().counts_kernel_memory());
        Self {
            scope,
            index,
            kernel_may_kill,
            sample: MemorySample::default(),
            pressed: false,
            no_candidates_reported: false,
            in_vain_until: 0,
            idle: false,
            gone: false,
            crossing: Crossing::default(),
            victims: KernelVictims::default(),
            available_when_published: 0,
            armed_limit: 0,
            floor_limit: 0,
            recovery_limit: None,
            spin: SpinPolicy::default(),
            spin_window: spin_window(fastest_growth),
            spin_armed: false,
            offset: None,
            stat_lag,
            pace: Pace::default(),
            machine: MachineEstimate::open(),
            flush: FlushDeadline::default(),
        }
    }

    /// Samples the scope; whether the threshold is met follows from that. `flush` makes the kernel flush the statistics
    /// of the pods.
    ///
    /// # Errors
    /// A file of the scope cannot be read.
    pub fn sample(&mut self, cycle: &SampleContext<'_>, mut flush: impl FnMut()) -> io::Result<()> {
        let thresholds = self.scope.thresholds();
        let was_pressed = self.pressed;
        let resolves = self.pace.is_resolving(cycle.woken);
        let is_pressing = |available| thresholds.is_pressing(available, was_pressed, resolves);
        let is_short =
            |look: &MemorySample, lag| is_pressing(look.guarded_available.saturating_add(lag));
        if self.depends_on_statistics(cycle.woken, cycle.fastest_growth) {
            flush();
        }
        let was_short = self.sample.is_short_without_pcp_free(thresholds.threshold);
        self.scope.count_pcp_free(was_pressed || was_short);
        self.stat_lag.bound(thresholds.threshold);
        let (look, lag) =
            self.stat_lag
                .sample(|| self.scope.sample(), is_short, flush, sleep_then_now)?;
        self.sample = look;
        self.gone = false;
        self.pressed = is_pressing(self.sample.guarded_available);
        if self.scope.is_limited() {
            // What a process unmaps leaves the statistics first, and the counter when it is freed: a victim's memory is
            // no page cache.
            self.apply_machine_estimate(lag.saturating_sub(cycle.dying));
        }
        if self.pressed && !was_pressed {
            self.spin.reset();
        }
        let is_late = cycle.woken.saturating_sub(self.crossing.woken) >= CROSSING_NS;
        // A hook that cannot tell which trigger tripped tells nothing new of a pressure.
        let trip = cycle.triggers.trip.filter(|trip| trip.slot != ANY_SLOT);
        let has_crossed = !was_pressed || trip.is_some();
        if self.pressed && (has_crossed || is_late) {
            self.crossing = cycle.crossing();
        }
        self.spin_armed &= !cycle.triggers.approached;
        Ok(())
    }

    /// What of the lag is page cache, and what of kernel memory can be given back, as the machine's own counters tell.
    fn apply_machine_estimate(&mut self, lag: u64) {
        let is_v1 = self.scope.cgroup().version() == Version::V1;
        if lag > 0 {
            let cache = self.machine.cache_in(lag);
            self.sample.count_lag_as_cache(cache);
        } else if !self.pressed {
            let threshold = self.scope.thresholds().threshold;
            let is_far = self.sample.guarded_available >= threshold.saturating_mul(2);
            let kernel = (is_v1 && is_far).then_some(self.sample.kernel);
            self.machine.set_baseline(kernel);
        }
        if is_v1 {
            let slab = self.machine.slab_in(self.sample.kernel);
            self.sample.count_slab_as_reclaimable(slab);
        }
    }

    /// Whether the counter alone does not tell that memory is short, and the fastest growth could have used up what the
    /// statistics said was left at the last flush: page cache that they still show may have become something else.
    fn depends_on_statistics(&mut self, now: u64, fastest_growth: u64) -> bool {
        let Shortage {
            threshold,
            headroom: room,
            ..
        } = self.sample.shortage;
        if !self.scope.is_limited() {
            return false;
        }
        let free = self.scope.capacity().saturating_sub(self.sample.usage);
        let inputs = FlushInputs {
            free,
            threshold,
            left: room.immediate.saturating_sub(threshold),
            growth: fastest_growth,
        };
        self.flush.is_due(now, inputs)
    }

    /// The statistics were flushed at `now` without a sample.
    pub fn note_flush(&mut self, now: u64) {
        self.flush.was_flushed(now);
    }

    /// What is short, for the pace. `shadow` bytes count as given back already; victims hold `dying` bytes, and held
    /// `dying_before` when the look began.
    pub fn shortage(&self, shadow: u64, dying: u64, dying_before: u64) -> Shortage {
        let seen = self.sample.shortage;
        let used = seen.used.saturating_sub(shadow);
        Shortage {
            used,
            dying: dying.min(used),
            skew: dying.abs_diff(dying_before),
            headroom: Headroom {
                immediate: seen.headroom.immediate.saturating_add(shadow),
                ..seen.headroom
            },
            ..seen
        }
    }

    /// Whether memory has moved since the kernel victims were published: by a sixteenth of what is left, as far from the floor an older
    /// choice does no harm.
    pub fn has_moved(&self) -> bool {
        let moved = self
            .sample
            .guarded_available
            .abs_diff(self.available_when_published);
        moved >= (self.distance() / 16).max(REPUBLISH_BYTES)
    }

    /// The kernel victims are published.
    pub fn note_victims_published(&mut self) {
        self.available_when_published = self.sample.guarded_available;
    }

    /// The limits for a kernel kill in this pod, which held `held` bytes without page cache at the last sample.
    pub fn kernel_victim(&self, cgroup_id: u64, rank: usize, held: u64) -> KernelVictim {
        let room = self.sample.shortage.headroom.total();
        let deeper = (rank as u64, u64::from(MAX_VICTIMS));
        let limits = self.scope.thresholds().kill_limits(held, room, deeper);
        KernelVictim {
            cgroup_id,
            min_task_bytes: limits.enough,
            max_task_bytes: limits.most,
            min_pod_bytes: limits.grown,
        }
    }

    /// Bytes by which memory may move without being a growth.
    pub fn step(&self) -> u64 {
        self.scope.thresholds().step()
    }

    /// Bytes that may still be used before the threshold is met.
    pub fn distance(&self) -> u64 {
        let threshold = self.scope.thresholds().threshold;
        self.sample.guarded_available.saturating_sub(threshold)
    }

    /// Chooses how to wait, if the threshold is about to be crossed.
    pub fn wait(&mut self, now: u64) -> Option<Wait> {
        self.spin.observe(now, self.distance(), self.spin_window)
    }

    /// The scope is another one: all that is known of it is forgotten.
    pub fn replace(&mut self, scope: &mut Scope) {
        self.resize(scope);
        self.offset = None;
        self.stat_lag.forget();
        self.pace.reset();
        self.machine.forget();
        self.flush.forget();
    }

    /// The scope has another capacity. Its growth and the time since when its threshold is met are kept: a balloon may
    /// change the capacity at every look, and a pod that is due must not wait for the end of that.
    pub fn resize(&mut self, scope: &mut Scope) {
        std::mem::swap(&mut self.scope, scope);
        (self.armed_limit, self.floor_limit, self.recovery_limit) = (0, 0, None);
        self.gone = false;
        self.spin.reset();
    }
}

impl SampleContext<'_> {
    fn crossing(&self) -> Crossing {
        let Self {
            woken,
            triggers,
            hook,
            ..
        } = *self;
        match triggers.trip {
            Some(trip) => Crossing {
                crossed: trip.time_ns,
                woken,
                usage: trip.usage * page_size(),
                hook: Some(hook),
            },
            None => Crossing {
                woken,
                // The trigger was set anew just before it would have tripped.
                hook: triggers.counter.map(|_| hook),
                ..Crossing::default()
            },
        }
    }
}
