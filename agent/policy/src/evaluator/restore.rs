//! Evictions that were: those of earlier agents count for limits as if the agent had never been restarted, and all of
//! them for limits that are new.

use std::cell::LazyCell;

use evictd_engine::{ManagedPod, Pod, limiter::RestoredEviction, units::SECOND};
use evictd_sys::{clock::monotonic_ns, mutex::locked};

use super::{PolicyEvaluator, State, quotas::QuotaKey};
use crate::{Namespaces, PolicySet};

/// Why a pod that an earlier agent has killed is not evicted.
pub(super) const ENDING: &str = "it was evicted before the agent started, and has processes left";
/// Time after its signal for which a pod that has not appeared is remembered, in nanoseconds.
const FORGOTTEN_NS: u64 = 600 * SECOND;

/// Evictions, the oldest first, read when a quota is new.
type Evictions<'a> =
    LazyCell<Vec<RestoredEviction>, Box<dyn FnOnce() -> Vec<RestoredEviction> + 'a>>;

/// Finds the evictions that count for a new quota.
pub(super) struct RestoredCharges<'a> {
    pub evictions: Evictions<'a>,
    pub set: &'a PolicySet,
    pub namespaces: &'a Namespaces,
    /// Present time, in nanoseconds of CLOCK_MONOTONIC.
    pub now: u64,
}

impl RestoredCharges<'_> {
    /// The times of the evictions that count for a quota of `pod` for `period` nanoseconds, the oldest first.
    pub fn counted(&self, key: &QuotaKey, period: u64, pod: &Pod) -> Vec<i64> {
        let is_recent =
            |e: &&RestoredEviction| i128::from(self.now) - i128::from(e.at) < i128::from(period);
        let recent = self.evictions.iter().filter(is_recent);
        let counted = recent.filter(|e| self.counts(e, key, pod));
        counted.map(|e| e.at).collect()
    }

    fn counts(&self, eviction: &RestoredEviction, key: &QuotaKey, pod: &Pod) -> bool {
        let gone = &eviction.pod;
        match key {
            QuotaKey::Node => !eviction.at_own_limit,
            QuotaKey::Owner(uid) if gone.owner.is_some() => {
                gone.owner.as_ref().is_some_and(|o| o.uid == *uid)
            }
            _ if !eviction.is_workload_known => gone.namespace == pod.namespace,
            QuotaKey::Owner(_) => false,
            QuotaKey::Group {
                rule,
                limit,
                namespace,
                value,
            } => {
                gone.namespace == *namespace
                    && self.set.match_pod(gone, self.namespaces).limits().any(
                        |(applied, index, of)| {
                            (applied.name(), index) == (rule.clone(), *limit)
                                && of.value_for(gone) == value
                        },
                    )
            }
        }
    }
}

impl PolicyEvaluator {
    /// Takes over the evictions of earlier agents. Call it before the first [`Self::set_pods`].
    pub fn restore(&self, mut restored: Vec<RestoredEviction>) {
        restored.sort_by_key(|e| e.at);
        // One of another boot by a clock that was ahead has no time that the fleet could be told.
        let counts = |e: &&RestoredEviction| !e.at_own_limit && (e.is_same_boot || e.at < 0);
        if let Some(last) = restored.iter().rfind(counts) {
            self.limiter.note_restored(last.at);
        }
        let mut state = locked(&self.state);
        state.restored = restored;
    }

    /// Has new limits count what this tells of. Without it they count the evictions of earlier agents alone.
    pub fn set_history(&self, history: impl Fn() -> Vec<RestoredEviction> + Send + Sync + 'static) {
        // The first one stays: there is only one journal.
        let _ = self.history.set(Box::new(history));
    }

    /// The evictions that new quotas count.
    pub(super) fn history<'a>(&'a self, restored: &'a [RestoredEviction]) -> Evictions<'a> {
        LazyCell::new(Box::new(move || {
            let Some(history) = self.history.get() else {
                return restored.to_vec();
            };
            let mut evictions = history();
            evictions.sort_by_key(|e| e.at);
            evictions
        }))
    }

    /// Takes over the pods that an earlier agent has killed, each with the time of the signal in nanoseconds of
    /// CLOCK_MONOTONIC. They are not evicted again while processes of them are left. Call it before the first
    /// [`Self::set_pods`].
    pub fn await_end(&self, signalled: impl IntoIterator<Item = (String, u64)>) {
        locked(&self.state).ending = signalled.into_iter().collect();
    }

    /// Looks whether pods that an earlier agent has killed are gone, and whether evicted pods run anew. One that the
    /// API server has not heard of (`is_reported`) may yet be deleted.
    pub fn refresh_evicted(&self, is_reported: bool) {
        let mut state = locked(&self.state);
        let State { pods, ending, .. } = &mut *state;
        let now = monotonic_ns();
        ending.retain(|uid, signalled| match pods.get(uid) {
            None => now.saturating_sub(*signalled) < FORGOTTEN_NS,
            Some(held) => {
                let is_there = held.pod.has_older_than(*signalled);
                held.pod.eviction_state().set_ending(is_there);
                is_there
            }
        });
        for held in pods.values().filter(|_| is_reported) {
            let state = held.pod.eviction_state();
            let at = state.evicted_at();
            if at != 0 && held.pod.is_younger_than(at) {
                state.forget_eviction(at);
            }
        }
    }
}

impl State {
    /// Takes over what an earlier agent has done to a pod: an eviction, or a kill whose processes may still end.
    pub(super) fn restore_pod(&self, managed: &dyn ManagedPod) {
        let uid = &managed.pod().uid;
        let of_pod = self.restored.iter().filter(|e| e.pod.uid == *uid);
        let last = of_pod.max_by_key(|e| e.begun);
        // An evicted pod does not count as available, unless it runs anew.
        if let Some(last) = last.filter(|e| e.is_same_boot)
            && let Ok(begun) = u64::try_from(last.begun)
            && !managed.is_younger_than(begun)
            // This agent may have evicted it since.
            && managed.eviction_state().evicted_at() < begun
        {
            managed.eviction_state().mark_evicted(begun);
            managed.eviction_state().set_requested(last.is_requested);
        }
        if let Some(signalled) = self.ending.get(uid) {
            let is_there = managed.has_older_than(*signalled);
            managed.eviction_state().set_ending(is_there);
        }
    }
}
