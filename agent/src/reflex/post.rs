//! One scope with what the loop knows of it: its pressure, and its wires.

use std::io;

use super::{
    approach::{Approach, Waiting, stretch},
    lag::Lag,
    scope::{Look, Scope},
    thread::after,
};
use crate::kernel::{
    ladder::MemoryHook,
    tripwire::{Act, Direction, SLOTS_PER_SCOPE, Trip, Tripwire, Wire, page_size, slot, slot_of},
};

/// The wire is set anew when the ground has moved by this much; less than one batch of every CPU makes no difference.
const REARM_BYTES: u64 = 256 << 10;

/// What a CPU charges in advance (`MEMCG_CHARGE_BATCH` pages): the counter moves by so much at once. The floor's wire lies
/// ahead by that, so that the step that reaches it ends at the floor and not behind it.
const BATCH_BYTES: u64 = 256 << 10;

/// Pods change places only by growing, and less than this is no reason to ask all of them again.
const NAMING_BYTES: u64 = 2 << 20;

/// What is known of the crossing that started the present pressure.
#[derive(Clone, Copy, Default)]
pub(super) struct Cause {
    pub crossed: u64,
    pub woken: u64,
    pub usage: u64,
    pub hook: Option<MemoryHook>,
}

/// What the rung has told since the last turn about one scope.
#[derive(Clone, Copy, Default)]
pub(super) struct News {
    /// The first crossing of the hard threshold's wire or of the floor's.
    pub trip: Option<Trip>,
    /// What the counter read when the calibrating wire tripped, in bytes.
    pub counter: Option<u64>,
    /// The threshold is close.
    pub approached: bool,
}

/// A scope that is watched.
pub(super) struct Post {
    pub scope: Scope,
    index: usize,
    /// The last look.
    pub look: Look,
    /// The threshold is met: the scope is below `resolved` and has been below `threshold`.
    pub pressed: bool,
    /// It was said that nobody is left.
    pub nobody_left: bool,
    /// Pressed, and nothing is left to do until the recovery's wire trips.
    pub idle: bool,
    /// It was said that the scope cannot be read.
    pub gone: bool,
    pub cause: Cause,
    /// Whom the kernel may kill past the floor.
    pub first_victim: Option<u64>,
    /// What was available when that was decided, in bytes.
    named_at: u64,
    armed_limit: u64,
    recovery_limit: Option<u64>,
    approach: Approach,
    /// Bytes before the threshold at which its wire lies.
    stretch: u64,
    /// That wire has not tripped since it was set.
    approach_armed: bool,
    /// What the counter reads above the usage, in bytes; `None` while that is not known.
    offset: Option<i64>,
    lag: Lag,
}

impl Post {
    /// `growth` is the fastest that the machine can make, in bytes per second, on so many CPUs.
    pub fn new(scope: Scope, index: usize, growth: u64, cpus: u64) -> Self {
        Self {
            scope,
            index,
            look: Look::default(),
            pressed: false,
            nobody_left: false,
            idle: false,
            gone: false,
            cause: Cause::default(),
            first_victim: None,
            named_at: 0,
            armed_limit: 0,
            recovery_limit: None,
            approach: Approach::default(),
            stretch: stretch(growth),
            approach_armed: false,
            offset: None,
            lag: Lag::new(cpus),
        }
    }

    /// Arms every slot for the first time.
    pub fn settle(&mut self, tripwire: &mut dyn Tripwire, floor: bool) -> io::Result<()> {
        self.look = self.scope.look()?;
        for slot in 0..SLOTS_PER_SCOPE {
            self.set(tripwire, slot, Wire::NEVER)?;
        }
        self.arm(tripwire, floor)
    }

    /// A fresh look; whether the threshold is met follows from it. `add_up` makes the kernel's statistics of the pods
    /// fresh, where they lag.
    pub fn look(
        &mut self,
        woken: u64,
        news: &News,
        hook: MemoryHook,
        add_up: impl FnMut(),
    ) -> io::Result<()> {
        let limits = self.scope.limits();
        let was_pressed = self.pressed;
        let is_pressing = |available: u64| {
            available < limits.threshold || (was_pressed && available < limits.resolved)
        };
        let is_short = |look: &Look, missing| is_pressing(look.available.saturating_add(missing));
        self.look = self
            .lag
            .look(|| self.scope.look(), is_short, add_up, after)?;
        self.gone = false;
        self.pressed = is_pressing(self.look.available);
        if self.pressed && !was_pressed {
            self.cause = cause(woken, news, hook);
            self.approach.reset();
        }
        self.approach_armed &= !news.approached;
        Ok(())
    }

    /// The threshold is not met: the wires follow the ground.
    pub fn keep(
        &mut self,
        tripwire: &mut dyn Tripwire,
        news: &News,
        was_pressed: bool,
        floor: bool,
    ) -> io::Result<()> {
        self.nobody_left = false;
        self.idle = false;
        if self.recovery_limit.take().is_some() {
            self.set(tripwire, slot::RECOVERY, Wire::NEVER)?;
        }
        if self.is_calibrated(tripwire) {
            self.calibrate(tripwire, news.counter, floor)
        } else if was_pressed
            || news.trip.is_some()
            || self.ground_has_moved()
            || self.has_left_the_stretch(tripwire)
        {
            self.arm(tripwire, floor)
        } else {
            Ok(())
        }
    }

    /// Nothing is left to do: the wire of the way back is armed where it is.
    pub fn await_recovery(&mut self, tripwire: &mut dyn Tripwire) -> io::Result<()> {
        let Some(offset) = self.offset_on(tripwire) else {
            return Ok(());
        };
        let limit = self
            .limit(self.scope.limits().resolved, offset)
            .saturating_sub(1);
        let stays = |armed: u64| armed.abs_diff(limit) < REARM_BYTES;
        if self.recovery_limit.is_some_and(stays) {
            return Ok(());
        }
        self.recovery_limit = Some(limit);
        let wire = Wire {
            limit,
            direction: Direction::Falling,
            act: Act::Wake,
        };
        self.set(tripwire, slot::RECOVERY, wire)
    }

    /// Whether the scope has moved since the kernel was told whom it may kill: by a sixteenth of what is left, for far
    /// from the floor an older answer does no harm.
    pub fn has_moved(&self) -> bool {
        self.look.available.abs_diff(self.named_at) >= (self.distance() / 16).max(NAMING_BYTES)
    }

    /// The kernel has been told.
    pub fn is_named(&mut self) {
        self.named_at = self.look.available;
    }

    /// Bytes that may still be used before the threshold is met.
    pub fn distance(&self) -> u64 {
        let threshold = self.scope.limits().threshold;
        self.look.available.saturating_sub(threshold)
    }

    /// How to wait, if the threshold is about to be crossed.
    pub fn approach(&mut self, now: u64) -> Option<Waiting> {
        self.approach.look(now, self.distance(), self.stretch)
    }

    /// Whether a crossing trips a wire, once the hook is attached.
    pub fn is_armed(&self, tripwire: &dyn Tripwire) -> bool {
        self.offset_on(tripwire).is_some()
    }

    /// The scope is another one: nothing that was known is true any more.
    pub fn replace(&mut self, scope: &mut Scope) {
        std::mem::swap(&mut self.scope, scope);
        (self.armed_limit, self.recovery_limit) = (0, None);
        (self.offset, self.gone) = (None, false);
        self.lag.forget();
        self.approach.reset();
    }

    fn set(&self, tripwire: &mut dyn Tripwire, slot: u32, wire: Wire) -> io::Result<()> {
        tripwire.arm(slot_of(self.index, slot), wire)
    }

    /// Whether the counter and the usage are different things here.
    fn is_calibrated(&self, tripwire: &dyn Tripwire) -> bool {
        self.scope.is_machine() && tripwire.has_program()
    }

    fn offset_on(&self, tripwire: &dyn Tripwire) -> Option<i64> {
        match self.offset {
            None if self.is_calibrated(tripwire) => None,
            known => Some(known.unwrap_or(0)),
        }
    }

    /// The counter and the usage differ by what only one of them counts, and that changes: each look asks the kernel
    /// for the counter, by a wire that the next charge trips, and the answer sets the wires anew.
    fn calibrate(
        &mut self,
        tripwire: &mut dyn Tripwire,
        counter: Option<u64>,
        floor: bool,
    ) -> io::Result<()> {
        let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        match counter {
            Some(counter) => {
                self.offset = Some(signed(counter) - signed(self.look.usage));
                self.arm(tripwire, floor)
            }
            None => {
                let at_the_next_charge = Wire {
                    limit: 0,
                    ..Wire::NEVER
                };
                self.set(tripwire, slot::CALIBRATION, at_the_next_charge)
            }
        }
    }

    fn limit(&self, amount: u64, offset: i64) -> u64 {
        self.scope
            .usage_limit(amount, self.look.discounted)
            .saturating_add_signed(offset)
    }

    /// By enough to set the wires anew: by a page close to the threshold, where 256 KiB too far are as much too late.
    fn ground_has_moved(&self) -> bool {
        let limit = self.limit(self.scope.limits().threshold, 0);
        let enough = match self.distance() <= self.stretch {
            true => page_size(),
            false => REARM_BYTES,
        };
        limit.abs_diff(self.armed_limit) >= enough
    }

    /// By so much that its wire does not trip at once again.
    fn has_left_the_stretch(&self, tripwire: &dyn Tripwire) -> bool {
        tripwire.has_program() && !self.approach_armed && self.distance() > self.stretch * 3 / 2
    }

    fn arm(&mut self, tripwire: &mut dyn Tripwire, floor: bool) -> io::Result<()> {
        let Some(offset) = self.offset_on(tripwire) else {
            return self.calibrate(tripwire, None, floor);
        };
        let limits = self.scope.limits();
        let wire = |amount: u64, act: Act| Wire {
            limit: self.limit(amount, offset),
            direction: Direction::Rising,
            act,
        };
        let hard = wire(limits.threshold, Act::Wake);
        let ahead = |floor: u64| {
            let ahead = floor.saturating_add(BATCH_BYTES).min(limits.threshold);
            ahead.max(floor)
        };
        let floor = limits.floor.filter(|_| floor);
        let floor = floor.map(|amount| wire(ahead(amount), Act::Kill));
        let approach = wire(limits.threshold.saturating_add(self.stretch), Act::Wake);
        self.armed_limit = hard.limit;
        self.set(tripwire, slot::HARD, hard)?;
        self.set(tripwire, slot::FLOOR, floor.unwrap_or(Wire::NEVER))?;
        // Other rungs have no wire to spare.
        self.approach_armed = tripwire.has_program() && self.distance() > self.stretch;
        let approach = if self.approach_armed {
            approach
        } else {
            Wire::NEVER
        };
        self.set(tripwire, slot::APPROACH, approach)
    }
}

fn cause(woken: u64, news: &News, hook: MemoryHook) -> Cause {
    match news.trip {
        Some(trip) => Cause {
            crossed: trip.time_ns,
            woken,
            usage: trip.usage * page_size(),
            hook: Some(hook),
        },
        None => Cause {
            woken,
            // The wire was set anew just before it would have tripped.
            hook: news.counter.map(|_| hook),
            ..Cause::default()
        },
    }
}
