//! Choices that may be cancelled: what the paces were before them.

use super::unsigned_ns;
use crate::{EvictionDecision, Resource, pace::Pace, planner::paces::Paces, units::shift_by_gap};

/// The newest last.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Choices(Vec<ChosenPod>);

#[derive(Clone, Debug, PartialEq)]
struct ChosenPod {
    uid: String,
    at: u64,
    is_soft: bool,
    is_urgent: bool,
    /// Resource for which the pod was chosen.
    resource: Resource,
    /// Its paces.
    before: Vec<Pace>,
}

impl Choices {
    /// A pod is being chosen, which the paces do not count yet.
    pub fn note(&mut self, chosen: &EvictionDecision, now: i64, resource: Resource, paces: &Paces) {
        // One that was to go and is there still, as the kubelet's mode finds it.
        self.0
            .retain(|known| known.uid != chosen.uid || known.is_soft != chosen.is_soft);
        self.0.push(ChosenPod {
            uid: chosen.uid.clone(),
            at: unsigned_ns(now),
            is_soft: chosen.is_soft,
            is_urgent: chosen.is_urgent(),
            resource,
            before: paces.of_resource(resource).copied().collect(),
        });
    }

    /// The pod that was chosen was not evicted, and none in its stead; `is_refused`: the kernel has refused SIGKILL. A
    /// request and a refusal keep the kubelet's pace.
    pub fn roll_back(&mut self, uid: &str, is_refused: bool, paces: &mut Paces) {
        let Some(position) = self.0.iter().rposition(|choice| choice.uid == uid) else {
            return;
        };
        let choice = self.0.remove(position);
        let keeps_pace = choice.is_soft || is_refused && !choice.is_urgent;
        let paces = paces.of_resource_mut(choice.resource);
        for ((_, pace), before) in paces.zip(&choice.before) {
            pace.roll_back(choice.at, keeps_pace, before);
        }
    }

    /// Leaves out so many nanoseconds until `now` in which no look was taken, as the paces do.
    pub fn exclude_gap(&mut self, late: u64, now: u64) {
        for choice in &mut self.0 {
            shift_by_gap(&mut choice.at, late, now);
            let before = choice.before.iter_mut();
            before.for_each(|pace| pace.exclude_gap(late, now));
        }
    }

    /// Forgets those of pods that are no victims.
    pub fn keep(&mut self, is_victim: impl Fn(&str) -> bool) {
        self.0.retain(|choice| is_victim(&choice.uid));
    }
}
