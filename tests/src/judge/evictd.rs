//! evictd's own core, called as the fast path calls it (`agent/fastpath/src/{monitor/{evict,schedule},in_flight,scope}.rs`).

use std::time::Duration;

use evictd_engine::{
    Candidate, CandidateState, ReleaseTarget,
    growers::{self, Grower, WATCHED},
    growth::Room,
    growth_of,
    pace::{Decision, Judged, NextVictim, Pace, Pending, Relief, Shortage, Urgency},
    spare_in_vain, spare_still,
    terminating::{Fate, Remains, Terminating},
};
use evictd_node::sampling::{self, Nearness};

use super::{
    course::{Course, Strategy},
    world::{MS, Reading, ScopeKind, World},
};

/// As the fast path's: how many victims may be on their way.
const MAX_IN_FLIGHT: usize = 64;
/// As the fast path's: the memory guard's amount in bytes.
const GUARD: u64 = 100 << 20;
/// As the fast path's: how fast page cache is taken to be written.
const WRITES_PER_SECOND: u64 = 32 << 20;
const IDLE: Duration = Duration::from_millis(20);
const HOOKED_FLOOR: Duration = Duration::from_millis(10);
/// As the fast path's: what a victim has brought is told at the latest so long after its end.
const TELL: u64 = 2000 * MS;

/// As the fast path's: what has to move for all pods to be asked anew, in bytes, and how long an answer lasts otherwise.
const NAMING: u64 = 2 << 20;
const NAMED_FOR: u64 = 1000 * MS;
const OLDER: u64 = 1000 * MS;
const STILL: u64 = 1 << 20;

/// The fastest growth that one CPU makes, in bytes per second.
const FASTEST_OF_A_CPU: u64 = 4 << 30;
/// As `StatLag`'s: what may be new in no line, and what each CPU keeps to itself; in bytes.
const NEW: u64 = 8 << 20;
const KEPT_BY_A_CPU: u64 = 3 * 64 * 4096;
/// What each CPU may keep of two counters of the machine: 125 pages each (`vm_stat`'s threshold), in bytes.
const BLUR_OF_A_CPU: u64 = 2 * 125 * 4096;

/// What the kubelet counts as available.
fn counted(world: &World<'_>, reading: &Reading) -> u64 {
    let working_set = reading.usage.saturating_sub(reading.inactive);
    world.incident.capacity.saturating_sub(working_set)
}

/// What the fast path knows between two looks.
pub struct Evictd {
    pace: Pace,
    in_flight: Vec<Victim>,
    next: u64,
    restart: Option<u64>,
    trigger: Option<f64>,
    pressed: bool,
    growers: Growers,
    /// As `MemoryMonitor`: what the pods hold that grow most.
    watched: growers::Growers,
    /// As `ScopeMonitor`: when the statistics were last flushed because all depends on them, and what they showed.
    flushed: Option<(u64, u64)>,
    shortage: Shortage,
}

/// As `PodTable`: what each pod used when all were asked last, and by how much it has grown.
#[derive(Default)]
struct Growers {
    at: u64,
    /// What was available then.
    available: u64,
    usages: Vec<u64>,
    /// Bytes per second; 0 where that is not known.
    grew: Vec<u64>,
    /// The same as of a second or two before, and as much before again.
    older: [(u64, Vec<u64>); 2],
}

impl Growers {
    /// As `PodTable::note_growth`.
    fn note(&mut self, world: &World<'_>) {
        let elapsed = world.now - self.at;
        if elapsed < MS {
            return;
        }
        let count = world.incident.pods.len();
        let usages: Vec<u64> = (0..count).map(|p| world.usage(p).unwrap_or(0)).collect();
        let per_second = |(now, before): (&u64, &u64)| {
            let grown = u128::from(now.saturating_sub(*before));
            (grown * u128::from(1000 * MS) / u128::from(elapsed)) as u64
        };
        self.grew = match self.usages.is_empty() {
            true => vec![0; count],
            false => usages.iter().zip(&self.usages).map(per_second).collect(),
        };
        if self.at - self.older[0].0 >= OLDER {
            self.older.swap(0, 1);
            self.older[0] = (self.at, self.usages.clone());
        }
        (self.at, self.usages) = (world.now, usages);
    }

    /// As `PodTable::still_since`: since when a pod is known not to have grown.
    fn still_since(&self, pod: usize, usage: u64) -> Option<u64> {
        let is_still = |older: &&(u64, Vec<u64>)| {
            let was = older.1.get(pod);
            was.is_some_and(|was| usage.abs_diff(*was) <= STILL)
        };
        let (at, _) = self.older.iter().rev().find(is_still)?;
        Some(*at)
    }

    /// As `MemoryMonitor::name_when_due`: asks all pods when the node has moved, or after a second.
    fn note_when_due(&mut self, world: &World<'_>, look: &Look) {
        let distance = look.available.saturating_sub(look.shortage.threshold);
        let has_moved = look.available.abs_diff(self.available) >= (distance / 16).max(NAMING);
        if has_moved || world.now - self.at >= NAMED_FOR {
            self.available = look.available;
            self.note(world);
        }
    }
}

struct Victim {
    pod: usize,
    terminating: Terminating,
    told: bool,
}

struct Look {
    /// As the trigger and the wait know it.
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
            trigger: None,
            pressed: false,
            growers: Growers::default(),
            watched: growers::Growers::default(),
            flushed: None,
            shortage: Shortage::default(),
        }
    }

    /// What the statistics show, flushed where `StatLag::sample` would have them flushed, and how much is in none of them yet.
    fn read(&mut self, world: &World<'_>) -> (Reading, u64) {
        let reading = world.read();
        if self.depends_on_statistics(world, &reading) {
            return (world.read_flushed(), 0);
        }
        let missing = reading.usage.saturating_sub(reading.listed);
        let cpus = world.incident.fastest / FASTEST_OF_A_CPU;
        let slack = NEW + cpus * KEPT_BY_A_CPU;
        let is_short = || counted(world, &reading).saturating_add(missing) < world.limits().0;
        match world.incident.scope {
            // Nothing stands beside a root's statistics.
            ScopeKind::Machine => (reading, 0),
            _ if missing > slack && !is_short() => (world.read_flushed(), 0),
            _ => (reading, missing),
        }
    }

    /// As `ScopeMonitor::depends_on_statistics`.
    fn depends_on_statistics(&mut self, world: &World<'_>, reading: &Reading) -> bool {
        let Shortage {
            threshold, room, ..
        } = self.shortage;
        let free = world.incident.capacity.saturating_sub(reading.usage);
        if world.incident.scope == ScopeKind::Machine || free >= threshold.saturating_mul(2) {
            self.flushed = None;
            return false;
        }
        let is_due = self.flushed.is_none_or(|(since, left)| {
            let lasts = sampling::next_look(left, world.incident.fastest).as_nanos();
            u128::from(world.now - since) >= lasts
        });
        if is_due {
            self.flushed = Some((world.now, room.at_once.saturating_sub(threshold)));
        }
        is_due
    }

    /// The look as `Scope::look` makes it of the statistics.
    fn see(&mut self, world: &World<'_>) -> Look {
        let incident = world.incident;
        let (reading, unlisted) = self.read(world);
        let (threshold, resolved) = world.limits();
        let capacity = incident.capacity;
        let counted = counted(world, &reading);
        let cache = match incident.scope {
            // `MemAvailable` is made of counters of which each CPU keeps a little to itself.
            ScopeKind::Machine => {
                let blur = incident.fastest / FASTEST_OF_A_CPU * BLUR_OF_A_CPU;
                let (shown, flushed) = (reading.cache(), world.read_flushed().cache());
                shown.clamp(flushed.saturating_sub(blur), flushed.saturating_add(blur))
            }
            _ => reading.cache(),
        };
        let reclaimable = cache.min(reading.usage);
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
                    slowly: unwritten,
                    per_second: WRITES_PER_SECOND,
                    swap: reading.swap,
                },
                swap_free: reading.swap,
                guard: word.map_or(0, |_| GUARD.min(threshold)),
                unlisted,
                ..Shortage::default()
            },
        }
    }

    /// As `MemoryMonitor::watch_growers`; no pod has the number 0.
    fn watch_growers(&mut self, world: &World<'_>) {
        let grew = self.growers.grew.iter().zip(1_u64..);
        let mut most: Vec<_> = grew.filter(|(grew, _)| **grew > 0).collect();
        most.sort_unstable_by_key(|(grew, _)| std::cmp::Reverse(**grew));
        for (_, number) in most.into_iter().take(WATCHED) {
            self.watched
                .note(number, world.now, world.held(number as usize - 1));
        }
    }

    /// As `MemoryMonitor::spare_in_vain`.
    fn spare_in_vain(&self, world: &World<'_>, candidates: &mut [Candidate], growth: u64) {
        let was_lately = self.pace.has_evicted_lately(world.now);
        let may_go = |grower: &Grower| {
            let candidate = candidates.get(grower.pod as usize - 1);
            candidate.is_some_and(|c| c.state == CandidateState::Eligible)
        };
        let growing = self.watched.growing(world.now).filter(may_go);
        let main = growing.max_by_key(|grower| grower.growth);
        let Some(main) = main.filter(|main| was_lately && main.growth >= growth / 2) else {
            return;
        };
        spare_in_vain(candidates, world.rules(), main.pod as usize - 1, growth);
    }

    fn dying(&self) -> usize {
        let is_dying = |v: &&Victim| v.terminating.exited().is_none() && !v.terminating.is_stuck();
        self.in_flight.iter().filter(is_dying).count()
    }

    /// As `MemoryMonitor::resolve_pressure`.
    fn resolve_pressure<'a>(
        &mut self,
        world: &mut World<'a>,
        seen: &Shortage,
        course: &mut Course<'a>,
    ) {
        let now = world.now;
        let mut pending = Pending::default();
        let mut seen = *seen;
        let seen = &mut seen;
        for victim in &self.in_flight {
            seen.dying += world.held(victim.pod);
            victim
                .terminating
                .add_to(&mut pending, now, world.left(victim.pod));
        }
        self.pace.observe(now, seen);
        let Decision::Evict { urgency, .. } = self.pace.decide(now, seen, pending) else {
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
        let numbers = match urgency {
            Urgency::Urgent {
                exhausted_in,
                growth,
            } => format!(
                " (nothing left in {:.4} s at {} MiB/s, {} MiB pending)",
                exhausted_in as f64 / 1e9,
                growth >> 20,
                pending.amount >> 20
            ),
            Urgency::Paced { .. } => String::new(),
        };
        self.growers.note(world);
        self.watch_growers(world);
        let grew = |pod: usize| self.growers.grew.get(pod).copied().unwrap_or(0);
        let growers = growth_of(&candidates, &self.growers.grew);
        let mut relief = match urgency {
            Urgency::Urgent { growth, .. } => Some(Relief::new(
                &Judged {
                    now,
                    pace: self.pace,
                    seen: *seen,
                    pending,
                    ..Judged::default()
                },
                growth,
                growers,
            )),
            _ => None,
        };
        while room > 0 {
            let Some(next) = relief.map_or(Some(NextVictim::First), |relief| relief.next()) else {
                break;
            };
            match (next, urgency) {
                (NextVictim::Growing, _) => spare_still(&mut candidates, &self.growers.grew),
                (NextVictim::First, Urgency::Urgent { growth, .. }) => {
                    self.spare_in_vain(world, &mut candidates, growth);
                }
                _ => {}
            }
            let victims = world.choose(&mut candidates, ReleaseTarget::Amount(1), 1);
            let Some(&pod) = victims.first() else { break };
            // Empty already: it gives nothing.
            if !world.populated(pod) {
                continue;
            }
            let working_set = candidates[pod].usage;
            let expected = working_set.min(world.held(pod));
            let shared = world.shared(pod);
            course.kill(world, pod, why, &numbers);
            let terminating = Terminating::new(now, expected, shared);
            let mut own = Pending::default();
            terminating.add_to(&mut own, now, Some(expected));
            self.in_flight.push(Victim {
                pod,
                terminating,
                told: false,
            });
            match self.growers.still_since(pod, working_set) {
                Some(since) => {
                    let held = world.held(pod);
                    self.pace.evicted_that_has_not_grown(now, held, since);
                }
                None => self.pace.evicted(now),
            }
            room = room.saturating_sub(1);
            match &mut relief {
                Some(relief) => relief.add(grew(pod), own),
                None => break,
            }
        }
    }

    /// As `InFlight::step`.
    fn finish(&mut self, world: &World<'_>, look: &Look) {
        let now = world.now;
        self.in_flight.retain_mut(|victim| {
            let populated = world.populated(victim.pod);
            let usage = world.left(victim.pod);
            let fate = victim
                .terminating
                .observe(now, Remains { populated, usage });
            let is_enough =
                victim.terminating.exited().is_some() && look.available >= look.shortage.threshold;
            let since = victim.terminating.exited();
            let since = since.unwrap_or(victim.terminating.signalled());
            let is_late = now.saturating_sub(since) > TELL && fate != Fate::Dying;
            victim.told |= is_enough || is_late;
            !(victim.told && fate == Fate::Released)
        });
    }

    /// As `MemoryMonitor::next_look`, in nanoseconds from now.
    fn wait(&self, world: &World<'_>, look: &Look) -> u64 {
        let fastest = world.incident.fastest;
        let distance = look.available.saturating_sub(look.shortage.threshold);
        let far = sampling::next_look(distance, fastest);
        let wait = if self.pressed && self.dying() > 0 {
            Duration::from_millis(1)
        } else if self.pressed {
            sampling::next_look(look.shortage.room.at_once / 4, fastest).min(IDLE)
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

    fn trigger(&self) -> Option<f64> {
        self.trigger
    }

    fn tripped(&mut self, world: &World<'a>) {
        self.next = self.next.min(world.now + world.incident.wake);
    }

    fn look(&mut self, world: &mut World<'a>, course: &mut Course<'a>) {
        if self.restart.is_some_and(|restart| restart <= world.now) {
            // The next agent is told of the victims of the one before.
            let in_flight = std::mem::take(&mut self.in_flight);
            *self = Self {
                in_flight,
                ..Self::new(None)
            };
        }
        let look = self.see(world);
        self.shortage = look.shortage;
        let (threshold, resolved) = (look.shortage.threshold, look.shortage.resolved);
        self.pressed = look.available < threshold || (self.pressed && look.available < resolved);
        self.resolve_pressure(world, &look.shortage, course);
        self.finish(world, &look);
        if !self.pressed || self.dying() == 0 {
            self.growers.note_when_due(world, &look);
        }
        self.next = world.now + self.wait(world, &look);
        if let Some(restart) = self.restart {
            self.next = self.next.min(restart.max(world.now + 1));
        }
        let limit = world.incident.capacity - threshold + look.discounted;
        self.trigger = (world.incident.has_program && !self.pressed).then_some(limit as f64);
    }
}
