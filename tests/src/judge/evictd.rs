//! evictd's own core, called as the reflex calls it (`reflex/{relieve,waiting,inflight,scope}.rs`).

use std::time::Duration;

use evictd::{
    engine::{
        CandidateState, Demand,
        growth::Room,
        pace::{Decision, Pace, Pending, Shortage, Urgency},
        terminating::{Fate, Remains, Terminating},
    },
    observe::deadline::{self, Nearness},
};

use super::{
    course::{Course, Strategy},
    world::{MS, ScopeKind, World},
};

/// As the reflex's: how many victims may be on their way.
const MAX_IN_FLIGHT: usize = 64;
/// As the reflex's: the memory guard's amount in bytes.
const GUARD: u64 = 100 << 20;
/// As the reflex's: how fast page cache is taken to be written.
const WRITES_PER_SECOND: u64 = 32 << 20;
const IDLE: Duration = Duration::from_millis(20);
const HOOKED_FLOOR: Duration = Duration::from_millis(10);
/// As the reflex's: what a victim has brought is told at the latest so long after its SIGKILL.
const TELL: u64 = 2000 * MS;

/// What the reflex knows between two looks.
pub struct Evictd {
    pace: Pace,
    in_flight: Vec<Victim>,
    next: u64,
    restart: Option<u64>,
    wire: Option<f64>,
    pressed: bool,
}

struct Victim {
    pod: usize,
    terminating: Terminating,
    told: bool,
}

/// What one look has found.
struct Look {
    /// As the wire and the wait know it.
    available: u64,
    discounted: u64,
    shortage: Shortage,
}

impl Evictd {
    /// The agent is started at the beginning.
    pub fn new(restart: Option<u64>) -> Self {
        Self {
            pace: Pace::default(),
            in_flight: Vec::new(),
            next: 0,
            restart,
            wire: None,
            pressed: false,
        }
    }

    /// The look as `Scope::look` makes it of the statistics.
    fn see(world: &World<'_>) -> Look {
        let incident = world.incident;
        let reading = world.read();
        let (threshold, resolved) = world.limits();
        let capacity = incident.capacity;
        let counted = capacity.saturating_sub(reading.usage.saturating_sub(reading.inactive));
        let reclaimable = (reading.inactive + reading.active).min(reading.usage);
        let used = reading.usage - reclaimable;
        let left = capacity.saturating_sub(used);
        let free = capacity.saturating_sub(reading.usage);
        let word = match incident.scope {
            ScopeKind::V1 => Some(free + reading.inactive.saturating_sub(reading.dirty)),
            ScopeKind::V2 => None,
            ScopeKind::Machine => Some(left),
        };
        let on_scale = word.map(|left| left + threshold.saturating_sub(GUARD));
        let available = on_scale.map_or(counted, |left| left.min(counted));
        let unwritten = match incident.scope {
            ScopeKind::V1 => reading.dirty.min(reclaimable).min(left),
            _ => 0,
        };
        let machine = on_scale.filter(|_| incident.scope == ScopeKind::Machine);
        Look {
            available,
            discounted: reading.inactive.saturating_sub(counted - available),
            shortage: Shortage {
                available: machine.map_or(counted, |left| left.min(counted)),
                threshold,
                resolved,
                used,
                room: Room {
                    at_once: left - unwritten,
                    slowly: unwritten + reading.swap.min(used),
                    per_second: WRITES_PER_SECOND,
                },
                guard: word.map_or(0, |_| GUARD.min(threshold)),
            },
        }
    }

    fn dying(&self) -> usize {
        let is_dying = |v: &&Victim| v.terminating.exited().is_none() && !v.terminating.is_stuck();
        self.in_flight.iter().filter(is_dying).count()
    }

    /// As `Watch::relieve`.
    fn relieve<'a>(&mut self, world: &mut World<'a>, seen: &Shortage, course: &mut Course<'a>) {
        let now = world.now;
        let mut pending = Pending::default();
        for victim in &self.in_flight {
            let usage = world.usage(victim.pod);
            victim.terminating.add_to(&mut pending, now, usage);
        }
        self.pace.observe(now, seen);
        let Decision::Evict { urgency, amount } = self.pace.decide(now, seen, pending) else {
            return;
        };
        let mut room = MAX_IN_FLIGHT
            .saturating_sub(self.dying())
            .min(MAX_IN_FLIGHT.saturating_sub(self.in_flight.len()));
        let in_flight = &self.in_flight;
        let mut candidates = world.candidates(|pod| in_flight.iter().any(|v| v.pod == pod));
        let eligible = candidates
            .iter()
            .filter(|c| c.state == CandidateState::Eligible);
        let attainable = eligible.map(|c| c.usage).fold(0, u64::saturating_add);
        if !self.pace.is_worth_it(seen, urgency, attainable, pending) {
            return;
        }
        let why = match urgency {
            Urgency::Urgent { .. } => "urgent",
            Urgency::Paced { only_cache: true } => "paced, page cache",
            Urgency::Paced { only_cache: false } => "paced",
        };
        let mut wanted = amount.filter(|amount| *amount <= attainable).unwrap_or(1);
        while wanted > 0 && room > 0 {
            let victims = world.choose(&mut candidates, Demand::Amount(wanted), room);
            if victims.is_empty() {
                break;
            }
            for pod in victims {
                // Empty already: it gives nothing.
                if !world.populated(pod) {
                    continue;
                }
                let expected = candidates[pod].usage;
                let shared = world.shared(pod);
                course.kill(world, pod, why);
                self.in_flight.push(Victim {
                    pod,
                    terminating: Terminating::new(now, expected, shared),
                    told: false,
                });
                self.pace.evicted(now);
                wanted = wanted.saturating_sub(expected.max(1));
                room = room.saturating_sub(1);
            }
        }
    }

    /// As `InFlight::step`.
    fn finish(&mut self, world: &World<'_>, look: &Look) {
        let now = world.now;
        self.in_flight.retain_mut(|victim| {
            let populated = world.populated(victim.pod);
            let usage = world.usage(victim.pod);
            let fate = victim
                .terminating
                .observe(now, Remains { populated, usage });
            let is_enough =
                victim.terminating.exited().is_some() && look.available >= look.shortage.threshold;
            let is_late =
                now.saturating_sub(victim.terminating.signalled()) > TELL && fate != Fate::Dying;
            victim.told |= is_enough || is_late;
            !(victim.told && fate == Fate::Released)
        });
    }

    /// As `Watch::next_look`, in nanoseconds from now.
    fn wait(&self, world: &World<'_>, look: &Look) -> u64 {
        let fastest = world.incident.fastest;
        let distance = look.available.saturating_sub(look.shortage.threshold);
        let far = deadline::next_look(distance, fastest);
        let wait = if self.pressed && self.dying() > 0 {
            Duration::from_millis(1)
        } else if self.pressed {
            deadline::next_look(look.shortage.room.at_once / 4, fastest).min(IDLE)
        } else if !world.incident.has_program {
            far
        } else if Nearness::new(fastest).wants_hook(distance, true) {
            far.max(HOOKED_FLOOR)
        } else {
            Nearness::new(fastest).next_look(distance)
        };
        u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX)
    }
}

impl<'a> Strategy<'a> for Evictd {
    fn next_look(&self) -> u64 {
        self.next
    }

    fn wire(&self) -> Option<f64> {
        self.wire
    }

    fn tripped(&mut self, world: &World<'a>) {
        self.next = self.next.min(world.now + world.incident.wake);
    }

    fn look(&mut self, world: &mut World<'a>, course: &mut Course<'a>) {
        if self.restart.is_some_and(|restart| restart <= world.now) {
            *self = Self::new(None);
        }
        let look = Self::see(world);
        let (threshold, resolved) = (look.shortage.threshold, look.shortage.resolved);
        self.pressed = look.available < threshold || (self.pressed && look.available < resolved);
        self.relieve(world, &look.shortage, course);
        self.finish(world, &look);
        self.next = world.now + self.wait(world, &look);
        if let Some(restart) = self.restart {
            self.next = self.next.min(restart.max(world.now + 1));
        }
        let limit = world.incident.capacity - threshold + look.discounted;
        self.wire = (world.incident.has_program && !self.pressed).then_some(limit as f64);
    }
}
