//! One watched scope: its pressure, its pace and its triggers.

mod arming;
mod kernel_victims;
mod machine_estimate;

use std::io;

use evictd_engine::{
    accounting::MemorySample, flush_deadline::FlushDeadline, growth::Headroom,
    model::settings::MemoryHook, pace::Pace, shortage::Shortage, units::SECOND,
};
use evictd_node::{
    cgroup::memory::Version,
    memory_scope::Scope,
    trigger::memory::{ANY_SLOT, TriggerEvent},
};
use evictd_sys::{clock::sleep_then_now, page::page_size};

pub(super) use self::kernel_victims::KernelVictims;
use self::{
    arming::ArmedTriggers, kernel_victims::PublishedVictims, machine_estimate::MachineEstimate,
};
use crate::{
    event::BlockedBy,
    spin::{SpinPolicy, Wait},
    stat_lag::StatLag,
};

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

impl Crossing {
    /// Whether a kill at `signalled`, in nanoseconds of CLOCK_MONOTONIC, is due to a later one.
    pub fn is_older_than(&self, signalled: u64) -> bool {
        signalled.saturating_sub(self.woken) > CROSSING_NS
    }
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

/// Bytes that a scope's victims held before it was read, and right after.
#[derive(Clone, Copy, Debug, Default)]
pub struct DyingAround {
    pub before: u64,
    pub after: u64,
}

/// Inputs of [`WatchedScope::sample`] in one cycle.
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

/// A scope that is watched: what was sampled, whether it is under pressure, and what was set in the kernel for it.
pub(super) struct WatchedScope {
    pub scope: Scope,
    index: usize,
    /// Whether the floor's trigger may be armed to kill; false in shadow mode.
    pub kernel_may_kill: bool,
    /// The sample that was taken last.
    pub sample: MemorySample,
    /// The threshold is met ([`MemoryThresholds::is_pressing`]).
    ///
    /// [`MemoryThresholds::is_pressing`]: evictd_engine::accounting::MemoryThresholds::is_pressing
    pub under_pressure: bool,
    /// What holds all pods back, as it was reported for this pressure.
    pub reported_block: Option<BlockedBy>,
    /// Until this time, in nanoseconds of CLOCK_MONOTONIC, all pods together cannot end the shortage, so that none goes
    /// which is not urgent.
    pub in_vain_until: u64,
    /// Its threshold has come into force since the last look: where it is met at the next one, that is reported.
    pub comes_into_force: bool,
    /// Pressed, with nothing to do until the recovery's trigger trips.
    pub idle: bool,
    /// The event that the scope cannot be read was sent.
    pub gone: bool,
    pub crossing: Crossing,
    pub published: PublishedVictims,
    armed: ArmedTriggers,
    spin: SpinPolicy,
    stat_lag: StatLag,
    /// Pace of evictions for the scope.
    pub pace: Pace,
    machine: MachineEstimate,
    /// Deadline of the next flush of the kernel's statistics.
    flush: FlushDeadline,
}

impl WatchedScope {
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
            under_pressure: false,
            reported_block: None,
            in_vain_until: 0,
            comes_into_force: true,
            idle: false,
            gone: false,
            crossing: Crossing::default(),
            published: PublishedVictims::default(),
            armed: ArmedTriggers::new(fastest_growth),
            spin: SpinPolicy::default(),
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
        // A crossing waits for no further file: the look that a write to it asks for has read the limit.
        if cycle.triggers.trip.is_none() && self.scope.follow_limit() {
            // As where another scope is handed over for it.
            self.spin.reset();
            self.comes_into_force |= !self.under_pressure;
        }
        let thresholds = self.scope.thresholds();
        let was_under_pressure = self.under_pressure;
        let resolves = self.pace.is_resolving(cycle.woken);
        let is_pressing =
            |available| thresholds.is_pressing(available, was_under_pressure, resolves);
        let is_short =
            |sample: &MemorySample, lag| is_pressing(sample.guarded_available.saturating_add(lag));
        if self.depends_on_statistics(cycle.woken, cycle.fastest_growth) {
            flush();
        }
        let was_short = self.sample.is_short_without_pcp_free(thresholds.threshold);
        self.scope.count_pcp_free(was_under_pressure || was_short);
        self.stat_lag.bound(thresholds.threshold);
        let (sample, lag) =
            self.stat_lag
                .sample(|| self.scope.sample(), is_short, flush, sleep_then_now)?;
        self.sample = sample;
        self.gone = false;
        self.under_pressure = is_pressing(self.sample.guarded_available);
        if self.scope.is_limited() {
            // What a process unmaps leaves the statistics first, and the counter when it is freed: a victim's memory is
            // no page cache.
            self.apply_machine_estimate(lag.saturating_sub(cycle.dying), was_under_pressure);
        }
        if self.under_pressure && !was_under_pressure {
            self.spin.reset();
        }
        let is_late = cycle.woken.saturating_sub(self.crossing.woken) >= CROSSING_NS;
        // A hook that cannot tell which trigger tripped tells nothing new of a pressure.
        let trip = cycle.triggers.trip.filter(|trip| trip.slot != ANY_SLOT);
        let has_crossed = !was_under_pressure || trip.is_some();
        if self.under_pressure && (has_crossed || is_late) {
            self.crossing = cycle.crossing();
        }
        self.armed.is_approach_set &= !cycle.triggers.approached;
        Ok(())
    }

    /// What of the lag is page cache, and what of kernel memory can be given back, as the machine's own counters tell.
    fn apply_machine_estimate(&mut self, lag: u64, was_under_pressure: bool) {
        let is_v1 = self.scope.cgroup().version() == Version::V1;
        if lag > 0 {
            let cache = self.machine.cache_in(lag);
            self.sample.count_lag_as_cache(cache);
        } else if !self.under_pressure {
            let threshold = self.scope.thresholds().threshold;
            let is_far = self.sample.guarded_available >= threshold.saturating_mul(2);
            let kernel = (is_v1 && is_far).then_some(self.sample.kernel);
            self.machine.set_baseline(kernel);
        } else if was_under_pressure {
            // The look that decides does not wait for it.
            self.machine.lower_baseline();
        }
        if is_v1 {
            let slab = self.machine.slab_in(self.sample.kernel);
            self.sample.count_slab_as_reclaimable(slab);
        }
    }

    /// Whether the counter alone does not tell that memory is short, and the fastest growth could have used up what the
    /// statistics said was left at the last flush: page cache that they still show may have become something else.
    fn depends_on_statistics(&mut self, now: u64, fastest_growth: u64) -> bool {
        let capacity = self.scope.capacity();
        self.scope.is_limited()
            && self
                .flush
                .is_due(now, &self.sample, capacity, fastest_growth)
    }

    /// The statistics were flushed at `now` without a sample.
    pub fn note_flush(&mut self, now: u64) {
        self.flush.was_flushed(now);
    }

    /// What is short, for the pace. `shadow` bytes count as given back already; victims hold `dying` bytes now.
    pub fn shortage(&self, shadow: u64, dying: u64, around: DyingAround) -> Shortage {
        let seen = self.sample.shortage;
        let used = seen.used.saturating_sub(shadow);
        // Given back since: it is in the sample no more than in what the victims still hold.
        let given = around.after.saturating_sub(dying);
        Shortage {
            available: seen.available.saturating_add(given),
            used,
            dying: dying.min(used),
            skew: dying.abs_diff(around.before),
            headroom: Headroom {
                immediate: seen
                    .headroom
                    .immediate
                    .saturating_add(shadow)
                    .saturating_add(given),
                ..seen.headroom
            },
            ..seen
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
        self.spin
            .observe(now, self.distance(), self.armed.spin_window)
    }

    /// The scope is another one: all that is known of it is forgotten.
    pub fn replace(&mut self, scope: &mut Scope) {
        self.resize(scope);
        self.armed.offset = None;
        self.stat_lag.forget();
        self.pace.reset();
        self.machine.forget();
        self.flush.forget();
    }

    /// The scope has another capacity. Its growth and the time since when its threshold is met are kept: a balloon may
    /// change the capacity at every look, and a pod that is due must not wait for the end of that.
    pub fn resize(&mut self, scope: &mut Scope) {
        std::mem::swap(&mut self.scope, scope);
        self.armed.forget_limits();
        self.gone = false;
        self.spin.reset();
    }
}

impl SampleContext<'_> {
    fn crossing(&self) -> Crossing {
        let (woken, triggers, hook) = (self.woken, self.triggers, self.hook);
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
