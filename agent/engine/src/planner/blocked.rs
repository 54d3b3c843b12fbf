//! Thresholds that are met while no pod may go for them.

use super::{
    Planner,
    plan::{BlockedThreshold, Snapshot},
};
use crate::{CandidateState, Pod, Signal, Threshold, model::settings::Mode};

/// The thresholds that were found blocked, each reported once for as long as it asks for an eviction.
#[derive(Clone, Debug, Default)]
pub(super) struct Blocked {
    reported: Vec<(Signal, bool)>,
    /// Those that are not reported yet.
    new: Vec<BlockedThreshold>,
}

impl Blocked {
    /// Forgets the thresholds that are not `due` any more.
    pub fn keep(&mut self, due: &[Threshold]) {
        let is_due = |reported: &(Signal, bool)| due.iter().any(|t| t.key() == *reported);
        self.reported.retain(is_due);
    }

    /// Takes those that are to be reported.
    pub fn take_new(&mut self) -> Vec<BlockedThreshold> {
        std::mem::take(&mut self.new)
    }
}

impl Planner {
    /// Takes note of a threshold for which no pod was chosen, if it is time for one and none may go, or none that is not urgent.
    pub(super) fn note_blocked(&mut self, now: i64, node: Snapshot<'_>, threshold: &Threshold) {
        if self.blocked.reported.contains(&threshold.key()) {
            return;
        }
        // `None`: it is not time for a pod.
        let is_urgent = match self.settings.mode {
            Mode::Kubelet => (!self.waits_as_kubelet(now, threshold.is_hard())).then_some(false),
            Mode::Evictd => self
                .decide(now, node, threshold)
                .filter(|(timing, growing)| {
                    !self.awaits_usage(node, threshold, timing, growing.as_ref())
                })
                .map(|(timing, _)| timing.urgency.is_urgent()),
        };
        let urgent_only = !node.bounds.allows_paced_for(threshold.signal.resource());
        let may_not_go = |pod: &Pod| match self.state_for(node, pod, threshold) {
            CandidateState::Denied | CandidateState::Unavailable => true,
            // One that does not end is not waited for any longer.
            CandidateState::Terminating => self.pending.is_overdue(&pod.uid, now),
            CandidateState::Eligible | CandidateState::PassedOver => false,
        };
        let is_blocked =
            |is_urgent: bool| urgent_only && !is_urgent || node.pods.iter().all(may_not_go);
        if is_urgent.is_some_and(is_blocked) {
            let is_rate_used_up = node.bounds.rate.left == 0;
            let denied = |pod: &&Pod| {
                (pod.is_denied || is_rate_used_up) && !pod.is_protected(self.settings.mode)
            };
            let denied = node.pods.iter().filter(denied).count();
            self.blocked.reported.push(threshold.key());
            self.blocked.new.push(BlockedThreshold {
                threshold: threshold.clone(),
                denied,
                urgent_only,
            });
        }
    }
}
