//! What earlier agents have evicted: it counts for limits as if this one had never been started anew.

use evictd_engine::{ManagedPod, Pod, limiter::PastEviction};
use evictd_sys::clock::monotonic_ns;

use super::{PolicyEvaluator, State, quotas::QuotaKey};
use crate::{Namespaces, PolicySet};

/// Why a pod that an earlier agent has killed is not evicted.
pub(super) const ENDING: &str = "it was evicted before the agent started, and has processes left";
/// Pods that are not here by then are not waited for, in nanoseconds since they were signalled.
const FORGOTTEN_NS: u64 = 600_000_000_000;

/// Finds out what counts for a limit.
pub(super) struct Past<'a> {
    pub evictions: &'a [PastEviction],
    pub set: &'a PolicySet,
    pub namespaces: &'a Namespaces,
    /// In nanoseconds of CLOCK_MONOTONIC.
    pub now: u64,
}

impl Past<'_> {
    /// When evictions were that count for a limit of `pod` for `period` nanoseconds, the oldest first.
    pub fn counted(&self, key: &QuotaKey, period: u64, pod: &Pod) -> Vec<i64> {
        let is_recent =
            |e: &&PastEviction| i128::from(self.now) - i128::from(e.at) < i128::from(period);
        let recent = self.evictions.iter().filter(is_recent);
        let counted = recent.filter(|e| self.counts(e, key, pod));
        counted.map(|e| e.at).collect()
    }

    fn counts(&self, eviction: &PastEviction, key: &QuotaKey, pod: &Pod) -> bool {
        let gone = &eviction.pod;
        match key {
            QuotaKey::Node => true,
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
                    && self.set.ruling(gone, self.namespaces).limits().any(
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
    /// Takes over what earlier agents have evicted, the oldest first. Before the first pods are presented.
    pub fn restore(&self, mut past: Vec<PastEviction>) {
        past.sort_by_key(|e| e.at);
        if let Some(last) = past.last() {
            self.limiter.note_past(last.at);
        }
        let mut state = self.state();
        state.past = past;
    }

    /// Pods that an earlier agent has killed, with the moment in nanoseconds of CLOCK_MONOTONIC: they are not evicted
    /// again while something is left of them. Before the first pods are presented.
    pub fn await_end(&self, signalled: impl IntoIterator<Item = (String, u64)>) {
        self.state().ending = signalled.into_iter().collect();
    }

    /// Looks whether pods that an earlier agent has killed are gone.
    pub fn look_after_the_ending(&self) {
        let mut state = self.state();
        let State { pods, ending, .. } = &mut *state;
        let now = monotonic_ns();
        ending.retain(|uid, signalled| match pods.get(uid) {
            None => now.saturating_sub(*signalled) < FORGOTTEN_NS,
            Some(held) => {
                let is_there = held.pod.has_older_than(*signalled);
                held.pod.permit().set_ending(is_there);
                is_there
            }
        });
    }
}

impl State {
    /// Takes over what an earlier agent has done to a pod.
    pub(super) fn recognise(&self, managed: &dyn ManagedPod) {
        let uid = &managed.pod().uid;
        let last = self.past.iter().rfind(|e| e.pod.uid == *uid);
        // It does not count as available, unless it runs anew.
        if let Some(last) = last.filter(|e| e.is_same_boot)
            && let Ok(at) = u64::try_from(last.at)
            && !managed.is_younger_than(at)
        {
            managed.permit().mark_evicted(at);
        }
        if let Some(signalled) = self.ending.get(uid) {
            let is_there = managed.has_older_than(*signalled);
            managed.permit().set_ending(is_there);
        }
    }
}
