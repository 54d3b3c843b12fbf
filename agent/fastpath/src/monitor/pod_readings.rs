//! The pods as they were last read: what they use, which of them may be evicted, and which of them grow.

mod growers;
mod near_limits;
mod usage_cache;

use std::sync::Arc;

use evictd_engine::{
    Among, CandidateState, SelectionCriteria,
    growers::{Growers, WATCHED, WATCHED_LIMITED, counter_jump},
    limiter::{EvictionKind, EvictionLimiter},
    permit::LastResort,
};
use evictd_node::{
    memory_scope::Scope,
    pods::table::{PodEntry, PodTable},
    trigger::memory::batch_bytes,
};
use evictd_sys::{clock::monotonic_ns, page::page_size};

use self::usage_cache::UsageCache;
use crate::{FastPathControl, in_flight::InFlight};

/// The table of pods, how old the usages in it are, and the growth of those that grow most.
pub(crate) struct PodReadings {
    /// The pods, and what they used when they were read.
    pub table: Box<PodTable>,
    /// Age of the usages in the table.
    usage_cache: UsageCache,
    growers: Growers,
    /// The same with huge pages, which count at a limit.
    growers_at_limit: Growers,
    /// Growth of the cgroups of these pods that have limits of their own.
    limited_growers: Growers,
    /// Time at which the pods that grow most were last read, in nanoseconds of CLOCK_MONOTONIC.
    growers_read_at: u64,
    /// Time at which cgroups that stand still close to their limits were last read, in nanoseconds of CLOCK_MONOTONIC.
    near_limits_read_at: u64,
    /// See [`counter_jump`].
    pub jump: u64,
}

impl PodReadings {
    /// Readings of the pods of a table, on so many CPUs.
    pub fn new(table: Box<PodTable>, cpus: u64) -> Self {
        let jump = counter_jump(cpus, batch_bytes(page_size()));
        Self {
            table,
            usage_cache: UsageCache::default(),
            growers: Growers::new(WATCHED, jump),
            growers_at_limit: Growers::new(WATCHED, jump),
            limited_growers: Growers::new(WATCHED_LIMITED, jump),
            growers_read_at: 0,
            near_limits_read_at: 0,
            jump,
        }
    }

    /// Takes another table, if one was handed over.
    pub fn take_table(&mut self, control: &FastPathControl) -> bool {
        let is_new = control.take_table(&mut self.table);
        if is_new {
            self.usage_cache.forget();
        }
        is_new
    }

    /// Upper bounds for all pods: one number each, which is read now unless it was a moment ago. Only those that come
    /// first are read in full.
    pub fn load(
        &mut self,
        fastest_growth: u64,
        limiter: &EvictionLimiter,
        in_flight: &InFlight,
        kind: EvictionKind,
        resort: LastResort,
    ) {
        let now = monotonic_ns();
        let recent = self.usage_cache.take(now, fastest_growth, self.jump);
        for (entry, candidate) in self.table.pairs_mut() {
            candidate.is_exact = false;
            candidate.inputs.order = entry.permit.order();
            // Of all of them, or what was not read would pass for a growth later.
            let seen = match recent {
                Some(more) => {
                    candidate.usage = candidate.usage.saturating_add(more);
                    // Eligible, or gone.
                    candidate.state
                }
                None => entry.read_usage(candidate),
            };
            let is_victim = in_flight.contains(entry);
            candidate.state = match limiter.state_of(entry, now, kind, resort, is_victim) {
                CandidateState::Eligible => seen,
                state => state,
            };
        }
        if recent.is_none() {
            self.table.note_growth(now);
        }
    }

    /// A pod whose memory a scope does not count cannot help it.
    pub fn exclude_pods_outside(&mut self, scope: &Scope) {
        for (entry, candidate) in self.table.pairs_mut() {
            if !scope.holds(entry) {
                candidate.state = CandidateState::Unavailable;
            }
        }
    }

    /// The first candidate in the order of eviction, as they are loaded.
    pub fn first_in_order(&mut self, rules: SelectionCriteria) -> Option<usize> {
        self.table.candidates(false).choose(rules, Among::All)
    }

    /// Pods that would be candidates but for policies and limits.
    pub fn denied(&self, limiter: &EvictionLimiter, in_flight: &InFlight) -> usize {
        let now = monotonic_ns();
        let is_denied = |entry: &&Arc<PodEntry>| {
            let kind = EvictionKind::Urgent;
            let state = || limiter.state_of(&***entry, now, kind, LastResort::None, false);
            !entry.protected && state() == CandidateState::Denied && !in_flight.contains(entry)
        };
        self.table.entries.iter().filter(is_denied).count()
    }

    /// How many pods the manager signals at this moment; they are no victims yet.
    pub fn being_killed(&self, now: u64, in_flight: &InFlight) -> usize {
        let is_signalled = |entry: &&Arc<PodEntry>| {
            entry.eviction_state.is_being_killed(now) && !in_flight.contains(entry)
        };
        self.table.entries.iter().filter(is_signalled).count()
    }

    /// Excludes pods with an expiring permit: the eBPF program cannot check the deadline.
    pub fn exclude_expiring_permits(&mut self, limiter: &EvictionLimiter) {
        let now = monotonic_ns();
        for (entry, candidate) in self.table.pairs_mut() {
            if !limiter.allows(entry, now, EvictionKind::KernelKill, LastResort::None) {
                candidate.state = CandidateState::Denied;
            }
        }
    }
}
