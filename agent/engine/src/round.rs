//! One round of evictions: the pods that are evicted for one scope's memory at one look, one after the other.
//!
//! [`crate::pace`] has said that a pod may go; how many do, and which, is decided here. The fast path runs it on the node's pods, the
//! judge (`cargo xtask judge`) on those of a simulated node.

use crate::{
    Candidate, growth_of,
    pace::{Judged, NextVictim, Pending, Relief, Urgency},
    permit::LastResort,
    select::{Rules, spare_in_vain, spare_still},
};

/// The pods, as a round reads and evicts them. A position is that of a candidate.
pub trait Pods {
    /// The candidates as they were loaded, and what each grew by, in bytes per second.
    fn candidates(&mut self) -> (&mut [Candidate], &[u64]);

    /// The rules of every choice.
    fn rules(&self) -> Rules;

    /// Loads the candidates anew: upper bounds of what they use, and which of them may be evicted for this scope. Returns what
    /// these use at most together, in bytes.
    fn load(&mut self, resort: LastResort) -> u64;

    /// The candidate that comes first in the order of eviction and uses something.
    fn choose(&mut self) -> Option<usize>;

    /// Whether a pod was evicted for this scope since the kubelet could have looked.
    fn has_evicted_lately(&self) -> bool;

    /// Reads in full the pods whose counters have grown most.
    fn watch_growers(&mut self);

    /// The candidate that has at least half of this growth (bytes per second) and may be evicted; its usage is exact then.
    fn main_grower(&mut self, growth: u64) -> Option<usize>;

    /// The next step of the last resort, where policies have denied pods and allow more of them when all else has failed.
    fn next_resort(&self, resort: LastResort) -> Option<LastResort>;

    /// Evicts a pod, and returns what is expected of it; `None` when that is nothing: it was empty already, or the kernel refuses.
    fn evict(&mut self, position: usize, choice: Choice) -> Option<Pending>;
}

/// How a pod was chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Which pods the policies' last resort has allowed.
    pub resort: LastResort,
    /// Because it grows: pods that come before it in the order were passed over.
    pub growing: bool,
}

/// What a round has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// As many pods were evicted as it takes, or as may be at once.
    Done,
    /// No pod is left that may be evicted.
    NoCandidates,
    /// All pods together cannot end the shortage, and it is not urgent.
    InVain,
}

/// The decision that a round carries out.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    /// Why pods may be evicted.
    pub urgency: Urgency,
    /// What that was decided from.
    pub judged: Judged,
    /// So many pods at most.
    pub most: usize,
}

impl Round {
    /// Evicts pods. Allocates nothing by itself.
    pub fn run(&self, pods: &mut impl Pods) -> Outcome {
        let Judged {
            pace,
            seen,
            pending,
            ..
        } = &self.judged;
        let attainable = pods.load(LastResort::None);
        if !pace.is_worth_it(seen, self.urgency, attainable, *pending) {
            return Outcome::InVain;
        }
        // Nothing stands between a crossing and the first signal.
        let has_evicted = pods.has_evicted_lately();
        if has_evicted {
            pods.watch_growers();
        }
        let outcome = match self.urgency {
            Urgency::Urgent { growth, .. } => self.evict_urgently(pods, growth),
            Urgency::Paced { .. } => self.evict_one(pods),
        };
        if !has_evicted {
            pods.watch_growers();
        }
        outcome
    }

    /// One pod, as the kubelet does.
    fn evict_one(&self, pods: &mut impl Pods) -> Outcome {
        while let Some(victim) = pods.choose() {
            // One that died by itself in between gives nothing, and the next one is asked for.
            if pods.evict(victim, Choice::default()).is_some() {
                return Outcome::Done;
            }
        }
        Outcome::NoCandidates
    }

    /// As many pods as it takes for memory to be back before nothing is left, at a growth in bytes per second.
    fn evict_urgently(&self, pods: &mut impl Pods, growth: u64) -> Outcome {
        let (candidates, grew) = pods.candidates();
        let mut relief = Relief::new(&self.judged, growth, growth_of(candidates, grew));
        let (mut resort, mut left) = (LastResort::None, self.most);
        while left > 0
            && let Some(next) = relief.next()
        {
            let growing = match next {
                NextVictim::First => spares_in_vain(pods, growth),
                NextVictim::Growing => {
                    let (candidates, grew) = pods.candidates();
                    spare_still(candidates, grew);
                    true
                }
            };
            let Some(victim) = pods.choose() else {
                if growing {
                    return Outcome::Done;
                }
                let Some(next) = pods.next_resort(resort) else {
                    return Outcome::NoCandidates;
                };
                resort = next;
                pods.load(resort);
                continue;
            };
            if let Some(gives) = pods.evict(victim, Choice { resort, growing }) {
                left -= 1;
                let (_, grew) = pods.candidates();
                relief.add(grew.get(victim).copied().unwrap_or(0), gives);
            }
        }
        Outcome::Done
    }
}

/// The first pod goes by the order alone. Where it has not ended the growth, those that follow it go for nothing as long as one pod
/// makes most of it and they cannot carry that together: they are passed over. Whether any is.
fn spares_in_vain(pods: &mut impl Pods, growth: u64) -> bool {
    if !pods.has_evicted_lately() {
        return false;
    }
    let Some(grower) = pods.main_grower(growth) else {
        return false;
    };
    let rules = pods.rules();
    let (candidates, _) = pods.candidates();
    spare_in_vain(candidates, rules, grower, growth)
}
