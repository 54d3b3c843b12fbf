//! The loop itself: wait, look, decide, kill.

use std::{io, os::fd::AsRawFd as _, time::Duration};

use super::{handle::Setup, inflight::InFlight, report::Report, scope::Look, thread::now_ns};
use crate::{
    kernel::{
        ladder::MemoryHook,
        tripwire::{Direction, Trip, Wire, page_size},
    },
    observe::deadline::{self, Nearness, fastest_growth},
};

/// Slot of the hard threshold's wire.
const HARD: usize = 0;
/// Slot of the floor's wire (R41).
const FLOOR: usize = 1;
/// Slot of a wire that trips at the next charge, to learn what the counter of the machine reads.
const CALIBRATION: usize = 2;
/// While memory is on its way back, or is wanted and nobody can give it.
const PRESSURE_INTERVAL: Duration = Duration::from_millis(1);
/// With a hook the sampler has only the ground to watch (inactive_file, capacity), which moves slower than usage.
const HOOKED_FLOOR: Duration = Duration::from_millis(10);
/// The wire is set anew when the ground has moved by this much; less than one batch of every CPU makes no difference.
const REARM_BYTES: u64 = 256 << 10;

/// What is known of the crossing that started the present pressure.
#[derive(Clone, Copy, Default)]
pub(super) struct Cause {
    pub crossed: u64,
    pub woken: u64,
    pub usage: u64,
    pub hook: Option<MemoryHook>,
}

/// The state of the loop.
pub(super) struct Watch {
    pub(super) setup: Setup,
    pub(super) in_flight: InFlight,
    pub(super) growth: u64,
    pub(super) armed_limit: u64,
    /// What the counter reads above the usage, in bytes; `None` while that is not known.
    pub(super) offset: Option<i64>,
    /// Whom the kernel may kill past the floor.
    pub(super) first_victim: Option<u64>,
    pub(super) evictions: u64,
    /// The threshold is met: the scope is below `resolved` and has been below `threshold`.
    pub(super) pressed: bool,
    pub(super) nobody_left: bool,
    /// Somebody was chosen during this pressure.
    pub(super) decided: bool,
    pub(super) cause: Cause,
}

impl Watch {
    pub(super) fn new(setup: Setup) -> Self {
        Self {
            setup,
            in_flight: InFlight::new(),
            growth: fastest_growth(),
            armed_limit: 0,
            offset: None,
            first_victim: None,
            evictions: 0,
            pressed: false,
            nobody_left: false,
            decided: false,
            cause: Cause::default(),
        }
    }

    /// Arms the wires for the first time.
    pub(super) fn settle(&mut self) -> io::Result<()> {
        let look = self.setup.scope.look()?;
        self.arm(&look)
    }

    pub(super) fn run(&mut self) {
        let mut interval = Duration::ZERO;
        while !self.setup.mailbox.stopped() {
            self.wait(interval);
            let woken = now_ns();
            let (trip, counter) = self.trips();
            // A decision comes first; a new table can wait for the next turn.
            if trip.is_none() {
                self.setup.mailbox.exchange(&mut self.setup.table);
            }
            interval = match self.turn(woken, trip, counter) {
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

    /// The first crossing since the last turn, and what the counter read at the last calibration, in bytes.
    fn trips(&mut self) -> (Option<Trip>, Option<u64>) {
        let (mut first, mut counter) = (None, None);
        while let Some(trip) = self.setup.tripwire.next() {
            if trip.slot as usize == CALIBRATION {
                counter = Some(trip.usage * page_size());
            } else {
                first = first.or(Some(trip));
            }
        }
        (first, counter)
    }

    /// One look at the scope and what follows from it; the time until the next one.
    fn turn(
        &mut self,
        woken: u64,
        trip: Option<Trip>,
        counter: Option<u64>,
    ) -> io::Result<Duration> {
        let look = self.setup.scope.look()?;
        let limits = self.setup.scope.limits();
        let was_pressed = self.pressed;
        self.pressed =
            look.available < limits.threshold || (was_pressed && look.available < limits.resolved);
        if self.pressed {
            if !was_pressed {
                self.cause = self.cause_of(woken, trip, counter.is_some());
            }
            self.relieve(&look);
            // Exits are looked for afterwards: nothing may stand between the wake-up and the signal.
            self.finish_victims(now_ns(), &look);
            return Ok(PRESSURE_INTERVAL);
        }
        self.finish_victims(woken, &look);
        self.nobody_left = false;
        self.decided = false;
        if self.is_calibrated_by_counter() {
            self.calibrate(&look, counter)?;
        } else if was_pressed || trip.is_some() || self.ground_has_moved(&look) {
            self.arm(&look)?;
        }
        let interval = self.next_look(&look);
        self.name_first_victim();
        Ok(interval)
    }

    fn is_calibrated_by_counter(&self) -> bool {
        self.setup.scope.needs_calibration() && self.setup.tripwire.has_program()
    }

    /// The counter and the usage differ by what only one of them counts, and that changes: each look asks the kernel
    /// for the counter, by a wire that the next charge trips, and the answer sets the wires anew.
    fn calibrate(&mut self, look: &Look, counter: Option<u64>) -> io::Result<()> {
        let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        match counter {
            Some(counter) => {
                self.offset = Some(signed(counter) - signed(look.usage));
                self.arm(look)
            }
            None => self.setup.tripwire.arm(
                CALIBRATION,
                Wire {
                    limit: 0,
                    ..Wire::NEVER
                },
            ),
        }
    }

    fn cause_of(&self, woken: u64, trip: Option<Trip>, calibrated: bool) -> Cause {
        let hook = Some(self.setup.tripwire.hook());
        match trip {
            Some(trip) => Cause {
                crossed: trip.time_ns,
                woken,
                usage: trip.usage * page_size(),
                hook,
            },
            // The wire was set anew just before it would have tripped.
            None if calibrated => Cause {
                woken,
                hook,
                ..Cause::default()
            },
            None => Cause {
                woken,
                ..Cause::default()
            },
        }
    }

    fn finish_victims(&mut self, now: u64, look: &Look) {
        let outbox = &self.setup.outbox;
        let threshold = self.setup.scope.limits().threshold;
        self.in_flight.step(now, look, threshold, |finished| {
            outbox.send(Report::Finished(finished))
        });
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
        let offset = match self.offset {
            Some(offset) => offset,
            None if self.is_calibrated_by_counter() => return self.calibrate(look, None),
            None => 0,
        };
        let wire = |amount: u64, floor: bool| Wire {
            limit: self
                .setup
                .scope
                .usage_limit(amount, look.discounted)
                .saturating_add_signed(offset),
            direction: Direction::Rising,
            floor,
        };
        let hard = wire(limits.threshold, false);
        // In shadow mode the kernel must not kill either.
        let floor = limits
            .floor
            .filter(|_| !self.setup.shadow)
            .map(|f| wire(f, true));
        self.armed_limit = hard.limit;
        self.setup.tripwire.arm(HARD, hard)?;
        self.setup.tripwire.arm(FLOOR, floor.unwrap_or(Wire::NEVER))
    }

    /// When to look again; switches the per-page rung on the way.
    fn next_look(&mut self, look: &Look) -> Duration {
        let threshold = self.setup.scope.limits().threshold;
        let distance = look.available.saturating_sub(threshold);
        if self.setup.tripwire.hook() == MemoryHook::Sampler {
            return deadline::next_look(distance, self.growth);
        }
        let is_armed = self.offset.is_some() || !self.is_calibrated_by_counter();
        let nearness = Nearness::new(self.growth);
        let tripwire = &mut self.setup.tripwire;
        let wanted = nearness.wants_hook(distance, tripwire.is_attached());
        match tripwire.set_near(wanted) {
            // What was charged while it was being attached was not seen by it.
            Ok(true) if wanted => Duration::ZERO,
            Ok(_) if tripwire.is_attached() && is_armed => {
                deadline::next_look(distance, self.growth).max(HOOKED_FLOOR)
            }
            Ok(_) => nearness.next_look(distance),
            Err(e) => {
                let errno = e.raw_os_error().unwrap_or(0);
                self.setup.outbox.send(Report::HookLost { errno });
                deadline::next_look(distance, self.growth)
            }
        }
    }
}
