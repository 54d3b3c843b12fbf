//! Choices that may be cancelled: what the paces were before them.

use super::unsigned_ns;
use crate::{EvictionDecision, Resource, Signal, pace::Pace};

/// The newest last.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Choices(Vec<Choice>);

#[derive(Clone, Debug, PartialEq)]
struct Choice {
    uid: String,
    at: u64,
    is_soft: bool,
    /// The paces of the resource for which the pod was chosen.
    before: Vec<(Signal, Pace)>,
}

impl Choices {
    /// A pod is being chosen, which the paces do not count yet.
    pub fn note(
        &mut self,
        chosen: &EvictionDecision,
        now: i64,
        resource: Resource,
        paces: &[Pace],
    ) {
        let all = Signal::ALL.into_iter().zip(paces.iter().copied());
        self.0.push(Choice {
            uid: chosen.uid.clone(),
            at: unsigned_ns(now),
            is_soft: chosen.is_soft,
            before: all.filter(|(of, _)| of.resource() == resource).collect(),
        });
    }

    /// The pod that was chosen was not evicted, and none in its stead.
    pub fn take_back(&mut self, uid: &str, paces: &mut [Pace]) {
        let Some(position) = self.0.iter().rposition(|choice| choice.uid == uid) else {
            return;
        };
        let choice = self.0.remove(position);
        for (signal, before) in &choice.before {
            if let Some(pace) = paces.get_mut(*signal as usize) {
                pace.take_back(choice.at, choice.is_soft, before);
            }
        }
    }

    /// Forgets those of pods that are no victims.
    pub fn keep(&mut self, is_victim: impl Fn(&str) -> bool) {
        self.0.retain(|choice| is_victim(&choice.uid));
    }
}
