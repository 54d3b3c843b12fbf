//! Chooses a victim among prepared candidates, for the fast path and the planner, without allocating.
//!
//! Reading a pod's exact working set costs a system call; an upper bound is known anyway (the last value plus what
//! may have come since, or the cgroup's usage counter). As more usage never moves a pod back ([`RankKey`]), it is
//! enough to read exactly those pods that come first by their bounds: the pod that is first by an exact value, is
//! first.

use std::cmp::Reverse;

use super::{QosClass, RankInputs, RankKey, Resource};
use crate::{
    growth::grown_in,
    kubelet_times::MONITORING_INTERVAL_NS,
    model::settings::RankingStrategy,
    permit::{MAX_EVICTIONS_PER_QUOTA, NodeRate},
    select::top::{Place, TopCandidates},
};

/// A pod that may be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The pod's claim on the resource that is short.
    pub inputs: RankInputs,
    /// Amount of the resource that the pod uses: exactly, or at most.
    pub usage: u64,
    /// Whether `usage` is the exact value, read at this decision.
    pub is_exact: bool,
    /// Whether the pod may be chosen at all.
    pub state: CandidateState,
}

/// Whether a candidate may be chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CandidateState {
    /// The pod may be chosen.
    #[default]
    Eligible,
    /// The pod may not be evicted now: a critical pod, or policies, a quota, the node's rate or a pause deny it.
    Denied,
    /// The pod was killed already; what it used is on its way back.
    Terminating,
    /// The pod is no candidate here: its cgroup is gone, the scope does not count its memory, or the kernel has refused
    /// SIGKILL for it.
    Unavailable,
    /// The pod has no part in a growth that must end at once (`pass_over_not_growing`), or would go in vain
    /// (`pass_over_in_vain`).
    PassedOver,
}

impl CandidateState {
    /// Whether the pod's memory is nothing that it may still grow by: it was killed, or is gone.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Terminating | Self::Unavailable)
    }
}

/// A candidate with less than 1/64 of the total growth does not grow.
const LEAST_PART: u64 = 64;

pub(crate) fn is_eligible(candidate: &Candidate) -> bool {
    candidate.state == CandidateState::Eligible
}

/// Passes over those of the candidates that may go of which `is_it` holds, with their positions; whether there are any.
pub(crate) fn pass_over(
    candidates: &mut [Candidate],
    is_it: impl Fn(usize, &Candidate) -> bool,
) -> bool {
    let mut any = false;
    for (position, candidate) in candidates.iter_mut().enumerate() {
        if is_eligible(candidate) && is_it(position, candidate) {
            candidate.state = CandidateState::PassedOver;
            any = true;
        }
    }
    any
}

/// What the candidates that may go grow by together; `grew` is what each grows by, in bytes per second.
pub(crate) fn eligible_growth(candidates: &[Candidate], grew: &[u64]) -> u64 {
    sum_of_eligible(candidates, |at| grew.get(at).copied().unwrap_or(0))
}

/// What the candidates that may go have together, of what each has by its position.
pub(crate) fn sum_of_eligible(candidates: &[Candidate], amount: impl Fn(usize) -> u64) -> u64 {
    let all = candidates.iter().enumerate();
    let eligible = all.filter(|(_, candidate)| is_eligible(candidate));
    eligible.fold(0, |sum, (at, _)| sum.saturating_add(amount(at)))
}

/// Passes over the candidates that have no part in a growth of so much `per_second` that must end, until they are loaded
/// anew. `growers` are those whose growth is known by what only their end gives back, with their positions. Where they do
/// not make half of it, `grew` counts, by which the usage counter of each grows: page cache and charges in advance included.
pub(crate) fn pass_over_not_growing(
    candidates: &mut [Candidate],
    grew: &[u64],
    growers: &[(u64, usize)],
    per_second: u64,
) {
    // An empty place among the growers has a position, too: that of the first candidate.
    let known = |position| {
        let own = growers.iter().filter(|(_, grower)| *grower == position);
        own.map(|(grew, _)| *grew).max().unwrap_or(0)
    };
    let are_known = sum_of_eligible(candidates, known) > per_second / 2;
    let grew = |position| match are_known {
        true => known(position),
        false => grew.get(position).copied().unwrap_or(0),
    };
    let all = sum_of_eligible(candidates, grew);
    pass_over(candidates, |position, _| grew(position) <= all / LEAST_PART);
}

/// A growth that evictions have to end.
#[derive(Debug)]
pub(crate) struct UrgentGrowth<'a> {
    /// Growth per second, in the resource's unit.
    pub per_second: u64,
    /// The same over a time for which that of pods is known too: a burst of some milliseconds is less in theirs. At most
    /// `per_second`.
    pub steady: u64,
    /// The part of each pod that grows, and the pod's position.
    pub growers: &'a mut [(u64, usize)],
    /// What eligible pods grow by that are not among the growers, because others grow more.
    pub of_others: u64,
}

/// Whether a pod goes by the order alone, whichever pods make the growth: the first one does, if the node's eviction rate
/// allows another one after it. For later ones [`pass_over_in_vain`] is asked.
pub(crate) fn goes_by_order_alone(has_evicted_lately: bool, rate: NodeRate) -> bool {
    !has_evicted_lately && rate.left > 1
}

/// Passes over candidates that rank before the main growers, if to evict them is useless: the growth uses up what they
/// free within one monitoring interval, and the main growers must be evicted anyway. As many of them count as the node's
/// rate still allows beside the fewest main growers. A grower within its request is no main grower. Returns whether any
/// was passed over.
///
/// `read` tells the exact usage of the candidate at a position, of which the one that it has is an upper bound, and what
/// only its end gives back.
pub(crate) fn pass_over_in_vain(
    candidates: &mut [Candidate],
    rules: SelectionCriteria,
    growth: UrgentGrowth<'_>,
    rate: NodeRate,
    mut read: impl FnMut(usize, u64) -> (u64, u64),
) -> bool {
    let needed = grown_in(growth.per_second, MONITORING_INTERVAL_NS);
    let main = main_growers(candidates, rules, growth);
    let place = |&(_, position): &(u64, usize)| {
        let candidate = candidates.get(position)?;
        Some(rules.place(position, candidate))
    };
    let Some(first) = main.pods.iter().filter_map(place).min() else {
        return false;
    };
    let is_before = |position: usize, candidate: &Candidate| {
        is_eligible(candidate) && rules.place(position, candidate) < first
    };
    let beside = match rate.exempts_growers {
        true => rate.left,
        false => rate.left.saturating_sub(main.fewest),
    };
    let (mut at_most, mut amount) = (SumOfLargest::new(beside), SumOfLargest::new(beside));
    for (position, candidate) in candidates.iter().enumerate() {
        if is_before(position, candidate) {
            at_most.add(candidate.usage);
        }
    }
    // Upper bounds may be page cache: by its exact usage a pod may rank behind the growers, and what counts of it the kernel
    // could take at any time.
    for (position, candidate) in candidates.iter_mut().enumerate() {
        if at_most.sum < needed || amount.sum >= needed {
            break;
        }
        if is_before(position, candidate) {
            let (usage, held) = read(position, candidate.usage);
            (candidate.usage, candidate.is_exact) = (usage, true);
            if is_before(position, candidate) {
                amount.add(held);
            }
        }
    }
    if amount.sum >= needed {
        return false;
    }
    pass_over(candidates, is_before)
}

/// The sum of the largest amounts, of so many at most.
struct SumOfLargest {
    sum: u64,
    most: usize,
    largest: [u64; MAX_EVICTIONS_PER_QUOTA as usize],
}

impl SumOfLargest {
    fn new(most: usize) -> Self {
        Self {
            sum: 0,
            most,
            largest: [0; MAX_EVICTIONS_PER_QUOTA as usize],
        }
    }

    fn add(&mut self, amount: u64) {
        // No rate allows more than are kept here.
        let Some(kept) = self.largest.get_mut(..self.most) else {
            self.sum = self.sum.saturating_add(amount);
            return;
        };
        if let Some(least) = kept.iter_mut().min().filter(|least| **least < amount) {
            self.sum = self
                .sum
                .saturating_add(amount - std::mem::replace(least, amount));
        }
    }
}

/// Passes over all candidates that are no main growers; whether one is left.
pub(crate) fn pass_over_all_but_growers(
    candidates: &mut [Candidate],
    rules: SelectionCriteria,
    growth: UrgentGrowth<'_>,
) -> bool {
    let main = main_growers(candidates, rules, growth).pods;
    let is_main = |position| main.iter().any(|(_, grower)| *grower == position);
    pass_over(candidates, |position, _| !is_main(position));
    !main.is_empty()
}

/// The pods that make half of a growth.
#[derive(Default)]
struct MainGrowers<'g> {
    /// As few as it takes, and those that grow half as fast as the last of them: what each grows by, and its position.
    pods: &'g [(u64, usize)],
    /// How few it takes.
    fewest: usize,
}

/// The pods that make half of a growth; none where all of them together do not.
fn main_growers<'g>(
    candidates: &[Candidate],
    rules: SelectionCriteria,
    growth: UrgentGrowth<'g>,
) -> MainGrowers<'g> {
    let UrgentGrowth {
        per_second,
        steady: growth,
        growers,
        of_others,
    } = growth;
    let may_go = |&(grew, position): &(u64, usize)| {
        let is_exceeded = |c: &Candidate| c.inputs.is_exceeded(rules.resource, c.usage);
        let candidate = candidates.get(position).filter(|c| is_eligible(c));
        grew > 0 && candidate.is_some_and(is_exceeded)
    };
    // Those that may go come first, and of them the fastest.
    growers.sort_unstable_by_key(|grower| Reverse((may_go(grower), *grower)));
    let first = |count| growers.get(..count).unwrap_or_default();
    let growing = first(growers.partition_point(may_go));
    let (mut all, mut least, mut fewest) = (0_u64, 0, 0);
    for &(grew, _) in growing {
        if all >= growth / 2 && all > 0 {
            break;
        }
        // No pod makes more of a growth than there is. Others may have given back what is missing in the steady one.
        least = grew.min(per_second);
        all = all.saturating_add(grew.min(growth));
        fewest += 1;
    }
    if all.saturating_add(of_others) < growth / 2 {
        return MainGrowers::default();
    }
    let pods = first(growing.partition_point(|(grew, _)| *grew >= least / 2));
    MainGrowers { pods, fewest }
}

/// The rules of one choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SelectionCriteria {
    /// The order of eviction.
    pub strategy: RankingStrategy,
    /// The resource that is short.
    pub resource: Resource,
    /// Whether system daemons use more than was reserved for them: only then does the QoS strategy touch Guaranteed
    /// pods while others are left.
    pub system_over_reserved: bool,
}

/// Among which pods one is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Among {
    /// All that may go, as the kubelet does.
    All,
    /// Pods that use something of what is short: the end of the others would bring nothing.
    Using,
}

/// Chooses a victim: the position of the first in the order of eviction, which becomes [`CandidateState::Terminating`].
/// Candidates that rank equal go in the order of the slice, which is therefore kept sorted by namespace, name and uid,
/// as the full ranking sorts them.
///
/// `refine` reads the exact usage of the candidate at a position, or says `None` if the pod is gone.
///
/// Allocates nothing, takes no lock, knows no clock and does not panic.
pub fn select(
    candidates: &mut [Candidate],
    rules: SelectionCriteria,
    among: Among,
    mut refine: impl FnMut(usize) -> Option<u64>,
) -> Option<usize> {
    let mut passed_over = PassedOver {
        guaranteed: rules.strategy == RankingStrategy::Qos && !rules.system_over_reserved,
        idle: among == Among::Using,
    };
    let mut found = first_exact(candidates, rules, passed_over, &mut refine);
    if found.is_none() && passed_over.guaranteed {
        // Only Guaranteed pods are left.
        passed_over.guaranteed = false;
        found = first_exact(candidates, rules, passed_over, &mut refine);
    }
    let first = found?;
    candidates.get_mut(first)?.state = CandidateState::Terminating;
    Some(first)
}

/// The first candidates in the order of eviction by what is known of them, without reading more: their positions are
/// written to `ranked`, and nothing is chosen. How many were written. Allocates nothing.
pub fn rank(candidates: &[Candidate], rules: SelectionCriteria, ranked: &mut [usize]) -> usize {
    let passed_over = PassedOver {
        guaranteed: rules.strategy == RankingStrategy::Qos && !rules.system_over_reserved,
        idle: false,
    };
    let mut front = TopCandidates::of(candidates, rules, passed_over);
    let mut count = 0;
    for (at, position) in ranked.iter_mut().zip(std::iter::from_fn(|| front.pop())) {
        *at = position;
        count += 1;
    }
    count
}

impl SelectionCriteria {
    fn place(self, position: usize, candidate: &Candidate) -> Place {
        let usage = Some(candidate.usage);
        (
            RankKey::new(self.strategy, self.resource, candidate.inputs, usage),
            position,
        )
    }
}

/// Pods that are not chosen this time, although they may be another time.
#[derive(Clone, Copy)]
struct PassedOver {
    /// Guaranteed pods, and those of unknown priority, which go after them.
    guaranteed: bool,
    idle: bool,
}

impl PassedOver {
    fn includes(self, candidate: &Candidate) -> bool {
        let RankInputs {
            qos,
            priority_unknown,
            ..
        } = candidate.inputs;
        (self.guaranteed && (qos == QosClass::Guaranteed || priority_unknown))
            || (self.idle && candidate.is_exact && candidate.usage == 0)
    }
}

/// The position of the candidate that goes first, once that is certain.
fn first_exact(
    candidates: &mut [Candidate],
    rules: SelectionCriteria,
    passed_over: PassedOver,
    refine: &mut impl FnMut(usize) -> Option<u64>,
) -> Option<usize> {
    let mut front = TopCandidates::of(candidates, rules, passed_over);
    loop {
        let Some(first) = front.pop() else {
            if front.is_complete() {
                return None;
            }
            front = TopCandidates::of(candidates, rules, passed_over);
            continue;
        };
        let candidate = candidates.get_mut(first)?;
        if candidate.is_exact {
            return Some(first);
        }
        match refine(first) {
            Some(usage) => {
                candidate.usage = usage;
                candidate.is_exact = true;
                if !passed_over.includes(candidate) {
                    front.put_back(rules.place(first, candidate));
                }
            }
            None => candidate.state = CandidateState::Unavailable,
        }
    }
}

#[cfg(test)]
mod tests;
mod top;
