//! Which pods may go for a threshold.

use super::Planner;
use crate::{
    CandidateState, Pod, Ranked, Resource, Signal, Snapshot, Threshold, model::settings::Mode,
};

impl Planner {
    /// All pods that memory is reclaimed from before one goes: neither those that are spared nor those that end.
    pub fn reclaimable<'a>(&self, node: Snapshot<'a>) -> impl Iterator<Item = &'a Pod> {
        node.pods.iter().filter(|pod| self.is_reclaimable(pod))
    }

    /// Pods of [`Self::reclaimable`] that may be asked to end and use something of what is short, in the order of
    /// eviction for a signal.
    pub fn candidates<'a>(&self, node: Snapshot<'a>, signal: Signal) -> Vec<&'a Pod> {
        let uses = |ranked: &Ranked<'_>| ranked.usage.is_some_and(|used| used > 0);
        let may_go = |pod: &Pod| self.is_reclaimable(pod) && self.can_be_deleted(pod);
        self.ranked(node, signal)
            .into_iter()
            .filter(|ranked| uses(ranked) && may_go(ranked.pod))
            .map(|ranked| ranked.pod)
            .collect()
    }

    /// The node's rate of evictions does not count: no pod goes.
    fn is_reclaimable(&self, pod: &Pod) -> bool {
        !pod.is_deleting
            && self.state_at_own_limit(pod, Resource::Memory) == CandidateState::Eligible
    }

    /// Whether a pod may be evicted that is above a limit of its own. The kubelet would evict one that is still there a
    /// second time.
    pub(super) fn state_at_own_limit(&self, pod: &Pod, resource: Resource) -> CandidateState {
        match self.settings.mode {
            mode if pod.is_protected(mode) || pod.is_denied => CandidateState::Denied,
            _ if pod.may_be_over => CandidateState::Terminating,
            // In vain, and again as soon as the kubelet has started it.
            _ if self.settings.keeps_files(pod, resource) => CandidateState::Denied,
            _ if self.pending.is_refused(&pod.uid) => CandidateState::Unavailable,
            Mode::Evictd if self.pending.contains(&pod.uid) => CandidateState::Terminating,
            _ => CandidateState::Eligible,
        }
    }

    /// Whether a pod can be asked to end, as a soft threshold does.
    fn can_be_deleted(&self, pod: &Pod) -> bool {
        !self.settings.has_api_server || pod.can_be_deleted()
    }

    pub(super) fn may_go(&self, node: Snapshot<'_>, pod: &Pod, threshold: &Threshold) -> bool {
        self.state_for(node, pod, threshold) == CandidateState::Eligible
    }

    /// Whether a pod may be evicted for a threshold: for a soft one it is asked. One that was only asked to end goes for
    /// a hard one: no other pod in its stead. The node's rate counts it once the API server has agreed, without one at its end.
    pub(super) fn state_for(
        &self,
        node: Snapshot<'_>,
        pod: &Pod,
        threshold: &Threshold,
    ) -> CandidateState {
        let may_be_deleted = threshold.is_hard() || self.can_be_deleted(pod);
        let goes_again = threshold.is_hard() && self.pending.is_requested(&pod.uid);
        let is_charged =
            goes_again && self.settings.has_api_server && self.pending.is_charged(&pod.uid);
        match self.state_at_own_limit(pod, threshold.signal.resource()) {
            _ if !may_be_deleted => CandidateState::Denied,
            _ if node.bounds.rate.left == 0 && !is_charged => CandidateState::Denied,
            CandidateState::Terminating if goes_again => CandidateState::Eligible,
            state => state,
        }
    }
}
