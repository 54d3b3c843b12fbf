//! One scope with what the loop knows of it: its pressure, and its wires.

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
    memory_scope::{Look, Scope},
    sampling,
    trigger::memory::{Trip, page_size},
};
use evictd_sys::clock::after;

use crate::{
    spin::{Approach, Waiting, stretch},
    stat_lag::Lag,
};
use machine_share::MachineShare;

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
    /// Where the floor's wire lies; 0 before it was set.
    floor_limit: u64,
    recovery_limit: Option<u64>,
    approach: Approach,
    /// Bytes before the threshold at which its wire lies.
    stretch: u64,
    /// That wire has not tripped since it was set.
    approach_armed: bool,
    /// What the counter reads above the usage, in bytes; `None` while that is not known.
    offset: Option<i64>,
    lag: Lag,
    /// When pods may go for it.
    pub pace: Pace,
    machine: MachineShare,
    /// When the kernel was last made to add up its statistics, and the bytes that could be used then before memory was
    /// short.
    added_up: Option<(u64, u64)>,
}

impl Post {
    /// `growth` is the fastest that the machine can make, in bytes per second, on so many CPUs.
    pub fn new(scope: Scope, index: usize, growth: u64, cpus: u64) -> Self {
        let lag = Lag::new(cpus, scope.cgroup().counts_kernel_memory());
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
            floor_limit: 0,
            recovery_limit: None,
            approach: Approach::default(),
            stretch: stretch(growth),
            approach_armed: false,
            offset: None,
            lag,
            pace: Pace::default(),
            machine: MachineShare::open(),
            added_up: None,
        }
    }

    /// A fresh look; whether the threshold is met follows from it. `add_up` makes the kernel's statistics of the pods
    /// fresh, where they lag; `growth` is the fastest that the machine can make, in bytes per second.
    pub fn look(
        &mut self,
        woken: u64,
        news: &News,
        hook: MemoryHook,
        growth: u64,
        mut add_up: impl FnMut(),
    ) -> io::Result<()> {
        let limits = self.scope.limits();
        let was_pressed = self.pressed;
        let is_pressing = |available: u64| {
            available < limits.threshold || (was_pressed && available < limits.resolved)
        };
        let is_short = |look: &Look, missing| is_pressing(look.available.saturating_add(missing));
        if self.depends_on_statistics(woken, growth) {
            add_up();
        }
        let (look, missing) = self
            .lag
            .look(|| self.scope.look(), is_short, add_up, after)?;
        self.look = look;
        self.gone = false;
        self.pressed = is_pressing(self.look.available);
        if !self.scope.is_machine() {
            self.ask_the_machine(missing);
        }
        if self.pressed && !was_pressed {
            self.cause = cause(woken, news, hook);
            self.approach.reset();
        }
        self.approach_armed &= !news.approached;
        Ok(())
    }

    /// What the machine's counters tell of what is charged and is not in the cgroup's statistics.
    fn ask_the_machine(&mut self, missing: u64) {
        if missing > 0 {
            let cache = self.machine.cache_in(missing);
            self.look.has_reclaimable(cache);
        } else if !self.pressed {
            self.machine.settle();
        }
        if self.scope.cgroup().version() == Version::V1 {
            let slab = self.machine.slab_in(self.look.kernel);
            self.look.has_reclaimable(slab);
        }
    }

    /// Whether the counter alone does not tell what is short, and the fastest growth could have used up since the last time
    /// what the statistics said was left: page cache that they still show may have become something else.
    fn depends_on_statistics(&mut self, now: u64, growth: u64) -> bool {
        let Shortage {
            threshold, room, ..
        } = self.look.shortage;
        let free = self.scope.capacity().saturating_sub(self.look.usage);
        if self.scope.is_machine() || free >= threshold.saturating_mul(2) {
            self.added_up = None;
            return false;
        }
        let is_due = self.added_up.is_none_or(|(since, left)| {
            let lasts = sampling::next_look(left, growth).as_nanos();
            u128::from(now.saturating_sub(since)) >= lasts
        });
        if is_due {
            self.added_up = Some((now, room.at_once.saturating_sub(threshold)));
        }
        is_due
    }

    /// What is short as the pace is decided by it; `shadow` bytes are taken for given back already, `dying` bytes are victims'.
    pub fn shortage(&self, shadow: u64, dying: u64) -> Shortage {
        let seen = self.look.shortage;
        let used = seen.used.saturating_sub(shadow);
        Shortage {
            used,
            dying: dying.min(used),
            room: Room {
                at_once: seen.room.at_once.saturating_add(shadow),
                ..seen.room
            },
            ..seen
        }
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

    /// The scope is another one: nothing that was known is true any more.
    pub fn replace(&mut self, scope: &mut Scope) {
        std::mem::swap(&mut self.scope, scope);
        (self.armed_limit, self.floor_limit, self.recovery_limit) = (0, 0, None);
        (self.offset, self.gone) = (None, false);
        self.lag.forget();
        self.approach.reset();
        self.pace.reset();
        self.machine.forget();
        self.added_up = None;
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
