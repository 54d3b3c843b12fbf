//! Which pods grow, by what only their end gives back: read in full, while a counter alone would name a writer of files as well.

use std::sync::Arc;

use evictd_engine::{
    CandidateState,
    growers::{Grower, WATCHED},
    pace::Bounded,
};
use evictd_node::pods::table::{Entry, Largest, PodTable};
use evictd_sys::clock::monotonic_ns;

use crate::monitor::MemoryMonitor;

impl MemoryMonitor {
    /// Reads the pods in full whose counters have grown most, as the candidates are loaded.
    pub(crate) fn watch_growers(&mut self) {
        let PodTable {
            entries,
            candidates,
            history,
            ..
        } = &*self.setup.table;
        let mut most = Largest::<WATCHED>::default();
        for (place, (candidate, grew)) in candidates.iter().zip(history.grew()).enumerate() {
            if candidate.state == CandidateState::Eligible {
                most.offer(*grew, place);
            }
        }
        for entry in most.0.iter().filter_map(|(_, place)| entries.get(*place)) {
            // A counter is exact, what is page cache of it is as old as the statistics.
            entry.flush_statistics();
            if let Ok(reading) = entry.memory.read() {
                let (pod, now) = (entry.memory.id(), monotonic_ns());
                self.growers.note(pod, now, reading.unreclaimable());
            }
        }
    }

    /// The growth that limits of the pods' own will end, of those that a scope counts and that are not on their way out. They are
    /// read anew where there are any.
    pub(crate) fn bounded_growth(&mut self, index: usize, now: u64) -> Bounded {
        let mut bounded = Bounded::default();
        let Some(monitor) = self.scopes.get(index).filter(|m| m.pressed) else {
            return bounded;
        };
        let entries = &self.setup.table.entries;
        let mut growers = self.growers;
        for grower in self.growers.growing(now) {
            let Some(entry) = entry_of(entries, grower).filter(|e| monitor.scope.holds(e)) else {
                continue;
            };
            let (Some(limit), Ok(reading)) = (entry.pod.memory_limit, entry.memory.read()) else {
                continue;
            };
            let held = reading.unreclaimable();
            growers.note(grower.pod, monotonic_ns(), held);
            // One that is past its limit has another one.
            if reading.usage <= limit && !self.in_flight.contains(entry) {
                bounded.growth = bounded.growth.saturating_add(grower.steadily);
                bounded.left = bounded.left.saturating_add(limit.saturating_sub(held));
            }
        }
        self.growers = growers;
        bounded
    }

    /// The place of the pod that has at least half of a growth per second, if it may go; its usage is exact then.
    pub(crate) fn main_grower(&mut self, growth: u64) -> Option<usize> {
        let PodTable {
            entries,
            candidates,
            ..
        } = &mut *self.setup.table;
        let may_go = |grower: Grower| {
            let place = entries.iter().position(|e| e.memory.id() == grower.pod)?;
            let candidate = candidates.get(place)?;
            (candidate.state == CandidateState::Eligible).then_some((grower.growth, place))
        };
        let growing = self.growers.growing(monotonic_ns()).filter_map(may_go);
        let (_, place) = growing.max().filter(|(main, _)| *main >= growth / 2)?;
        let candidate = candidates.get_mut(place)?;
        candidate.usage = entries.get(place)?.memory.read().ok()?.working_set();
        candidate.is_exact = true;
        Some(place)
    }
}

fn entry_of(entries: &[Arc<Entry>], grower: Grower) -> Option<&Arc<Entry>> {
    entries.iter().find(|entry| entry.memory.id() == grower.pod)
}
