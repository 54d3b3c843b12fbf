//! The pods that grow most, by what only their end gives back.
//!
//! A usage counter also grows with page cache. So the few pods whose counters have grown most are read in full at each
//! look.

use crate::{
    growth::{Grown, Growth, Sample},
    units::{MS, SECOND},
};

/// Pods that are watched at once.
pub const WATCHED: usize = 8;
/// Pods of these that are watched as long as none was evicted.
pub const WATCHED_BEFOREHAND: usize = 4;
/// Pods of which a decision knows that they grow, by their counters too.
pub const MAX_GROWERS: usize = 64;
/// Cgroups with limits of these pods that are watched at once: a pod has seldom more than eight containers.
pub const WATCHED_LIMITED: usize = 16 * WATCHED;
/// A huge page, in bytes.
const HUGE_PAGE: u64 = 2 << 20;
/// The window, in nanoseconds, over which growth is compared with that of the whole scope.
pub(crate) const STEADY_NS: u64 = 250 * MS;
/// Growth that was read longer ago, in nanoseconds, is not the present one.
const RECENT_NS: u64 = 100 * MS;
/// A cgroup meets its limit where less than this part of it is left: page cache and what CPUs charge in advance.
const AT_LIMIT: u64 = 32;
/// A cgroup that was read longer ago, in nanoseconds, has no steady growth. Those that stand still are read once a second.
const FORGET_NS: u64 = 3 * SECOND / 2;

/// CPUs that charge for one cgroup at once: of more seldom all do, and what is growth of the scope has to be growth of a
/// pod.
const CPUS_AT_ONCE: u64 = 64;

/// Computes the bytes by which a usage counter may jump: a huge page, or what all CPUs together charge in advance, each a
/// batch.
pub fn counter_jump(cpus: u64, batch_bytes: u64) -> u64 {
    HUGE_PAGE.max(cpus.min(CPUS_AT_ONCE).saturating_mul(batch_bytes))
}

/// What some cgroups of pods or of containers held at the last looks. Allocates nothing once it is there; times are
/// nanoseconds of one monotonic clock.
#[derive(Clone, Debug)]
pub struct Growers {
    watched: Box<[Watched]>,
    /// See [`counter_jump`]: less is no growth.
    jump: u64,
}

/// What one pod grows by, in bytes per second, by what only its end gives back.
#[derive(Clone, Copy, Debug)]
pub struct Grower {
    /// Position of the pod.
    pub position: usize,
    /// The fastest growth that was seen, over a shortest time at least where it is known for so long; 0 where none was. A buffer
    /// that comes and goes is none.
    pub growth: u64,
    /// The same of one that grows by less than counters jump.
    pub steady: u64,
}

impl Grower {
    /// No pod.
    pub const NONE: Self = Self {
        position: usize::MAX,
        growth: 0,
        steady: 0,
    };
}

/// The largest of some amounts, with their places, the least one first; 0: none.
#[derive(Debug)]
pub struct Largest<const N: usize>(pub [(u64, usize); N]);

impl<const N: usize> Default for Largest<N> {
    fn default() -> Self {
        Self([(0, usize::MAX); N])
    }
}

impl<const N: usize> Largest<N> {
    /// Takes the place of the least one, if it is larger. Does not allocate.
    pub fn offer(&mut self, amount: u64, place: usize) {
        if let Some(least) = self.0.first_mut().filter(|least| amount > least.0) {
            *least = (amount, place);
            self.0.sort_unstable();
        }
    }
}

/// One cgroup, by its id; 0: none.
#[derive(Clone, Copy, Debug, Default)]
struct Watched {
    id: u64,
    /// Time since which it is watched.
    since: u64,
    /// Time at which it was last among the cgroups that matter most.
    placed: u64,
    growth: Growth,
}

impl Watched {
    fn observe(&mut self, time: u64, held: u64) {
        let sample = Sample {
            time,
            amount: held,
            ..Sample::default()
        };
        self.growth.observe(sample);
    }
}

impl Growers {
    /// Creates room for `cgroups` cgroups at once, whose counters may [`jump`](counter_jump).
    pub fn new(cgroups: usize, jump: u64) -> Self {
        Self {
            watched: vec![Watched::default(); cgroups].into(),
            jump,
        }
    }

    /// Takes in the bytes that a cgroup holds and only the end of its processes gives back. A new cgroup replaces the
    /// one that was read longest ago: of the cgroups of one look, the caller brings the one that matters least first.
    pub fn note(&mut self, id: u64, time: u64, held: u64) {
        self.note_unless_crowded(id, time, held, u64::MAX);
    }

    /// Takes in the same of one of more cgroups than may find a place: those that were read `since` a time keep theirs, or
    /// all would replace each other, and none would have a past.
    pub fn note_unless_crowded(&mut self, id: u64, time: u64, held: u64, since: u64) {
        let known = self.watched.iter().position(|watched| watched.id == id);
        let oldest = || {
            let oldest = (0..self.watched.len()).min_by_key(|at| self.watched[*at].placed);
            oldest.filter(|at| self.watched[*at].id == 0 || self.watched[*at].placed < since)
        };
        let place = known.or_else(oldest);
        let Some(watched) = place.and_then(|at| self.watched.get_mut(at)) else {
            return;
        };
        if watched.id != id {
            *watched = Watched {
                id,
                since: time,
                ..Watched::default()
            };
        }
        watched.placed = time;
        watched.observe(time, held);
    }

    /// Takes in the same of one that has a place, which it may lose to another one all the same.
    pub fn observe(&mut self, id: u64, time: u64, held: u64) {
        if let Some(watched) = self.watched.iter_mut().find(|watched| watched.id == id) {
            watched.observe(time, held);
        }
    }

    /// What the pod at a `position` grows by, whose cgroup has this `id`, until a moment ago; `None` where that is not known.
    pub fn growth_of(&self, id: u64, position: usize, now: u64, shortest: u64) -> Option<Grower> {
        let watched = self.find(id, now, RECENT_NS)?;
        let growth = watched.growth.fastest_beyond(shortest, self.jump);
        let is_long = now.saturating_sub(watched.since) >= RECENT_NS;
        (growth > 0 || is_long).then_some(Grower {
            position,
            growth,
            steady: watched.growth.fastest_beyond(STEADY_NS, 1),
        })
    }

    /// What a cgroup has grown by steadily: in bytes since a time, and in bytes per second over the last quarter of a
    /// second. Where it has met its `limit` since then the OOM killer ends it, and what it gives back has grown before.
    pub fn steady_growth_of(&self, id: u64, now: u64, since: u64, limit: u64) -> (u64, u64) {
        let growth = self.find(id, now, FORGET_NS).map(|watched| watched.growth);
        let growth = growth.unwrap_or_default();
        let steady = growth.lately(STEADY_NS);
        let (highest, latest) = growth.highest_since(since);
        let grown_to = match highest >= limit - limit / AT_LIMIT {
            true => highest,
            false => latest,
        };
        let grown = grown_to.saturating_sub(growth.amount_at(since, STEADY_NS));
        // What CPUs charge in advance is no growth.
        let grown = if grown < self.jump { 0 } else { grown };
        (grown, steady.map_or(0, Grown::per_second))
    }

    /// Bytes that a cgroup has given back since a look at the node: they are in none of its amounts.
    pub fn given_back_since(&self, id: u64, now: u64, look: u64) -> u64 {
        let watched = self.find(id, now, FORGET_NS);
        watched.map_or(0, |watched| watched.growth.fallen_since(look))
    }

    /// Forgets all cgroups.
    pub fn forget(&mut self) {
        self.watched.fill(Watched::default());
    }

    /// Whether a cgroup was read not long ago.
    pub fn is_watched(&self, id: u64, now: u64) -> bool {
        self.find(id, now, FORGET_NS).is_some()
    }

    fn find(&self, id: u64, now: u64, within: u64) -> Option<&Watched> {
        let is_recent = |time| now.saturating_sub(time) <= within;
        let mut watched = self.watched.iter();
        watched.find(|w| w.id == id && w.growth.latest().is_some_and(is_recent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn growers() -> Growers {
        Growers::new(WATCHED, counter_jump(0, 0))
    }

    /// MiB per second.
    fn growth(growers: &Growers, id: u64, now: u64, shortest: u64) -> u64 {
        let known = growers.growth_of(id, 0, now, shortest);
        known.map_or(0, |grower| grower.growth / MIB)
    }

    fn growing(growers: &Growers, now: u64) -> Vec<(u64, u64)> {
        let all = (1..20).map(|id| (id, growth(growers, id, now, 0)));
        all.filter(|(_, growth)| *growth > 0).collect()
    }

    #[test]
    fn a_growth_is_seen_whether_it_is_slow_or_short() {
        let mut growers = growers();
        for at in 0..=40 {
            growers.note(7, 1 + at * 8 * MS, at * MIB / 8);
            growers.note(8, 1 + at * 8 * MS, 100 * MIB);
        }
        assert_eq!(growing(&growers, 320 * MS), [(7, 15)]);
        for at in 1..=8 {
            growers.note(8, 1 + (320 + at) * MS, (100 + at) * MIB);
        }
        let seen = growing(&growers, 328 * MS);
        assert_eq!(seen, [(7, 15), (8, 1000)]);
        assert!(growing(&growers, 500 * MS).is_empty(), "it was long ago");
    }

    // R43
    /// A buffer that is given back is no growth of a pod beside a hog.
    #[test]
    fn a_buffer_is_no_growth() {
        let mut growers = growers();
        for at in 0..=40 {
            growers.note(7, 1 + at * 17 * MS, at * 2 * MIB);
            let buffer = if at % 4 == 0 { 8 * MIB } else { 0 };
            growers.note(8, 1 + at * 17 * MS, 300 * MIB + buffer);
        }
        let now = 41 * 17 * MS;
        let of = |growers: &Growers, id, shortest| growth(growers, id, now, shortest);
        assert_eq!([0, 30, 100].map(|ms| of(&growers, 8, ms * MS)), [0, 0, 0]);
        assert!(of(&growers, 7, 100 * MS) > 100);
        let steady = |growers: &Growers, id| growers.growth_of(id, 0, now, 0).unwrap().steady / MIB;
        assert_eq!(
            [steady(&growers, 7) > 100, steady(&growers, 8) > 0],
            [true, false]
        );
        // What is beyond it is.
        growers.note(8, now, 340 * MIB);
        assert_eq!(of(&growers, 8, 0), 32 * 1000 / 17);
        // A pod that is not known for so long.
        growers.note(9, now - 10 * MS, 0);
        growers.note(9, now, 20 * MIB);
        assert_eq!(growth(&growers, 9, now, 100 * MS), 2000);
    }

    // R43
    /// A pod that has loaded its data within a second, and serves now.
    #[test]
    fn a_growth_that_has_ended_is_none() {
        let mut growers = growers();
        let grew_after = |growers: &mut Growers, looks: std::ops::RangeInclusive<u64>| {
            let last = *looks.end();
            for at in looks {
                growers.note(7, 1 + at * 20 * MS, at.min(50) * 8 * MIB);
            }
            growth(growers, 7, last * 20 * MS, 20 * MS)
        };
        assert_eq!(grew_after(&mut growers, 0..=50), 400);
        assert!(grew_after(&mut growers, 51..=60) > 300, "it may go on");
        assert_eq!(grew_after(&mut growers, 61..=103), 0);
        assert_eq!(grew_after(&mut growers, 104..=400), 0);
    }

    // R43
    /// A container that was started again is not held to what it had before.
    #[test]
    fn what_a_container_had_before_it_was_started_again_hides_no_growth() {
        let mut growers = growers();
        for at in 0..=800 {
            let held = match at * 20 {
                ms @ 0..10_000 => ms * 3 / 10,
                10_000..11_000 => 0,
                ms => (ms - 11_000) * 3 / 10,
            };
            growers.note(7, 1 + at * 20 * MS, held * MIB);
        }
        let growth = growth(&growers, 7, 16_000 * MS, 20 * MS);
        assert!((280..=320).contains(&growth), "{growth}");
    }

    /// 64 CPUs have charged a batch of 64 pages each, and use one page of it.
    #[test]
    fn what_cpus_charge_in_advance_is_no_growth() {
        for (cpus, page, seen) in [
            (64, 4096, vec![]),
            (256, 4096, vec![]),
            (64, 65536, vec![]),
            (1, 4096, vec![(7, 15_750)]),
        ] {
            let mut growers = Growers::new(WATCHED, counter_jump(cpus, 64 * page));
            growers.note(7, 1, 100 * MIB);
            growers.note(7, 1 + MS, 100 * MIB + 64 * 63 * page);
            assert_eq!(growing(&growers, 1 + MS), seen);
            growers.note(7, 1 + 2 * MS, 104 * MIB + 64 * 64 * page);
            assert!(!growing(&growers, 1 + 2 * MS).is_empty());
        }
    }

    #[test]
    fn the_cgroup_that_was_read_longest_ago_makes_room() {
        let mut growers = growers();
        for id in 1..=WATCHED as u64 + 1 {
            growers.note(id, id * MS, 0);
        }
        // What 1 was says nothing of the one that has its place now.
        growers.note(9, 16 * MS, 20 * MIB);
        assert_eq!(growing(&growers, 16 * MS), [(9, 2857)]);
        growers.note(1, 17 * MS, 50 * MIB);
        assert_eq!(growing(&growers, 17 * MS), [(9, 2857)]);
    }

    /// In each look the one that grows least comes first, and one that was not there before comes last.
    #[test]
    fn what_grows_least_makes_room() {
        let mut growers = growers();
        let grown = |id: u64, look: u64| id * look * MIB;
        for look in 1..=40 {
            for id in 1..=WATCHED as u64 {
                growers.note(id, look * 8 * MS + id, grown(id, look));
            }
        }
        let ids: Vec<u64> = (2..=WATCHED as u64 + 1).collect();
        for look in 41..=43 {
            for id in &ids {
                growers.note(*id, look * 8 * MS + id, grown(*id, look));
            }
        }
        let now = 43 * 8 * MS + 20;
        let known = |id: &u64| growers.steady_growth_of(*id, now, 0, u64::MAX).1 > 0;
        let known: Vec<u64> = (1..20).filter(known).collect();
        assert_eq!(known, ids[..WATCHED - 1]);
    }

    // R43
    /// With more cgroups than places in each look, those that have a place keep it.
    #[test]
    fn too_many_cgroups_do_not_take_each_others_places() {
        let mut growers = growers();
        let cgroups = WATCHED as u64 + 2;
        let mut before = 0;
        for look in 1..=40 {
            for id in 1..=cgroups {
                let (time, held) = (look * 8 * MS + id, look * MIB);
                growers.note_unless_crowded(id, time, held, before);
            }
            before = look * 8 * MS;
            assert!(
                growers.is_watched(WATCHED as u64, before),
                "from the first look on"
            );
        }
        let now = 40 * 8 * MS + 20;
        let known = |id: &u64| growers.steady_growth_of(*id, now, 0, u64::MAX).1 > 0;
        assert_eq!((1..=cgroups).filter(known).count(), WATCHED);
        // The first one is over: its place is free after a look.
        for look in 41..=80 {
            for id in 2..=cgroups {
                growers.note_unless_crowded(id, look * 8 * MS + id, look * MIB, before);
            }
            // To be read is not to matter most.
            growers.observe(1, look * 8 * MS + 20, look * MIB);
            before = look * 8 * MS;
        }
        let now = 80 * 8 * MS + 20;
        let known = |id: &u64| growers.steady_growth_of(*id, now, 0, u64::MAX).1 > 0;
        assert_eq!((1..=cgroups).filter(known).count(), WATCHED);
    }

    #[test]
    fn a_steady_growth_is_told_since_a_time_and_by_its_rate() {
        let mut growers = growers();
        for at in 0..=10 {
            growers.note(7, 1 + at * 100 * MS, at * 2 * MIB);
        }
        let (since, rate) = growers.steady_growth_of(7, 1000 * MS, 700 * MS, u64::MAX);
        assert!((2 * MIB..=6 * MIB).contains(&since), "{since}");
        assert_eq!(rate / MIB, 20);
        // It stands for half a second: what it grew by before is no growth of now.
        for at in 1..=25 {
            growers.note(7, (1000 + at * 20) * MS, 20 * MIB);
        }
        let (since, rate) = growers.steady_growth_of(7, 1500 * MS, 700 * MS, u64::MAX);
        assert!((2 * MIB..=8 * MIB).contains(&since), "{since}");
        assert_eq!(rate, 0);
        // Its container has ended meanwhile and begun anew: what it held before says nothing.
        growers.note(7, 3000 * MS, MIB);
        growers.note(7, 3010 * MS, 5 * MIB);
        let (since, _) = growers.steady_growth_of(7, 3010 * MS, 2700 * MS, u64::MAX);
        assert_eq!(since, 4 * MIB);
    }

    #[test]
    fn what_is_given_back_at_the_limit_has_grown_before() {
        let mut growers = growers();
        for at in 0..=50 {
            growers.note(7, 1 + at * 20 * MS, at * 6 * MIB);
        }
        for at in 1..=10 {
            growers.note(7, (1000 + at * 2) * MS, (300 - at * 8) * MIB);
        }
        let grown = |limit: u64| {
            let (grown, _) = growers.steady_growth_of(7, 1020 * MS, 500 * MS, limit * MIB);
            grown / MIB
        };
        let (killed, below) = (grown(305), grown(400));
        assert!((100..=150).contains(&killed), "{killed}");
        assert_eq!(killed - below, 80);
        // What lies before a look is in its amounts.
        let given_back = |look| growers.given_back_since(7, 1020 * MS, look) / MIB;
        assert_eq!([1001, 1018, 1020].map(|ms| given_back(ms * MS)), [80, 8, 0]);
    }
}
