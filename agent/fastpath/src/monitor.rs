//! The loop itself: wait, look, decide, kill.

mod evict;
mod floor_victims;
mod growers;
mod schedule;
mod updates;
mod usage_cache;

use std::{io, sync::Arc};

use evictd_engine::{
    growers::Growers,
    limiter::{EvictionLimiter, ShadowChooser},
    model::settings::RankingStrategy,
};
use evictd_node::{
    memory_scope::Scope,
    pods::table::PodTable,
    proc::machine::online_cpus,
    sampling::fastest_growth,
    trigger::memory::{ANY_SLOT, MAX_SCOPES, MemoryTrigger, SLOTS_PER_SCOPE, page_size, slot},
};
use evictd_sys::clock::monotonic_ns;

use crate::{
    Control, Event, EventQueue,
    in_flight::{InFlight, ResumedVictim, VictimEvent},
    monitor::usage_cache::UsageCache,
    scope::{ScopeMonitor, ScopeTriggers},
    spin::Wait,
};

/// Calm for so long, a pressure is over. A counter that has just reached a threshold goes back by itself when a CPU returns what
/// it had charged in advance (`drain_stock`), and comes again.
const OVER_AFTER_NS: u64 = 1_000_000_000;

/// A cycle that comes later than it should by this is no sign of a stopped agent, in nanoseconds.
const LATE_NS: u64 = 50_000_000;

/// What the hook has told since the last turn.
#[derive(Default)]
struct PendingTriggers {
    /// Scope by scope.
    scopes: [ScopeTriggers; MAX_SCOPES as usize],
    /// Whose threshold's trigger tripped first.
    tripped: Option<usize>,
}

/// The state of the loop.
pub(super) struct MemoryMonitor {
    pub(super) setup: Setup,
    /// The scopes; never more than [`MAX_SCOPES`].
    pub(super) scopes: Vec<ScopeMonitor>,
    /// Victims for whichever scope: what one of them gives back, all of them get.
    pub(super) in_flight: InFlight,
    pub(super) growth: u64,
    pub(super) cpus: u64,
    /// How old the usages in the table are.
    pub(super) usage_cache: UsageCache,
    /// The pods that grow most.
    pub(super) growers: Growers,
    /// And those of their cgroups that have limits of their own.
    pub(super) limited_growers: Growers,
    pub(super) evictions: u64,
    met_in_force: u64,
    /// When the floor victims were published last; 0: they have to be.
    pub(super) published_at: u64,
    triggers: PendingTriggers,
    /// Since when no threshold is met.
    calm_since: Option<u64>,
    /// How often every scope was looked at.
    pub(super) cycles: u64,
    /// Events that the hook has told of so far.
    pub(super) told: u64,
    /// Why the hook could not be attached or detached at the last attempt: an errno.
    pub(super) hook_lost: Option<i32>,
}

impl MemoryMonitor {
    pub(super) fn new(mut setup: Setup) -> Self {
        let mut scopes = Vec::with_capacity(MAX_SCOPES as usize);
        let growth = fastest_growth();
        let cpus = online_cpus();
        let given = std::mem::take(&mut setup.scopes).into_iter().enumerate();
        scopes.extend(given.map(|(index, scope)| ScopeMonitor::new(scope, index, growth, cpus)));
        if let Some(last) = setup.last_eviction {
            scopes
                .iter_mut()
                .for_each(|monitor| monitor.pace.evicted(last));
        }
        let in_flight = InFlight::new(&std::mem::take(&mut setup.earlier), monotonic_ns());
        Self {
            setup,
            scopes,
            in_flight,
            growth,
            cpus,
            usage_cache: UsageCache::default(),
            growers: Growers::default(),
            limited_growers: Growers::default(),
            evictions: 0,
            met_in_force: 0,
            published_at: 0,
            triggers: PendingTriggers::default(),
            calm_since: None,
            cycles: 0,
            told: 0,
            hook_lost: None,
        }
    }

    /// Arms the triggers for the first time.
    pub(super) fn settle(&mut self) -> io::Result<()> {
        let floor = self.floor_is_armed();
        for monitor in &mut self.scopes {
            monitor.settle(&mut *self.setup.trigger, floor)?;
        }
        (0..self.scopes.len()).for_each(|index| self.report_met_in_force(index));
        Ok(())
    }

    /// Says that the threshold of a scope is met although it has just come into force.
    pub(super) fn report_met_in_force(&mut self, index: usize) {
        let Some(monitor) = self.scopes.get(index) else {
            return;
        };
        let (available, threshold) = (monitor.sample.available, monitor.scope.limits().threshold);
        if !monitor.gone && available < threshold {
            self.met_in_force += 1;
            self.setup.events.send(Event::MetInForce {
                signal: monitor.scope.signal(),
                available,
                threshold,
                number: self.met_in_force,
            });
        }
    }

    /// In shadow mode the kernel must not kill either.
    pub(super) fn floor_is_armed(&self) -> bool {
        !self.setup.shadow
    }

    /// One round of the loop; how to wait for the next one.
    pub(super) fn run_once(&mut self, woken: u64) -> Wait {
        self.setup.events.beat(woken);
        // A decision comes first; what is new in the control block can wait for the next turn.
        if !self.drain_triggers() {
            self.apply_updates();
        }
        self.iterate(woken);
        let interval = self.next_look();
        let wait = self.wait(woken, interval);
        let (now, lasts) = (monotonic_ns(), wait.longest(woken));
        let lease = now.saturating_add(lasts * 2 + LATE_NS);
        self.setup.trigger.beat(now, lease);
        wait
    }

    /// The part of a round that cannot wait, for a fast path that is late. What else the hook has told waits for it.
    pub(super) fn handle_pending_triggers(&mut self, woken: u64) {
        if self.drain_triggers() {
            self.setup.events.note_take_over();
            self.iterate(woken);
        }
    }

    /// Takes in what the hook has told meanwhile; whether a threshold's trigger has tripped.
    pub(super) fn drain_triggers(&mut self) -> bool {
        let PendingTriggers {
            scopes: triggers,
            tripped,
        } = &mut self.triggers;
        while let Some(trip) = self.setup.trigger.next() {
            self.told += 1;
            if trip.slot == ANY_SLOT {
                for triggers in &mut *triggers {
                    triggers.trip = triggers.trip.or(Some(trip));
                }
                *tripped = tripped.or(Some(0));
                continue;
            }
            let scope = (trip.slot / SLOTS_PER_SCOPE) as usize;
            let Some(triggers) = triggers.get_mut(scope) else {
                continue;
            };
            match trip.slot % SLOTS_PER_SCOPE {
                slot::CALIBRATION => triggers.counter = Some(trip.usage * page_size()),
                // To be awake is all that it is for.
                slot::RECOVERY => {}
                slot::APPROACH => triggers.approached = true,
                _ => {
                    triggers.trip = triggers.trip.or(Some(trip));
                    *tripped = tripped.or(Some(scope));
                }
            }
        }
        tripped.is_some()
    }

    /// Whether a threshold is met: where no program tells of that in the same moment, the thread that is awake reads the counter.
    pub(super) fn sees_a_crossing(&self) -> bool {
        let trigger = &*self.setup.trigger;
        !trigger.has_program() && self.scopes.iter().any(ScopeMonitor::is_crossed)
    }

    /// One look at every scope, that one first whose trigger has tripped, and what follows.
    fn iterate(&mut self, woken: u64) {
        self.cycles += 1;
        let PendingTriggers {
            scopes: triggers,
            tripped,
        } = std::mem::take(&mut self.triggers);
        let first = tripped.unwrap_or(0);
        let is_over = |since| woken.saturating_sub(since) >= OVER_AFTER_NS;
        if self.calm_since.is_some_and(is_over) {
            self.forget_shadow_victims();
        }
        let count = self.scopes.len();
        for index in (0..count).map(|i| (first + i) % count) {
            let triggers = triggers.get(index).copied().unwrap_or_default();
            if let Err(e) = self.check_scope(index, woken, &triggers) {
                self.report_scope_gone(index, &e);
            }
        }
        // Exits are looked for afterwards: nothing may stand between the wake-up and the signal.
        self.finish_victims(monotonic_ns());
        if self.revoke_floor_victims() {
            self.published_at = 0;
        }
        if self.scopes.iter().all(|monitor| !monitor.pressed) {
            self.calm_since.get_or_insert(woken);
            self.publish_when_due(woken);
        } else {
            self.calm_since = None;
            if self.in_flight.dying() > 0 {
                // The name stays that of the pod that is dying already.
                self.published_at = 0;
            } else {
                self.publish_when_due(woken);
            }
        }
    }

    /// What shadow mode has chosen is a pod like any other from now on.
    fn forget_shadow_victims(&mut self) {
        if self.in_flight.forget_shadow_victims() {
            let limiter = &self.setup.limiter;
            limiter.forget_shadow_victims(ShadowChooser::FastPath);
        }
    }

    fn check_scope(
        &mut self,
        index: usize,
        woken: u64,
        triggers: &ScopeTriggers,
    ) -> io::Result<()> {
        let floor = self.floor_is_armed();
        let Some(monitor) = self.scopes.get_mut(index) else {
            return Ok(());
        };
        let was_pressed = monitor.pressed;
        let dying_before = self.in_flight.memory(&monitor.scope, woken).dying;
        let (hook, table) = (self.setup.trigger.hook(), &mut self.setup.table);
        monitor.scope.limit_swap(|| table.swap.left());
        monitor.scope.protect(self.setup.control.protected());
        monitor.sample(woken, dying_before, triggers, hook, self.growth, || {
            table.flush_statistics()
        })?;
        let recorder = self.setup.events.recorder();
        let (signal, available) = (monitor.scope.signal(), monitor.sample.available);
        if monitor.pressed && !was_pressed {
            recorder.record_always(woken, signal, available);
        } else {
            recorder.record(woken, signal, available);
        }
        let now = monotonic_ns();
        self.take_kernel_kills(now);
        let idle = self.resolve_pressure(index, now, dying_before);
        let Some(monitor) = self.scopes.get_mut(index) else {
            return Ok(());
        };
        monitor.follow_floor(&mut *self.setup.trigger, floor)?;
        if !monitor.pressed {
            return monitor.keep(&mut *self.setup.trigger, triggers, was_pressed, floor);
        }
        monitor.idle = idle;
        if idle {
            monitor.await_recovery(&mut *self.setup.trigger)?;
        }
        Ok(())
    }

    /// Said once; the other scopes go on.
    pub(super) fn report_scope_gone(&mut self, index: usize, error: &io::Error) {
        let Some(monitor) = self.scopes.get_mut(index) else {
            return;
        };
        monitor.pressed = false;
        if !std::mem::replace(&mut monitor.gone, true) {
            self.setup.events.send(Event::ScopeGone {
                signal: monitor.scope.signal(),
                errno: error.raw_os_error().unwrap_or(libc::EIO),
            });
        }
    }

    fn finish_victims(&mut self, now: u64) {
        let (events, scopes) = (&self.setup.events, &self.scopes);
        let at = |scope: usize| {
            scopes
                .get(scope)
                .map(|monitor| (monitor.sample, monitor.scope.limits().threshold))
                .unwrap_or_default()
        };
        let is_fewer = self.in_flight.step(now, at, |told| {
            events.send(match told {
                VictimEvent::Finished(finished) => Event::Finished(finished),
                VictimEvent::Stuck(stuck) => Event::Stuck(stuck),
            });
        });
        if is_fewer {
            let scopes = self.scopes.iter_mut();
            scopes.for_each(|monitor| monitor.pace.forget_growth());
            // Before the next decision: there may be room now for those that wait.
            self.apply_kills();
        }
    }
}

/// What a fast path needs.
pub struct Setup {
    /// The node, and the pods' cgroup if that one is watched too: at least one, at most
    /// [`MAX_SCOPES`](evictd_node::trigger::memory::MAX_SCOPES).
    pub scopes: Vec<Scope>,
    /// The hook that watches them, built for the same cgroups in the same order.
    pub trigger: Box<dyn MemoryTrigger>,
    /// The pods at the start.
    pub table: Box<PodTable>,
    /// Pods that an earlier agent has signalled.
    pub earlier: Vec<ResumedVictim>,
    /// When an earlier agent last evicted a pod for memory, in nanoseconds of CLOCK_MONOTONIC.
    pub last_eviction: Option<u64>,
    /// The trigger is pinned: the kernel acts in this thread's place when it is stopped or gone.
    pub is_pinned: bool,
    /// Decide, report, and kill nothing.
    pub shadow: bool,
    /// The most pods that may be terminating at once; the kubelet's number is 1.
    pub victims_at_once: usize,
    /// The order of eviction.
    pub strategy: RankingStrategy,
    /// What holds for all pods: limits, the pause, the last resort.
    pub limiter: Arc<EvictionLimiter>,
    /// Where new tables come from.
    pub control: Arc<Control>,
    /// Where reports go.
    pub events: Arc<EventQueue>,
}
