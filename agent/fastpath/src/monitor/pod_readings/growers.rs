//! Which pods grow, by the memory that only their end gives back. They are read in full: a usage counter also grows
//! with page cache.

use evictd_engine::{
    growers::{Grower, Growers, Largest, WATCHED},
    shortage::LimitedGrowth,
};
use evictd_node::{
    cgroup::limited::{LimitedCgroup, LimitedCgroups},
    pods::table::PodTable,
};
use evictd_sys::clock::monotonic_ns;

use super::PodReadings;
use crate::{in_flight::InFlight, scope::WatchedScope};

impl PodReadings {
    /// Whether the pods that grow most were read so many nanoseconds ago, or earlier.
    pub fn are_growers_old(&self, now: u64, nanos: u64) -> bool {
        now.saturating_sub(self.growers_read_at) >= nanos
    }

    /// No pod was read for seconds: what has grown in that time may have ended since.
    pub fn forget_growth(&mut self) {
        let growers = [
            &mut self.growers,
            &mut self.growers_at_limit,
            &mut self.limited_growers,
        ];
        growers.into_iter().for_each(Growers::forget);
        self.table.history.forget();
    }

    /// Reads in full the pods whose counters have grown most, also pods that may not be evicted.
    pub fn watch_growers(&mut self, most: usize) {
        let PodTable {
            entries,
            candidates,
            history,
            ..
        } = &*self.table;
        let mut largest = Largest::<WATCHED>::default();
        for (place, (candidate, grew)) in candidates.iter().zip(history.grew()).enumerate() {
            if !candidate.state.is_over() {
                largest.offer(*grew, place);
            }
        }
        let before = std::mem::replace(&mut self.growers_read_at, monotonic_ns());
        // The largest comes last: what finds no place among the growers then is what grows least.
        let largest = largest.0.iter().skip(WATCHED - most.min(WATCHED));
        let largest = largest.filter_map(|(_, place)| entries.get(*place));
        for entry in largest.clone() {
            // The counter is exact; the part that is page cache is as old as the statistics.
            entry.flush_statistics();
            if let Ok(reading) = entry.memory.read() {
                let (id, now) = (entry.memory.id(), monotonic_ns());
                let held = |at_limit| entry.held(&reading.of_scope(at_limit));
                self.growers.note(id, now, held(false));
                self.growers_at_limit.note(id, now, held(true));
            }
        }
        // There may be more of these than places: those of the largest come first.
        for limited in largest.rev().map(|entry| &entry.limited) {
            note_limited(&mut self.limited_growers, limited, before);
        }
    }

    /// The growth that the pods' own limits will end, of the pods that a scope counts and that are not terminating.
    /// Those that grow are read anew, after the `look` at the scope.
    pub fn limited_growth(
        &mut self,
        watched: &WatchedScope,
        in_flight: &InFlight,
        look: u64,
    ) -> LimitedGrowth {
        let mut bounded = LimitedGrowth::default();
        let (growers, since) = (&mut self.limited_growers, watched.pace.steady_since());
        for entry in &self.table.entries {
            if !watched.scope.holds(entry) || in_flight.contains(entry) {
                continue;
            }
            let limited = &entry.limited;
            let mut read = |position, cgroup: &LimitedCgroup| {
                let (id, now) = (cgroup.memory.id(), monotonic_ns());
                let unknown = (LimitedGrowth::default(), u64::MAX);
                if !growers.is_watched(id, now) {
                    return unknown;
                }
                let Some(uses) = limited.read(position) else {
                    return unknown;
                };
                growers.observe(id, now, uses.unreclaimable);
                let (grown, growth) = growers.steady_growth_of(id, now, since, uses.limit);
                // What an OOM kill has given back since the look is in no headroom yet.
                let given_back = growers.given_back_since(id, now, look);
                let left = uses.left.saturating_sub(given_back);
                (LimitedGrowth::new(grown, growth, left), left)
            };
            bounded = bounded.merged(limited.limited_growth(&mut read));
        }
        bounded
    }

    /// The growth of the pods that are read in full, over `shortest` nanoseconds at least; `at_limit` of a cgroup, or of the
    /// machine.
    pub fn growing(&self, shortest: u64, at_limit: bool) -> [Grower; WATCHED] {
        let growers = match at_limit {
            true => &self.growers_at_limit,
            false => &self.growers,
        };
        let (mut growing, now) = ([Grower::NONE; WATCHED], monotonic_ns());
        let entries = self.table.entries.iter().enumerate();
        let known = entries.filter_map(|(position, entry)| {
            growers.growth_of(entry.memory.id(), position, now, shortest)
        });
        // No more are watched.
        growing
            .iter_mut()
            .zip(known)
            .for_each(|(to, known)| *to = known);
        growing
    }
}

/// Reads the cgroups of a pod that have limits. There may be more than places: those that were read `since` a time keep theirs.
pub fn note_limited(growers: &mut Growers, limited: &LimitedCgroups, since: u64) {
    for (position, cgroup) in limited.iter() {
        if let Some(uses) = limited.read(position) {
            let (id, now) = (cgroup.memory.id(), monotonic_ns());
            growers.note_unless_crowded(id, now, uses.unreclaimable, since);
        }
    }
}
