//! The pods that the kernel may kill from when this thread cannot run: by the floor, and by the pinned guard.

use std::sync::Arc;

use evictd_engine::{CandidateState, ReleaseTarget, permit::LastResort, rank};
use evictd_node::{
    pods::table::{Entry, PodTable},
    sampling::Nearness,
    trigger::memory::MAX_VICTIMS,
};
use evictd_sys::clock::monotonic_ns;

use crate::{
    monitor::{MemoryMonitor, growers::BEFOREHAND},
    scope::{ScopeMonitor, Victims},
};

/// How long the floor victims stay true while the scopes stand still: pods may change places among themselves.
const LASTS_NS: u64 = 1_000_000_000;
/// The same far from every threshold, where no hook has to be attached: a pod that grows is found on the way.
const LASTS_FAR_NS: u64 = 10_000_000_000;

impl MemoryMonitor {
    /// Asking every pod is what a look costs most: not while nothing has changed.
    pub(crate) fn publish_when_due(&mut self, now: u64) {
        let nearness = Nearness::new(self.growth);
        let is_near = |monitor: &ScopeMonitor| nearness.wants_hook(monitor.distance(), true);
        let lasts = match self.scopes.iter().any(is_near) {
            true => LASTS_NS,
            false => LASTS_FAR_NS,
        };
        let is_old = now.saturating_sub(self.published_at) >= lasts;
        if self.published_at == 0 || is_old || self.scopes.iter().any(ScopeMonitor::has_moved) {
            self.published_at = now;
            self.publish_floor_victims();
            self.scopes
                .iter_mut()
                .for_each(ScopeMonitor::note_victims_published);
        }
    }

    /// Tells the kernel which pods go first, for the case that this thread cannot run when the floor is reached, and for the
    /// time without an agent. In any case all pods are read: by how much each has grown is known when one has to go.
    fn publish_floor_victims(&mut self) {
        self.load_candidates(LastResort::None);
        self.watch_growers(BEFOREHAND);
        let has_floor = |monitor: &ScopeMonitor| monitor.scope.limits().floor.is_some();
        let is_used = self.setup.is_pinned || self.scopes.iter().any(has_floor);
        if !is_used || !self.setup.trigger.has_program() {
            return;
        }
        if self.setup.shadow {
            for (index, monitor) in self.scopes.iter_mut().enumerate() {
                if self.setup.trigger.set_victims(index, &[]).is_ok() {
                    monitor.victims = Victims::default();
                }
            }
            return;
        }
        self.exclude_expiring_permits();
        // The node comes first and leaves no pod out.
        for index in 0..self.scopes.len() {
            self.exclude_pods_outside_scope(index);
            let victims = self.ranked_victims(index);
            if let Some(monitor) = self.scopes.get_mut(index)
                && victims != monitor.victims
                && self
                    .setup
                    .trigger
                    .set_victims(index, victims.named())
                    .is_ok()
            {
                monitor.victims = victims;
            }
        }
    }

    /// Revokes the floor victims when policies have changed meanwhile; true when other ones are wanted.
    pub(crate) fn revoke_floor_victims(&mut self) -> bool {
        let mut any = false;
        let (now, limiter) = (monotonic_ns(), &self.setup.limiter);
        let entries = &self.setup.table.entries;
        for (index, monitor) in self.scopes.iter_mut().enumerate() {
            let is_revoked = monitor.victims.iter().any(|(position, id)| {
                let is_it = |entry: &&Arc<Entry>| entry.memory.id() == id;
                let entry = entries.get(position).filter(is_it);
                // While a victim dies a new table names none anew.
                let entry = entry.or_else(|| entries.iter().find(is_it));
                entry.is_none_or(|e| !limiter.allows_kernel_kill(&e.permit, now))
            });
            if is_revoked && self.setup.trigger.set_victims(index, &[]).is_ok() {
                monitor.victims = Victims::default();
                any = true;
            }
        }
        any
    }

    /// Excludes pods with an expiring permit: the eBPF program cannot check the deadline.
    fn exclude_expiring_permits(&mut self) {
        let (now, limiter) = (monotonic_ns(), &self.setup.limiter);
        let PodTable {
            entries,
            candidates,
            ..
        } = &mut *self.setup.table;
        for (entry, candidate) in entries.iter().zip(candidates) {
            if !limiter.allows_kernel_kill(&entry.permit, now) {
                candidate.state = CandidateState::Protected;
            }
        }
    }

    /// The candidates that come first, as they are loaded: the first one by what it uses now, the others by upper bounds.
    fn ranked_victims(&mut self, index: usize) -> Victims {
        let mut victims = Victims::default();
        let (rules, first) = (self.rules(), self.first_in_order());
        let Some(monitor) = self.scopes.get(index) else {
            return victims;
        };
        let PodTable {
            entries,
            candidates,
            ..
        } = &mut *self.setup.table;
        let id = |position: usize| entries.get(position).map(|entry| entry.memory.id());
        let mut ranked = [0; MAX_VICTIMS as usize];
        let others = rank(candidates, rules, &mut ranked);
        let others = ranked.get(..others).unwrap_or_default().iter().copied();
        for (rank, position) in first.into_iter().chain(others).enumerate() {
            if let (Some(cgroup_id), Some(candidate)) = (id(position), candidates.get(position)) {
                let held = held(entries, position, candidate.usage, monitor.step());
                victims.push(position, monitor.kernel_victim(cgroup_id, rank, held));
            }
        }
        // They are named, not chosen: the next scope may name the first one too.
        if let Some(named) = first.and_then(|i| candidates.get_mut(i)) {
            named.state = CandidateState::Eligible;
        }
        victims
    }

    /// Which of the candidates, as they are loaded, comes first.
    pub(crate) fn first_in_order(&mut self) -> Option<usize> {
        let rules = self.rules();
        let candidates = self.setup.table.candidates();
        candidates.choose(rules, ReleaseTarget::First)
    }
}

/// What only the pod's end gives back of what it uses, in bytes. Where that is less than a step, it is not asked.
fn held(entries: &[Arc<Entry>], position: usize, usage: u64, step: u64) -> u64 {
    let reading = entries
        .get(position)
        .filter(|_| usage > step)
        .and_then(|entry| entry.memory.read().ok());
    reading.map_or(usage, |reading| reading.unreclaimable())
}
