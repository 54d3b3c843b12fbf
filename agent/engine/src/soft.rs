//! The request by which the manager hands over a soft eviction. When it is made, the planner decides.

use std::sync::{Arc, atomic::AtomicBool};

use crate::{EvictionDecision, Signal, record::SignalReading};

/// A pod that may be evicted for a soft threshold. `P` is how the component that acts holds the pod.
#[derive(Clone, Debug)]
pub struct SoftCandidate<P> {
    /// The pod.
    pub pod: P,
    /// Decision by which the pod would be evicted.
    pub decision: EvictionDecision,
    /// The signal as the decision saw it.
    pub reading: SignalReading,
}

/// A soft threshold has been met for its grace period: one of the candidates is to be evicted.
#[derive(Clone, Debug)]
pub struct SoftEvictionRequest<P> {
    /// The signal of the threshold.
    pub signal: Signal,
    /// The UID of the pod that the planner has chosen: the answer names it.
    pub chosen: String,
    /// The candidates in the order of eviction, at least one.
    pub candidates: Vec<SoftCandidate<P>>,
    /// Whether the hard threshold has been met for long enough as well ([`Planner::is_hard_due`](crate::Planner::is_hard_due)),
    /// as of the last look: disruption budgets no longer count.
    pub is_hard_due: Arc<AtomicBool>,
    /// Shadow mode: no pod is asked.
    pub shadow: bool,
    /// False once the threshold is not met any more: then no pod needs to go.
    pub is_needed: Arc<AtomicBool>,
}

impl<P> SoftEvictionRequest<P> {
    /// Converts the request to one that holds its pods in another form.
    pub fn map<Q>(self, pod: impl Fn(P) -> Q) -> SoftEvictionRequest<Q> {
        let candidates = self.candidates.into_iter().map(|candidate| SoftCandidate {
            pod: pod(candidate.pod),
            decision: candidate.decision,
            reading: candidate.reading,
        });
        SoftEvictionRequest {
            candidates: candidates.collect(),
            signal: self.signal,
            chosen: self.chosen,
            is_hard_due: self.is_hard_due,
            shadow: self.shadow,
            is_needed: self.is_needed,
        }
    }
}
