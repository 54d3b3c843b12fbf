//! Which pods grow, by what only their end gives back: read in full, while a counter alone would name a writer of files as well.

use evictd_engine::{CandidateState, growers::WATCHED, pace::Bounded};
use evictd_node::pods::table::{Largest, PodTable};
use evictd_sys::clock::monotonic_ns;

use crate::monitor::MemoryMonitor;

/// So many pods are read in full before one was evicted.
pub(crate) const BEFOREHAND: usize = 4;

impl MemoryMonitor {
    /// Reads in full so many pods whose counters have grown most, as the candidates are loaded; those that may not be evicted grow
    /// as others do.
    pub(crate) fn watch_growers(&mut self, most: usize) {
        let PodTable {
            entries,
            candidates,
            history,
            ..
        } = &*self.setup.table;
        let mut largest = Largest::<WATCHED>::default();
        for (place, (candidate, grew)) in candidates.iter().zip(history.grew()).enumerate() {
            let is_over = matches!(
                candidate.state,
                CandidateState::Terminating | CandidateState::NotFound
            );
            if !is_over {
                largest.offer(*grew, place);
            }
        }
        let largest = largest.0.iter().rev().take(most);
        for entry in largest.filter_map(|(_, place)| entries.get(*place)) {
            // A counter is exact, what is page cache of it is as old as the statistics.
            entry.flush_statistics();
            if let Ok(reading) = entry.memory.read() {
                let (id, now) = (entry.memory.id(), monotonic_ns());
                self.growers.note(id, now, reading.unreclaimable());
            }
            for limited in entry.limited.innermost() {
                if let Some(uses) = entry.limited.read(limited) {
                    let (id, now) = (limited.memory.id(), monotonic_ns());
                    self.limited_growers.note(id, now, uses.held);
                }
            }
        }
    }

    /// The growth that limits of the pods' own will end, of those that a scope counts and that are not on their way out. What grows
    /// of them is read anew.
    pub(crate) fn bounded_growth(&mut self, index: usize) -> Bounded {
        let mut bounded = Bounded::default();
        let Some(monitor) = self.scopes.get(index) else {
            return bounded;
        };
        let (growers, since) = (&mut self.limited_growers, monitor.pace.steady_since());
        for entry in &self.setup.table.entries {
            if !monitor.scope.holds(entry) || self.in_flight.contains(entry) {
                continue;
            }
            for limited in entry.limited.innermost() {
                let (id, now) = (limited.memory.id(), monotonic_ns());
                if !growers.is_watched(id, now) {
                    continue;
                }
                let Some(uses) = entry.limited.read(limited) else {
                    continue;
                };
                growers.note(id, now, uses.held);
                let (grown, growth) = growers.steady_growth_of(id, now, since);
                if grown > 0 || growth > 0 {
                    bounded.grown = bounded.grown.saturating_add(grown);
                    bounded.growth = bounded.growth.saturating_add(growth);
                    bounded.left = bounded.left.saturating_add(uses.left);
                }
            }
        }
        bounded
    }

    /// What the pods grow by of those that grow most, in bytes per second, and their positions.
    pub(crate) fn growing(&self) -> [(u64, usize); WATCHED] {
        let (mut growing, now) = (Largest::<WATCHED>::default(), monotonic_ns());
        for (position, entry) in self.setup.table.entries.iter().enumerate() {
            growing.offer(self.growers.growth_of(entry.memory.id(), now), position);
        }
        growing.0
    }
}
