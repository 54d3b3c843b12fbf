//! The pods that grow most, by what only their end gives back.
//!
//! A usage counter tells that a pod grows, and not what grows: page cache counts in it as well. So the few pods whose counters have
//! grown most are read in full at one look after the other.

use crate::growth::{Grown, Growth, Sample};

/// Pods that are watched at once.
pub const WATCHED: usize = 4;
/// What a counter may jump ahead by: a huge page, or what CPUs charge in advance. Less is no growth.
const JUMP: u64 = 2 << 20;
/// Over so long at least, in nanoseconds, growth is compared with that of the whole scope.
pub const STEADY_NS: u64 = 250_000_000;
/// What was read longer ago, in nanoseconds, tells nothing of now.
const RECENT_NS: u64 = 100_000_000;

/// What some pods held. Allocates nothing; the caller brings the clock, in nanoseconds of one monotonic clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct Growers {
    watched: [Watched; WATCHED],
}

/// One pod, by a number that no other pod has; 0: none.
#[derive(Clone, Copy, Debug, Default)]
struct Watched {
    pod: u64,
    time: u64,
    growth: Growth,
}

/// A pod that grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grower {
    /// Its number.
    pub pod: u64,
    /// What it grows by, in bytes per second: the fastest growth that was seen.
    pub growth: u64,
    /// The same over [`STEADY_NS`], in which a burst counts for little; 0 where it was not seen for so long.
    pub steadily: u64,
}

impl Growers {
    /// A pod holds so many bytes now that only its end gives back. One that is new takes the place of the one that was read longest ago.
    pub fn note(&mut self, pod: u64, time: u64, held: u64) {
        let known = self.watched.iter().position(|watched| watched.pod == pod);
        let oldest = || (0..WATCHED).min_by_key(|at| self.watched[*at].time);
        let place = known.or_else(oldest);
        let Some(watched) = place.and_then(|at| self.watched.get_mut(at)) else {
            return;
        };
        if watched.pod != pod {
            *watched = Watched {
                pod,
                ..Watched::default()
            };
        }
        watched.time = time;
        watched.growth.observe(Sample {
            time,
            amount: held,
            ..Sample::default()
        });
    }

    /// Those that grow, as far as that was seen a moment ago.
    pub fn growing(&self, now: u64) -> impl Iterator<Item = Grower> {
        let recent = self.watched.iter().filter(move |watched| {
            let age = now.saturating_sub(watched.time);
            watched.pod != 0 && age <= RECENT_NS
        });
        recent.filter_map(|Watched { pod, growth, .. }| {
            let speeds = growth.windows(JUMP).map(|grown| grown.per_second());
            Some(Grower {
                pod: *pod,
                growth: speeds.max()?,
                steadily: growth.over(STEADY_NS).map_or(0, Grown::per_second),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const MIB: u64 = 1 << 20;

    fn growing(growers: &Growers, now: u64) -> Vec<(u64, u64)> {
        let growing = growers.growing(now);
        growing.map(|g| (g.pod, g.growth / MIB)).collect()
    }

    #[test]
    fn a_growth_is_seen_whether_it_is_slow_or_short() {
        let mut growers = Growers::default();
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

    #[test]
    fn the_pod_that_was_read_longest_ago_makes_room() {
        let mut growers = Growers::default();
        for pod in 1..=WATCHED as u64 + 1 {
            growers.note(pod, pod * MS, 0);
        }
        // What pod 1 was says nothing of the pod that has its place now.
        growers.note(5, 12 * MS, 20 * MIB);
        assert_eq!(growing(&growers, 12 * MS), [(5, 2857)]);
        growers.note(1, 13 * MS, 50 * MIB);
        assert_eq!(growing(&growers, 13 * MS), [(5, 2857)]);
    }
}
