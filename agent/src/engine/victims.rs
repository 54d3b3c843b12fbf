//! Victims that are on their way out: what they use counts as coming back, so that nobody else dies for it (R43).

use std::collections::HashMap;

use super::{Eviction, Layout, Pod, Signal, Snapshot};

/// How long a victim may take beyond its grace period until it no longer counts as on its way: it does not block the
/// next one (kubernetes/kubernetes#124081).
const DEADLINE_NANOS: i64 = 10_000_000_000;

/// Victims by UID, with the time until which they count as on their way.
#[derive(Clone, Debug, Default)]
pub(super) struct Victims(HashMap<String, i64>);

impl Victims {
    /// Takes note of evictions.
    pub(super) fn remember(&mut self, now: i64, evictions: &[Eviction]) {
        for eviction in evictions {
            let grace = eviction
                .grace_period_seconds
                .max(0)
                .saturating_mul(1_000_000_000);
            let deadline = now.saturating_add(grace).saturating_add(DEADLINE_NANOS);
            self.0.insert(eviction.uid.clone(), deadline);
        }
    }

    /// What a victim used has come back once it is no longer among the pods.
    pub(super) fn forget_the_dead(&mut self, node: Snapshot<'_>) {
        self.0
            .retain(|uid, _| node.pods.iter().any(|pod| pod.uid == *uid));
    }

    /// A pod does not go after all.
    pub(super) fn forget(&mut self, uid: &str) {
        self.0.remove(uid);
    }

    /// Whether a pod was evicted already; it is not evicted twice, even if it takes too long.
    pub(super) fn contains(&self, pod: &Pod) -> bool {
        self.0.contains_key(&pod.uid)
    }

    /// How much of what a signal watches is on its way back.
    pub(super) fn coming(
        &self,
        now: i64,
        node: Snapshot<'_>,
        layout: Layout,
        signal: Signal,
    ) -> u64 {
        let dying = node
            .pods
            .iter()
            .filter(|pod| self.0.get(&pod.uid).is_some_and(|deadline| now < *deadline));
        let usage = |pod: &Pod| Some(layout.usage(signal, pod, node.usages.get(&pod.uid)?));
        dying.filter_map(usage).fold(0, u64::saturating_add)
    }
}
