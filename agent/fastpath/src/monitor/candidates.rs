//! The candidates of a choice: what they use, which of them may be evicted, and the rules of their order.

use std::sync::Arc;

use evictd_engine::{
    Among, CandidateState, Observation, Observations, Resource, SelectionCriteria,
    permit::LastResort, units::signed,
};
use evictd_node::pods::table::{PodEntry, PodTable};
use evictd_sys::clock::monotonic_ns;

use crate::monitor::{MemoryMonitor, usage_cache::read_usage};

impl MemoryMonitor {
    /// Upper bounds for all pods: one number each, which is read now unless it was a moment ago. Only those that come first
    /// are read in full.
    pub(crate) fn load_candidates(&mut self, resort: LastResort) {
        let now = monotonic_ns();
        let recent = self.usage_cache.take(now, self.fastest_growth);
        let limiter = &self.limiter;
        let PodTable {
            entries,
            candidates,
            ..
        } = &mut *self.table;
        for (entry, candidate) in entries.iter().zip(candidates.iter_mut()) {
            candidate.is_exact = false;
            candidate.inputs.order = entry.permit.order();
            // Of all of them, or what was not read would pass for a growth later.
            let seen = match recent {
                Some(more) => {
                    candidate.usage = candidate.usage.saturating_add(more);
                    // Eligible, or gone.
                    candidate.state
                }
                None => read_usage(entry, candidate),
            };
            let is_victim = self.in_flight.contains(entry);
            candidate.state = match limiter.state_of(&**entry, now, resort, is_victim) {
                CandidateState::Eligible => seen,
                state => state,
            };
        }
        if recent.is_none() {
            self.table.note_growth(now);
        }
    }

    /// A pod whose memory a scope does not count cannot help it.
    pub(crate) fn exclude_pods_outside_scope(&mut self, index: usize) {
        let Some(monitor) = self.scopes.get(index) else {
            return;
        };
        let PodTable {
            entries,
            candidates,
            ..
        } = &mut *self.table;
        for (entry, candidate) in entries.iter().zip(candidates) {
            if !monitor.scope.holds(entry) {
                candidate.state = CandidateState::Unavailable;
            }
        }
    }

    /// Computes an upper bound of what the eligible candidates use together, in bytes.
    pub(crate) fn attainable(&self) -> u64 {
        let candidates = self.table.candidates.iter();
        candidates
            .filter(|candidate| candidate.state == CandidateState::Eligible)
            .fold(0, |sum, candidate| sum.saturating_add(candidate.usage))
    }

    /// The first candidate in the order of eviction, as they are loaded.
    pub(crate) fn first_in_order(&mut self) -> Option<usize> {
        let rules = self.rules();
        let candidates = self.table.candidates();
        candidates.choose(rules, Among::All)
    }

    /// Pods that would be candidates but for policies and limits.
    pub(crate) fn denied(&self) -> usize {
        let (now, limiter) = (monotonic_ns(), &self.limiter);
        let is_denied = |entry: &&Arc<PodEntry>| {
            let state = || limiter.state_of(&***entry, now, LastResort::None, false);
            !entry.protected
                && state() == CandidateState::Protected
                && !self.in_flight.contains(entry)
        };
        self.table.entries.iter().filter(is_denied).count()
    }

    /// How many pods have processes that are ending. One that the manager signals at this moment is no victim yet.
    pub(crate) fn dying(&self, now: u64) -> usize {
        let is_signalled = |entry: &&Arc<PodEntry>| {
            entry.permit.is_being_killed(now) && !self.in_flight.contains(entry)
        };
        let signalled = self.table.entries.iter().filter(is_signalled);
        self.in_flight.terminating_count() + signalled.count()
    }

    /// The rules of every choice.
    pub(crate) fn rules(&self) -> SelectionCriteria {
        SelectionCriteria {
            strategy: self.strategy,
            resource: Resource::Memory,
            system_over_reserved: self.system_over_reserved(),
        }
    }

    /// Whether the node's own daemons use more than was kept back for them; without the pods' cgroup that is not known.
    fn system_over_reserved(&self) -> bool {
        let mut observations = Observations::default();
        for monitor in self.scopes.iter().filter(|monitor| !monitor.gone) {
            let seen = Observation {
                available: signed(monitor.sample.shortage.available),
                capacity: signed(monitor.scope.capacity()),
                time: None,
            };
            observations.set(monitor.scope.signal(), seen);
        }
        observations.system_over_reserved()
    }
}
