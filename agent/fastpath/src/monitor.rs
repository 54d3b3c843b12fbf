//! One cycle of the loop: sample, decide, kill. `shared_monitor.rs` waits between two of them.

mod evict;
mod kernel_victims;
mod pod_readings;
mod schedule;
mod triggers;
mod updates;

use std::{io, sync::Arc, time::Duration};

use evictd_engine::{
    limiter::{EvictionKind, EvictionLimiter, ShadowChooser},
    model::settings::{Mode, RankingStrategy},
    pace::GAP_NS,
    permit::LastResort,
    units::{MS, SECOND, nanos},
};
use evictd_node::{
    cgroup::limit_writes::LimitWrites,
    memory_scope::Scope,
    pods::table::PodTable,
    proc::machine::{fastest_growth, online_cpus},
    trigger::memory::{MAX_SCOPES, TriggerSet},
};
use evictd_sys::{
    clock::{WorkMark, monotonic_ns},
    fs::errno,
};

use crate::{
    FastPathControl, FastPathEvent, FastPathEventQueue, FastPathStatus,
    in_flight::{InFlight, RestoredVictim, VictimEvent},
    monitor::{pod_readings::PodReadings, triggers::TriggerReader},
    scope::{DyingAround, SampleContext, ScopeTriggers, WatchedScope},
    spin::Wait,
};

/// Calm for so long, a pressure is over. A counter that has just reached a threshold goes back by itself when a CPU
/// returns what it had charged in advance (`drain_stock`), and comes again.
const OVER_AFTER_NS: u64 = SECOND;

/// A cycle that comes later than it should by this is no sign of a stopped agent, in nanoseconds.
const LATE_NS: u64 = 50 * MS;
/// A look and what follows from it keep the thread's CPU no longer than this.
const MAX_WORK: Duration = Duration::from_millis(200);

/// The state of the loop.
pub(super) struct MemoryMonitor {
    // From [`FastPathSetup`], up to `status`.
    pub(super) is_pinned: bool,
    pub(super) shadow: bool,
    pub(super) mode: Mode,
    pub(super) strategy: RankingStrategy,
    pub(super) limiter: Arc<EvictionLimiter>,
    pub(super) control: Arc<FastPathControl>,
    pub(super) events: Arc<FastPathEventQueue>,
    pub(super) status: Arc<FastPathStatus>,
    /// The scopes; never more than [`MAX_SCOPES`].
    pub(super) scopes: Vec<WatchedScope>,
    /// Victims of all scopes: what a victim gives back, each scope that counts it gets.
    pub(super) in_flight: InFlight,
    /// The fastest growth that the machine can make, in bytes per second.
    pub(super) fastest_growth: u64,
    pub(super) cpus: u64,
    pub(super) pods: PodReadings,
    pub(super) triggers: TriggerReader,
    pub(super) limit_writes: Arc<LimitWrites>,
    pub(super) evictions: u64,
    met_in_force: u64,
    /// Time at which the kernel victims were published last; 0: they have to be.
    pub(super) published_at: u64,
    /// Time since which no threshold is met; `None` while one is.
    calm_since: Option<u64>,
    /// Time by which the next cycle should begin, in nanoseconds; 0 where none is planned.
    due: u64,
    /// Cycles of the loop so far.
    pub(super) cycles: u64,
    /// The standby thread has run a cycle in place of the fast path, which has run none since.
    is_late: bool,
}

impl MemoryMonitor {
    pub(super) fn new(setup: FastPathSetup) -> Self {
        let FastPathSetup {
            scopes: given,
            trigger,
            table,
            restored,
            last_eviction,
            is_pinned,
            shadow,
            mode,
            strategy,
            limiter,
            control,
            events,
            status,
        } = setup;
        let mut scopes = Vec::with_capacity(MAX_SCOPES as usize);
        let fastest_growth = fastest_growth();
        let cpus = online_cpus();
        scopes.extend(
            given.into_iter().enumerate().map(|(index, scope)| {
                WatchedScope::new(scope, index, fastest_growth, cpus, !shadow)
            }),
        );
        if let Some(last) = last_eviction {
            scopes
                .iter_mut()
                .for_each(|watched| watched.pace.evicted(last));
        }
        let scope_of = |signal| scopes.iter().position(|w| w.scope.signal() == signal);
        Self {
            is_pinned,
            shadow,
            mode,
            strategy,
            limiter,
            control,
            events,
            status,
            in_flight: InFlight::new(&restored, scope_of, monotonic_ns()),
            scopes,
            fastest_growth,
            cpus,
            pods: PodReadings::new(table, cpus),
            triggers: TriggerReader::new(trigger),
            limit_writes: Arc::new(LimitWrites::open()),
            evictions: 0,
            met_in_force: 0,
            published_at: 0,
            calm_since: None,
            due: 0,
            cycles: 0,
            is_late: false,
        }
    }

    /// Arms the triggers for the first time.
    pub(super) fn arm_scopes(&mut self) -> io::Result<()> {
        for watched in &mut self.scopes {
            self.limit_writes.watch(watched.scope.cgroup());
            watched.arm_all(&mut *self.triggers.set)?;
        }
        Ok(())
    }

    /// Sends the event that the threshold of a scope is met although it has just come into force.
    fn report_met_in_force(&mut self, index: usize) {
        let Some(watched) = self.scopes.get_mut(index) else {
            return;
        };
        if !std::mem::take(&mut watched.comes_into_force) {
            return;
        }
        let (available, threshold) = (
            watched.sample.guarded_available,
            watched.scope.thresholds().threshold,
        );
        if available < threshold {
            self.met_in_force += 1;
            self.events.send(FastPathEvent::MetInForce {
                signal: watched.scope.signal(),
                available,
                threshold,
                number: self.met_in_force,
                shadow: self.shadow,
            });
        }
    }

    /// One cycle of the loop; how to wait for the next one.
    pub(super) fn run_once(&mut self, woken: u64) -> Wait {
        self.is_late = false;
        self.status.heartbeat(woken);
        // A decision comes first; what is new in the control block can wait for the next cycle.
        if !self.triggers.drain() {
            self.apply_updates();
        }
        self.cycle(woken);
        let interval = self.sample_interval();
        let wait = self.wait(woken, interval);
        self.expect_next_cycle(wait.longest(woken));
        wait
    }

    /// The next cycle comes within so many nanoseconds: until then the pinned guard has nothing to do.
    fn expect_next_cycle(&mut self, within: u64) {
        let now = monotonic_ns();
        self.due = now.saturating_add(within);
        let lease = now.saturating_add(within * 2 + LATE_NS);
        self.triggers.set.renew_lease(lease);
    }

    /// The part of a cycle that cannot wait, for a fast path that is late: if a threshold's trigger has tripped, and
    /// from then on until the fast path comes. Whether there was something to do. Other events of triggers wait for it.
    pub(super) fn take_over(&mut self, woken: u64) -> bool {
        if self.triggers.drain() {
            self.status.note_take_over();
            self.is_late = true;
        }
        if self.is_late {
            self.cycle(woken);
            match self.next_take_over() {
                // It decides in place of the fast path, and the pinned guard has no other rule beside it.
                Some(next) => self.expect_next_cycle(nanos(next)),
                None => self.due = 0,
            }
        }
        self.is_late
    }

    /// Whether a threshold is met, by the usage counter: without a kernel program no event tells of that.
    pub(super) fn sees_a_crossing(&self) -> bool {
        let trigger = &*self.triggers.set;
        !trigger.has_program() && self.scopes.iter().any(WatchedScope::is_crossed)
    }

    /// Makes a decision without effect, so that the real one a moment later finds code and data in the caches, and
    /// flushed statistics.
    pub(super) fn warm_up(&mut self) {
        self.flush_statistics(monotonic_ns());
        self.load_candidates(EvictionKind::Urgent, LastResort::None);
        self.pods.first_in_order(self.rules());
    }

    /// Reads one pod while the loop spins, or flushes if the last flush is too old for the next look.
    pub(super) fn refresh_next(&mut self, now: u64) {
        match self.pods.is_flush_due(now) {
            true => self.flush_statistics(now),
            false => self.pods.read_next(now),
        }
    }

    fn flush_statistics(&mut self, now: u64) {
        self.pods.flush_statistics(now);
        let scopes = self.scopes.iter_mut();
        scopes.for_each(|watched| watched.note_flush(now));
    }

    /// Samples every scope, the one first whose trigger has tripped, and evicts pods where that is due.
    fn cycle(&mut self, woken: u64) {
        self.cycles += 1;
        if self.due > 0 {
            self.note_gap(woken.saturating_sub(self.due), woken);
        }
        let taken = self.triggers.take();
        let first = taken.tripped.unwrap_or(0);
        let is_over = |since| woken.saturating_sub(since) >= OVER_AFTER_NS;
        if self.calm_since.is_some_and(is_over) {
            self.forget_shadow_victims();
        }
        let (count, mut noted) = (self.scopes.len(), WorkMark::at(woken));
        for index in (0..count).map(|i| (first + i) % count) {
            let triggers = taken.scopes.get(index).copied().unwrap_or_default();
            if let Err(e) = self.check_scope(index, woken, &mut noted, &triggers) {
                self.report_scope_gone(index, &e);
            }
        }
        // Victims are observed afterwards: nothing may delay the signal.
        let now = monotonic_ns();
        self.note_gap(noted.idle_until(now, MAX_WORK), now);
        self.finish_victims(now);
        if self.revoke_kernel_victims() {
            self.published_at = 0;
        }
        if self.scopes.iter().all(|watched| !watched.under_pressure) {
            self.calm_since.get_or_insert(woken);
            self.publish_when_due(woken);
        } else {
            self.calm_since = None;
            if self.in_flight.terminating_count() > 0 {
                // The victim that is dying stays the published one.
                self.published_at = 0;
                self.read_pods_while_terminating(woken);
            } else {
                self.publish_when_due(woken);
            }
        }
    }

    /// Between two moments that should have come one after the other the whole machine may have stood still, and the
    /// victims with it.
    fn note_gap(&mut self, late: u64, now: u64) {
        if late > LATE_NS {
            self.in_flight.exclude_gap(late, now);
        }
        if late >= GAP_NS {
            let paces = self.scopes.iter_mut().map(|watched| &mut watched.pace);
            paces.for_each(|pace| pace.exclude_gap(late, now));
            self.pods.forget_growth();
        }
    }

    /// Pods that shadow mode has chosen are candidates again.
    fn forget_shadow_victims(&mut self) {
        let control = &self.control;
        if self
            .in_flight
            .forget_shadow_victims(|pod| control.leave(pod))
        {
            let limiter = &self.limiter;
            limiter.forget_shadow_victims(ShadowChooser::FastPath);
            // What they use counts as used again, and has not grown.
            let scopes = self.scopes.iter_mut();
            scopes.for_each(|watched| watched.pace.forget_growth());
        }
    }

    /// Looks at a scope and does what it asks for. The time until `noted` counts already where this stands still.
    fn check_scope(
        &mut self,
        index: usize,
        woken: u64,
        noted: &mut WorkMark,
        triggers: &ScopeTriggers,
    ) -> io::Result<()> {
        let Some(watched) = self.scopes.get(index) else {
            return Ok(());
        };
        let was_under_pressure = watched.under_pressure;
        let mut dying = self.sample_scope(index, woken, triggers)?;
        let mut now = monotonic_ns();
        let (mut looked, late) = (woken, noted.idle_until(now, MAX_WORK));
        if late > LATE_NS {
            // What was read is as old. The triggers were taken in with it.
            self.note_gap(late, now);
            (looked, *noted) = (now, WorkMark::at(now));
            dying = self.sample_scope(index, looked, &ScopeTriggers::default())?;
            now = monotonic_ns();
        }
        let Some(watched) = self.scopes.get(index) else {
            return Ok(());
        };
        let recorder = self.status.recorder();
        let (signal, available) = (watched.scope.signal(), watched.sample.guarded_available);
        if watched.under_pressure && !was_under_pressure {
            recorder.record_always(looked, signal, available);
        } else {
            recorder.record(looked, signal, available);
        }
        self.report_met_in_force(index);
        self.take_kernel_kills(now);
        let idle = self.resolve_pressure(index, now, dying);
        let Some(watched) = self.scopes.get_mut(index) else {
            return Ok(());
        };
        watched.rearm_floor(&mut *self.triggers.set)?;
        if !watched.under_pressure {
            return watched.rearm(&mut *self.triggers.set, triggers, was_under_pressure);
        }
        watched.idle = idle;
        if idle {
            watched.await_recovery(&mut *self.triggers.set, now)?;
        }
        Ok(())
    }

    /// Reads a scope's memory, and what its victims held before and after it.
    fn sample_scope(
        &mut self,
        index: usize,
        woken: u64,
        triggers: &ScopeTriggers,
    ) -> io::Result<DyingAround> {
        let Some(watched) = self.scopes.get_mut(index) else {
            return Ok(DyingAround::default());
        };
        let before = self.in_flight.memory(&watched.scope, woken).dying;
        let (hook, table) = (self.triggers.set.hook(), &mut self.pods.table);
        watched
            .scope
            .limit_swap(|at_limit| table.swap.left(at_limit));
        let protected_cache = self.control.protected_cache();
        watched.scope.set_protected_cache(protected_cache);
        let watermarks = self.control.default_watermarks();
        watched.scope.set_default_watermarks(watermarks);
        let cycle = SampleContext {
            woken,
            dying: before,
            triggers,
            hook,
            fastest_growth: self.fastest_growth,
        };
        watched.sample(&cycle, || table.flush_statistics())?;
        let after = self.in_flight.memory(&watched.scope, woken).dying;
        Ok(DyingAround { before, after })
    }

    /// Sends once that a scope cannot be read; the other scopes go on.
    pub(super) fn report_scope_gone(&mut self, index: usize, error: &io::Error) {
        let Some(watched) = self.scopes.get_mut(index) else {
            return;
        };
        watched.under_pressure = false;
        if !std::mem::replace(&mut watched.gone, true) {
            self.events.send(FastPathEvent::ScopeGone {
                signal: watched.scope.signal(),
                errno: errno(error),
            });
        }
    }

    fn finish_victims(&mut self, now: u64) {
        let (events, scopes, control) = (&self.events, &self.scopes, &self.control);
        let at = |scope: usize| {
            scopes
                .get(scope)
                .map(|watched| (watched.sample, watched.scope.thresholds().threshold))
                .unwrap_or_default()
        };
        let (mut is_fewer, mut held) = (false, [0_u64; MAX_SCOPES as usize]);
        self.in_flight
            .observe(now, self.shadow, at, |event| match event {
                VictimEvent::Finished(exit) => events.send(FastPathEvent::Finished(exit)),
                VictimEvent::Stuck(stuck) => events.send(FastPathEvent::Stuck(stuck)),
                VictimEvent::Displaced(pod) => pod.eviction_state.set_ending(true),
                VictimEvent::Released(pod, reading) => {
                    let all = held.iter_mut().zip(scopes);
                    for (held, watched) in all.filter(|(_, w)| w.scope.holds(&pod)) {
                        let left = reading.of_scope(watched.scope.is_limited());
                        *held = held.saturating_add(left.unreclaimable());
                    }
                }
                VictimEvent::Left(pod) => {
                    is_fewer = true;
                    control.leave(pod);
                }
            });
        let scopes = self.scopes.iter_mut().zip(held);
        scopes.for_each(|(watched, held)| watched.pace.release_victims(held));
        if is_fewer {
            // Before the next decision: there may be room now for those that wait.
            self.apply_kills();
        }
    }
}

/// Parts and settings that a fast path is built from.
pub struct FastPathSetup {
    /// The node, and the pods' cgroup if that is watched too: at least one scope, at most
    /// [`MAX_SCOPES`].
    pub scopes: Vec<Scope>,
    /// The hook that watches these scopes, built for the same cgroups in the same order.
    pub trigger: Box<dyn TriggerSet>,
    /// The pods at the start.
    pub table: Box<PodTable>,
    /// Pods that an earlier agent has signalled.
    pub restored: Vec<RestoredVictim>,
    /// Time at which an earlier agent last evicted a pod for memory, in nanoseconds of CLOCK_MONOTONIC.
    pub last_eviction: Option<u64>,
    /// The trigger is pinned: the kernel acts in this thread's place when it is stopped or gone.
    pub is_pinned: bool,
    /// Decide, report, and kill nothing.
    pub shadow: bool,
    /// Degree to which evictions go beyond the kubelet: it decides how many pods may go at once.
    pub mode: Mode,
    /// The order of eviction.
    pub strategy: RankingStrategy,
    /// Limits, the pause and the last resort.
    pub limiter: Arc<EvictionLimiter>,
    /// Control block that new tables, scopes and settings come from.
    pub control: Arc<FastPathControl>,
    /// Queue that reports go to.
    pub events: Arc<FastPathEventQueue>,
    /// Status that other threads read of the fast path.
    pub status: Arc<FastPathStatus>,
}
