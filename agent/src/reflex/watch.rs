//! The loop itself: wait, look, decide, kill.

use std::{io, os::fd::AsRawFd as _, sync::Arc, time::Duration};

use super::{
    inflight::{InFlight, MAX_IN_FLIGHT, Victim},
    mailbox::{Mailbox, Outbox},
    report::{Evicted, Report, Stages},
    scope::{Look, Scope},
    thread::{Refusals, become_fifo, lock_memory, now_ns, touch_stack},
};
use crate::{
    config::RankingStrategy,
    engine::{CandidateState, Demand, Resource, Rules, select},
    kernel::{
        ladder::MemoryHook,
        tripwire::{Direction, Trip, Tripwire, Wire, page_size},
    },
    observe::deadline::{self, fastest_growth},
    pods::table::PodTable,
};

/// Slot of the hard threshold's wire.
const HARD: usize = 0;
/// Slot of the floor's wire (R41).
const FLOOR: usize = 1;
/// While memory is on its way back, or is wanted and nobody can give it.
const PRESSURE_INTERVAL: Duration = Duration::from_millis(1);
/// With a hook the sampler has only the ground to watch (inactive_file, capacity), which moves slower than usage.
const HOOKED_FLOOR: Duration = Duration::from_millis(10);
/// The wire is set anew when the ground has moved by this much; less than one batch of every CPU makes no difference.
const REARM_BYTES: u64 = 256 << 10;

/// What a reflex needs.
pub struct Setup {
    /// The node.
    pub scope: Scope,
    /// The rung that watches it.
    pub tripwire: Box<dyn Tripwire>,
    /// The pods at the start.
    pub table: Box<PodTable>,
    /// Decide, report, and kill nothing (R47).
    pub shadow: bool,
    /// Pods that may be on their way out at once: 1 is the kubelet's way, more is R43.
    pub victims_at_once: usize,
    /// The order of eviction.
    pub strategy: RankingStrategy,
    /// Where new tables come from.
    pub mailbox: Arc<Mailbox>,
    /// Where reports go.
    pub outbox: Arc<Outbox>,
}

/// A running reflex thread.
pub struct Reflex {
    thread: std::thread::JoinHandle<()>,
    mailbox: Arc<Mailbox>,
    tid: i32,
}

impl Reflex {
    /// Starts the thread and waits until its wire is armed.
    ///
    /// # Errors
    /// The thread cannot be started, the scope cannot be read, the wire cannot be armed.
    pub fn start(setup: Setup) -> io::Result<(Self, Refusals)> {
        let mailbox = Arc::clone(&setup.mailbox);
        let (started, ready) = std::sync::mpsc::sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("reflex".into())
            .spawn(move || {
                let refusals = Refusals {
                    lock: lock_memory(),
                    fifo: become_fifo(),
                };
                touch_stack();
                let mut watch = Watch::new(setup);
                let armed = watch.settle();
                let go = armed.is_ok();
                // SAFETY: no preconditions.
                let tid = unsafe { libc::gettid() };
                if started.send(armed.map(|()| (refusals, tid))).is_ok() && go {
                    watch.run();
                }
            })?;
        let (refusals, tid) = ready
            .recv()
            .map_err(|_| io::Error::other("the reflex thread ended before it was ready"))??;
        Ok((
            Self {
                thread,
                mailbox,
                tid,
            },
            refusals,
        ))
    }

    /// The kernel's id of the thread, for its counters in `/proc/self/task`.
    pub fn tid(&self) -> i32 {
        self.tid
    }

    /// Ends the thread.
    pub fn stop(self) {
        self.mailbox.stop();
        if self.thread.join().is_err() {
            tracing::error!("the reflex thread has panicked");
        }
    }
}

/// What is known of the crossing that started the present pressure.
#[derive(Clone, Copy, Default)]
struct Cause {
    crossed: u64,
    woken: u64,
    usage: u64,
    hook: Option<MemoryHook>,
}

struct Watch {
    setup: Setup,
    in_flight: InFlight,
    growth: u64,
    armed_limit: u64,
    evictions: u64,
    /// The threshold is met: the scope is below `resolved` and has been below `threshold`.
    pressed: bool,
    nobody_left: bool,
    /// Somebody was chosen during this pressure.
    decided: bool,
    cause: Cause,
}

impl Watch {
    fn new(setup: Setup) -> Self {
        Self {
            setup,
            in_flight: InFlight::new(),
            growth: fastest_growth(),
            armed_limit: 0,
            evictions: 0,
            pressed: false,
            nobody_left: false,
            decided: false,
            cause: Cause::default(),
        }
    }

    /// Arms the wires for the first time.
    fn settle(&mut self) -> io::Result<()> {
        let look = self.setup.scope.look()?;
        self.arm(&look)
    }

    fn run(&mut self) {
        let mut interval = Duration::ZERO;
        while !self.setup.mailbox.stopped() {
            self.wait(interval);
            let woken = now_ns();
            let trip = self.newest_trip();
            // A decision comes first; a new table can wait for the next turn.
            if trip.is_none() {
                self.setup.mailbox.exchange(&mut self.setup.table);
            }
            interval = match self.turn(woken, trip) {
                Ok(interval) => interval,
                Err(e) => {
                    let errno = e.raw_os_error().unwrap_or(0);
                    self.setup.outbox.send(Report::ScopeGone { errno });
                    deadline::CEILING
                }
            };
        }
    }

    fn wait(&self, interval: Duration) {
        let poll = |fd: i32| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        let tripwire = self.setup.tripwire.fd().map_or(-1, |fd| fd.as_raw_fd());
        // A negative descriptor is left out by the kernel.
        let mut fds = [poll(tripwire), poll(self.setup.mailbox.fd().as_raw_fd())];
        let timeout = libc::timespec {
            tv_sec: i64::try_from(interval.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(interval.subsec_nanos()),
        };
        // SAFETY: both pointers are to locals that outlive the call; no signal mask is given. An interrupted wait
        // is a look too early, which is harmless.
        unsafe { libc::ppoll(fds.as_mut_ptr(), 2, &raw const timeout, std::ptr::null()) };
    }

    fn newest_trip(&mut self) -> Option<Trip> {
        let mut first = None;
        while let Some(trip) = self.setup.tripwire.next() {
            first = first.or(Some(trip));
        }
        first
    }

    /// One look at the scope and what follows from it; the time until the next one.
    fn turn(&mut self, woken: u64, trip: Option<Trip>) -> io::Result<Duration> {
        let look = self.setup.scope.look()?;
        let limits = self.setup.scope.limits();
        let was_pressed = self.pressed;
        self.pressed =
            look.available < limits.threshold || (was_pressed && look.available < limits.resolved);
        if !self.pressed {
            self.finish_victims(woken, &look);
            self.nobody_left = false;
            self.decided = false;
            if was_pressed || trip.is_some() || self.ground_has_moved(&look) {
                self.arm(&look)?;
            }
            return Ok(self.next_look(&look));
        }
        if !was_pressed {
            self.cause = self.cause_of(woken, trip);
        }
        self.relieve(&look);
        // Exits are looked for afterwards: nothing may stand between the wake-up and the signal.
        self.finish_victims(now_ns(), &look);
        Ok(PRESSURE_INTERVAL)
    }

    fn cause_of(&self, woken: u64, trip: Option<Trip>) -> Cause {
        match trip {
            Some(trip) => Cause {
                crossed: trip.time_ns,
                woken,
                usage: trip.usage * page_size(),
                hook: Some(self.setup.tripwire.hook()),
            },
            None => Cause {
                woken,
                ..Cause::default()
            },
        }
    }

    /// Kills as many as it takes until what is available and what is coming covers the threshold.
    fn relieve(&mut self, look: &Look) {
        if self.setup.shadow && self.decided {
            // Nobody dies, so that nothing changes: one decision per pressure is all there is to tell.
            return;
        }
        let rules = Rules {
            strategy: self.setup.strategy,
            resource: Resource::Memory,
            system_over_reserved: false,
        };
        let room = self
            .setup
            .victims_at_once
            .saturating_sub(MAX_IN_FLIGHT - self.in_flight.room());
        let mut room = room.min(self.in_flight.room());
        let deficit = self
            .setup
            .scope
            .limits()
            .resolved
            .saturating_sub(look.available);
        let mut coming = self.in_flight.coming();
        self.load_candidates();
        let mut victims = [0; MAX_IN_FLIGHT];
        while let (Some(demand), 1..) = (Demand::after(deficit, coming), room) {
            let PodTable {
                entries,
                candidates,
            } = &mut *self.setup.table;
            let exact = |i: usize| entries.get(i)?.memory.read().map(|r| r.working_set()).ok();
            let chosen = select(candidates, rules, demand, exact, &mut victims[..room]);
            if chosen.count == 0 {
                self.say_nobody_left(look);
                return;
            }
            for &victim in &victims[..chosen.count] {
                let working_set = self
                    .setup
                    .table
                    .candidates
                    .get(victim)
                    .map_or(0, |c| c.usage);
                // A pod that died by itself in between gives nothing; the next turn of the loop asks again.
                if self.kill(victim, working_set, look) {
                    coming = coming.saturating_add(working_set);
                    room -= 1;
                }
            }
        }
    }

    /// Fresh upper bounds for everybody: one number each. Only those that come first are read in full.
    fn load_candidates(&mut self) {
        let PodTable {
            entries,
            candidates,
        } = &mut *self.setup.table;
        for (entry, candidate) in entries.iter().zip(candidates.iter_mut()) {
            candidate.is_exact = false;
            candidate.state = if entry.protected {
                CandidateState::Protected
            } else if self.in_flight.contains(entry) {
                CandidateState::OnItsWay
            } else {
                match entry.memory.usage() {
                    Ok(usage) => {
                        candidate.usage = usage;
                        CandidateState::Eligible
                    }
                    Err(_) => CandidateState::Gone,
                }
            };
        }
    }

    /// Signals one pod; false when that gives nothing: it was empty already, or the kernel refuses.
    fn kill(&mut self, index: usize, working_set: u64, look: &Look) -> bool {
        let Some(entry) = self.setup.table.entries.get(index) else {
            return false;
        };
        let entry = Arc::clone(entry);
        let decided = now_ns();
        let mut errno = 0;
        if !self.setup.shadow {
            match entry.killer.kill() {
                Ok(round) if round.empty => return false,
                Ok(_) => {}
                Err(e) => errno = e.raw_os_error().unwrap_or(libc::EIO),
            }
        }
        let signalled = now_ns();
        self.decided = true;
        self.evictions += 1;
        let limits = self.setup.scope.limits();
        let Cause {
            crossed,
            woken,
            usage,
            hook,
        } = self.cause;
        if !self.setup.shadow {
            self.in_flight.push(Victim {
                pod: Arc::clone(&entry),
                number: self.evictions,
                signalled,
                // What was refused gives nothing; its pod is left alone until the deadline, and the next one goes.
                expected: if errno == 0 { working_set } else { 0 },
                exited: 0,
                peak_usage: look.usage,
            });
        }
        self.setup.outbox.send(Report::Evicted(Evicted {
            pod: entry,
            number: self.evictions,
            stages: Stages {
                crossed,
                woken,
                decided,
                signalled,
            },
            hook: hook.unwrap_or(MemoryHook::Sampler),
            usage_at_crossing: usage,
            usage_at_decision: look.usage,
            available: look.available,
            threshold: limits.threshold,
            working_set,
            shadow: self.setup.shadow,
            errno,
        }));
        errno == 0
    }

    fn finish_victims(&mut self, now: u64, look: &Look) {
        let outbox = &self.setup.outbox;
        let threshold = self.setup.scope.limits().threshold;
        self.in_flight.step(now, look, threshold, |finished| {
            outbox.send(Report::Finished(finished))
        });
    }

    fn say_nobody_left(&mut self, look: &Look) {
        if !self.nobody_left && self.in_flight.is_empty() {
            self.nobody_left = true;
            let threshold = self.setup.scope.limits().threshold;
            self.setup.outbox.send(Report::NobodyLeft {
                available: look.available,
                threshold,
            });
        }
    }

    fn ground_has_moved(&self, look: &Look) -> bool {
        let limit = self
            .setup
            .scope
            .usage_limit(self.setup.scope.limits().threshold, look.discounted);
        limit.abs_diff(self.armed_limit) >= REARM_BYTES
    }

    fn arm(&mut self, look: &Look) -> io::Result<()> {
        let limits = self.setup.scope.limits();
        let wire = |amount: u64, floor: bool| Wire {
            limit: self.setup.scope.usage_limit(amount, look.discounted),
            direction: Direction::Rising,
            floor,
        };
        let (hard, floor) = (
            wire(limits.threshold, false),
            limits.floor.map(|f| wire(f, true)),
        );
        self.armed_limit = hard.limit;
        self.setup.tripwire.arm(HARD, hard)?;
        self.setup.tripwire.arm(FLOOR, floor.unwrap_or(Wire::NEVER))
    }

    fn next_look(&self, look: &Look) -> Duration {
        let distance = look
            .available
            .saturating_sub(self.setup.scope.limits().threshold);
        let interval = deadline::next_look(distance, self.growth);
        if self.setup.tripwire.hook() == MemoryHook::Sampler {
            interval
        } else {
            interval.max(HOOKED_FLOOR)
        }
    }
}
