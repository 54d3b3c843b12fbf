//! The pods that the kernel may kill from when this thread cannot run: by the floor, and by the pinned guard.

use std::sync::Arc;

use evictd_engine::{
    CandidateState,
    accounting::PublishedPod,
    growers::WATCHED_BEFOREHAND,
    limiter::EvictionKind,
    permit::LastResort,
    rank,
    sampling::{
        pod_readings::{self, WHILE_TERMINATING_NS},
        wants_hook,
    },
};
use evictd_node::{
    pods::table::{PodEntry, PodTable},
    trigger::memory::MAX_VICTIMS,
};
use evictd_sys::clock::monotonic_ns;

use crate::{
    monitor::MemoryMonitor,
    scope::{KernelVictims, WatchedScope},
};

impl MemoryMonitor {
    /// Publishes the kernel victims when memory has moved or the last ones are old.
    pub(crate) fn publish_when_due(&mut self, now: u64) {
        let growth = self.fastest_growth;
        let is_near = |watched: &WatchedScope| wants_hook(growth, watched.distance(), true);
        let age = now.saturating_sub(self.published_at);
        let is_near = self.scopes.iter().any(is_near);
        let is_old = pod_readings::are_old(age, is_near);
        if self.published_at == 0 || is_old || self.scopes.iter().any(WatchedScope::has_moved) {
            self.published_at = now;
            self.publish_kernel_victims();
            self.scopes
                .iter_mut()
                .for_each(WatchedScope::note_victims_published);
        }
        if is_near {
            self.pods.watch_near_limits(now, &self.scopes);
        }
    }

    /// While victims end the growth of pods is followed as before: the next decision asks for it.
    pub(crate) fn read_pods_while_terminating(&mut self, now: u64) {
        if self.pods.are_growers_old(now, WHILE_TERMINATING_NS) {
            self.load_candidates(EvictionKind::Urgent, LastResort::None);
            self.pods.watch_growers(WATCHED_BEFOREHAND);
        }
        self.pods.watch_near_limits(now, &self.scopes);
    }

    /// Publishes the first pods in the order of eviction to the kernel programs, for the case that this thread cannot
    /// run when the floor is reached, and for the time without an agent. All pods are read in any case, for the growth
    /// of each.
    fn publish_kernel_victims(&mut self) {
        self.load_candidates(EvictionKind::Urgent, LastResort::None);
        self.pods.watch_growers(WATCHED_BEFOREHAND);
        let has_floor = |watched: &WatchedScope| watched.scope.thresholds().floor.is_some();
        let is_used = self.is_pinned || self.scopes.iter().any(has_floor);
        if !is_used || !self.triggers.set.has_program() {
            return;
        }
        if self.shadow {
            for (index, watched) in self.scopes.iter_mut().enumerate() {
                let _ = self.triggers.set.set_victims(index, &[]);
                watched.published.victims = KernelVictims::default();
            }
            return;
        }
        self.pods.exclude_expiring_permits(&self.limiter);
        // Scope 0 is the node, which counts every pod; the exclusions of later scopes may therefore stay in place.
        for index in 0..self.scopes.len() {
            if let Some(watched) = self.scopes.get(index) {
                self.pods.exclude_pods_outside(&watched.scope);
            }
            let victims = self.ranked_victims(index);
            if let Some(watched) = self.scopes.get_mut(index)
                && victims != watched.published.victims
            {
                let set = self.triggers.set.set_victims(index, victims.published());
                // Refused, none is in force.
                watched.published.victims = set.map(|()| victims).unwrap_or_default();
            }
        }
    }

    /// Revokes kernel victims that may not be evicted by now, all of them in shadow mode; whether others are to be
    /// published.
    pub(crate) fn revoke_kernel_victims(&mut self) -> bool {
        let mut any = false;
        let (now, limiter) = (monotonic_ns(), &self.limiter);
        let entries = &self.pods.table.entries;
        for (index, watched) in self.scopes.iter_mut().enumerate() {
            let is_revoked = watched.published.victims.iter().any(|(position, id)| {
                if self.shadow {
                    return true;
                }
                let is_it = |entry: &&Arc<PodEntry>| entry.memory.id() == id;
                let entry = entries.get(position).filter(is_it);
                // After a table change the positions are stale until victims are published again.
                let entry = entry.or_else(|| entries.iter().find(is_it));
                let kind = EvictionKind::KernelKill;
                entry.is_none_or(|e| !limiter.allows(&**e, now, kind, LastResort::None))
            });
            if is_revoked {
                // Refused, none is in force either.
                let _ = self.triggers.set.set_victims(index, &[]);
                watched.published.victims = KernelVictims::default();
                any = true;
            }
        }
        any
    }

    /// The first candidates in the order of eviction: the first one by its exact usage, the others by upper bounds.
    /// None where the scope has no hard threshold.
    fn ranked_victims(&mut self, index: usize) -> KernelVictims {
        let mut victims = KernelVictims::default();
        let rules = self.rules();
        let has_threshold = |watched: &&WatchedScope| watched.scope.thresholds().threshold > 0;
        let Some(watched) = self.scopes.get(index).filter(has_threshold) else {
            return victims;
        };
        let first = self.pods.first_in_order(rules);
        let jump = self.pods.jump;
        let PodTable {
            entries,
            candidates,
            ..
        } = &mut *self.pods.table;
        let id = |position: usize| entries.get(position).map(|entry| entry.memory.id());
        let mut ranked = [0; MAX_VICTIMS as usize];
        let others = rank(candidates, rules, &mut ranked);
        let others = ranked.get(..others).unwrap_or_default().iter().copied();
        for (rank, position) in first.into_iter().chain(others).enumerate() {
            if let (Some(cgroup_id), Some(candidate)) = (id(position), candidates.get(position)) {
                // What only the pod's end gives back. A usage of less than a step is not read in full.
                let is_small = candidate.usage <= watched.step();
                let entry = entries.get(position).filter(|_| !is_small);
                let reading = entry.and_then(|entry| entry.memory.read().ok());
                let pod = PublishedPod {
                    held: reading.map_or(candidate.usage, |r| r.of_scope(false).unreclaimable()),
                    huge_pages: reading.map_or(0, |reading| reading.hugetlb),
                    rank: rank as u64,
                    ranks: u64::from(MAX_VICTIMS),
                };
                let victim = watched.kernel_victim(cgroup_id, pod, jump);
                victims.push(position, victim);
            }
        }
        // It is published, not evicted: the next scope may publish it too.
        if let Some(first) = first.and_then(|i| candidates.get_mut(i)) {
            first.state = CandidateState::Eligible;
        }
        victims
    }
}
