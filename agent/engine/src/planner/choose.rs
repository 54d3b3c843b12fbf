//! Which pod goes for a threshold, and whether it goes now.

use super::{Planner, unsigned_ns};
use crate::{
    Among, Candidate, Cause, EvictionDecision, Pod, PodUsage, Ranked, SelectionCriteria, Snapshot,
    Threshold, Timing,
    model::settings::Mode,
    pace::{Decision, PaceInputs, PaceProfile, URGENT_USAGE_WAIT_NS, Urgency},
    planner::usage_growth::PodGrowth,
    select,
    select::{UrgentGrowth, goes_by_order_alone, pass_over_all_but_growers, pass_over_in_vain},
    units::scaled,
};

impl Planner {
    /// The pod that may be evicted now for one threshold: urgency decides ([`crate::pace`]). One at a look, however
    /// urgent, and no [`crate::round`]: a round takes further pods by what it expects of the memory of the first, while
    /// the next look here, within a quarter of a second, sees what the end of a pod has brought.
    pub(super) fn choose_in_time(
        &mut self,
        now: i64,
        node: Snapshot<'_>,
        threshold: &Threshold,
    ) -> Option<EvictionDecision> {
        let (timing, growing) = self.decide(now, node, threshold)?;
        let attainable = self.attainable(node, threshold);
        let resource = threshold.signal.resource();
        // A fleet that evicts holds back what is not urgent. So does an API server that takes no DELETE, or a kubelet that
        // removes no files.
        let allows_paced = node.bounds.allows_paced_for(resource)
            && !(resource.is_of_files() && self.pending.files_stay(now));
        if !allows_paced && !timing.urgency.is_urgent()
            || self.awaits_usage(node, threshold, &timing, growing.as_ref())
            || self.awaits_an_end(node, threshold, timing.urgency)
            || !timing
                .pace_inputs
                .can_end_shortage(timing.urgency, attainable)
        {
            return None;
        }
        let growing = growing.as_ref();
        let grower = || {
            self.choose(
                node.beyond_rate()?,
                threshold,
                Some(growing?),
                Excluded::AllButGrowers,
            )
        };
        let (chosen, is_beyond_rate) = match self.choose(node, threshold, growing, Excluded::InVain)
        {
            Some(chosen) => (chosen, false),
            None => (grower()?, true),
        };
        let timing = Timing {
            is_beyond_rate,
            ..timing
        };
        Some(EvictionDecision {
            timing: Some(Box::new(timing)),
            ..chosen
        })
    }

    /// Whether a pod may go now for one threshold, how urgently, and which pods make an urgent growth.
    pub(super) fn decide<'a>(
        &self,
        now: i64,
        node: Snapshot<'a>,
        threshold: &Threshold,
    ) -> Option<(Timing, Option<Growing<'a>>)> {
        let mut pace_inputs = self.pace_inputs(now, node, threshold)?;
        let Decision::Evict { mut urgency } = pace_inputs.decide() else {
            return None;
        };
        let mut growing = self.growing(node, &pace_inputs, threshold, urgency);
        let is_of_files = threshold.signal.resource().is_of_files();
        if is_of_files && growing.as_ref().is_some_and(Growing::is_of_no_pods) {
            growing = None;
            pace_inputs.profile = PaceProfile::Soft;
            let Decision::Evict { urgency: paced } = pace_inputs.decide() else {
                return None;
            };
            urgency = paced;
        }
        let timing = Timing {
            urgency,
            pace_inputs,
            is_beyond_rate: false,
        };
        Some((timing, growing))
    }

    /// All that a decision for one threshold is made from.
    fn pace_inputs(
        &self,
        now: i64,
        node: Snapshot<'_>,
        threshold: &Threshold,
    ) -> Option<PaceInputs> {
        let signal = threshold.signal;
        let pace_inputs = PaceInputs {
            now: unsigned_ns(now),
            pace: *self.paces.of(threshold),
            shortage: self.shortage(threshold, node.observations.get(signal)?),
            pending: self.pending.pending(now, node, &self.settings, threshold),
            profile: profile_at_looks(threshold),
        };
        // For a moment growth may be the victims' own.
        let PaceInputs { now, pace, .. } = pace_inputs;
        let is_victims = pace_inputs.pending.due.is_some()
            && (pace.is_settling(now) || pace.is_settling_elsewhere(now));
        (!is_victims).then_some(pace_inputs)
    }

    /// The pods that make an urgent growth, unless the next pod goes by the order alone.
    fn growing<'a>(
        &self,
        node: Snapshot<'a>,
        pace_inputs: &PaceInputs,
        threshold: &Threshold,
        urgency: Urgency,
    ) -> Option<Growing<'a>> {
        let has_evicted = pace_inputs.pace.has_evicted_lately(pace_inputs.now);
        match goes_by_order_alone(has_evicted, node.bounds.rate) {
            true => None,
            false => self.growing_by(urgency, node, threshold),
        }
    }

    /// The pods that make an urgent growth, also where the node's rate is used up.
    fn growing_by<'a>(
        &self,
        urgency: Urgency,
        node: Snapshot<'a>,
        threshold: &Threshold,
    ) -> Option<Growing<'a>> {
        let Urgency::Urgent {
            growth: per_second,
            exhausted_in,
        } = urgency
        else {
            return None;
        };
        let shortest = profile_at_looks(threshold).shortest_window(exhausted_in);
        let pods = self.growers(node.beyond_rate().unwrap_or(node), threshold, shortest);
        Some(Growing { per_second, pods })
    }

    /// Whether a decision waits: what the pods use is not known yet, or which of them grow.
    pub(super) fn awaits_usage(
        &self,
        node: Snapshot<'_>,
        threshold: &Threshold,
        timing: &Timing,
        growing: Option<&Growing<'_>>,
    ) -> bool {
        let waits_for = timing.pace_inputs.waits_for_usage_since(timing.urgency);
        let node = node.beyond_rate().unwrap_or(node);
        waits_for.is_some_and(|since| {
            self.awaits_walks(node, threshold, since)
                || growing.is_some_and(|growing| growing.awaits_walks(timing.urgency, since))
        })
    }

    /// Whether a decision waits until it is known what becomes of a pod without processes: it may be over, or goes itself
    /// in a moment. No other pod goes in its stead for what it holds, unless others make an urgent growth.
    fn awaits_an_end(&self, node: Snapshot<'_>, threshold: &Threshold, urgency: Urgency) -> bool {
        let largest = |is_it: &dyn Fn(&Pod) -> bool| {
            let pods = node.pods.iter().filter(|pod| is_it(pod));
            let usages = pods.filter_map(|pod| self.usage(node, threshold, pod));
            usages.max().unwrap_or(0)
        };
        let may_be_over = largest(&|pod| pod.may_be_over);
        if !threshold.signal.resource().is_of_files()
            || may_be_over == 0
            || may_be_over < largest(&|pod| self.may_go(node, pod, threshold))
        {
            return false;
        }
        let growing = self.growing_by(urgency, node, threshold);
        growing.is_none_or(|growing| growing.per_second == 0 || growing.is_of_no_pods())
    }

    /// Whether the files of a pod that may go, or may be over, were not walked yet: it counts as one that uses nothing,
    /// whatever it has. What no hook counts is of a walk that began since a moment.
    fn awaits_walks(&self, node: Snapshot<'_>, threshold: &Threshold, since: u64) -> bool {
        let resource = threshold.signal.resource();
        let is_recent = |usage: &PodUsage| {
            let began = usage.walk_of(resource);
            began.is_none_or(|began| began >= since)
        };
        let is_walked = |pod: &Pod| {
            let usage = node.usages.get(&pod.uid);
            let walked = usage.filter(|usage| usage.ephemeral_storage.is_some());
            walked.is_some_and(is_recent)
        };
        let counts = |pod: &&Pod| pod.may_be_over || self.may_go(node, pod, threshold);
        let mut pods = node.pods.iter().filter(counts);
        resource.is_of_files() && pods.any(|pod| !is_walked(pod))
    }

    /// Lists the growth of each pod that may be evicted and grows, with its UID. That of the signal was seen over `shortest`
    /// nanoseconds at least.
    fn growers<'a>(
        &self,
        node: Snapshot<'a>,
        threshold: &Threshold,
        shortest: u64,
    ) -> Vec<(PodGrowth, &'a str)> {
        let may_go = |pod: &&Pod| self.may_go(node, pod, threshold);
        let grew = |pod: &'a Pod| {
            let growth = &self.usage_growth;
            let grew = growth.of(threshold.signal, &pod.uid, shortest)?;
            Some((grew, &*pod.uid))
        };
        let growers = node.pods.iter().filter(may_go).filter_map(grew);
        growers.filter(|(grew, _)| grew.fastest > 0).collect()
    }

    /// Computes what all pods that may go use together of what a threshold watches, in its unit.
    pub(super) fn attainable(&self, node: Snapshot<'_>, threshold: &Threshold) -> u64 {
        let may_go = |pod: &&Pod| self.may_go(node, pod, threshold);
        let pods = node.pods.iter().filter(may_go);
        let usages = pods.filter_map(|pod| self.usage(node, threshold, pod));
        usages.fold(0, u64::saturating_add)
    }

    /// What a pod uses of what a threshold watches, in its unit.
    fn usage(&self, node: Snapshot<'_>, threshold: &Threshold, pod: &Pod) -> Option<u64> {
        let usage = node.usages.get(&pod.uid)?;
        Some(self.settings.layout.usage(threshold.signal, pod, usage))
    }

    /// The pod that the kubelet evicts. Those without numbers come first, which a candidate cannot say.
    pub(super) fn first_in_order(
        &self,
        node: Snapshot<'_>,
        threshold: &Threshold,
    ) -> Option<EvictionDecision> {
        let ranked = self.ranked(node, threshold.signal);
        let first = ranked
            .iter()
            .find(|ranked| self.may_go(node, ranked.pod, threshold))?;
        Some(self.eviction_of(node, threshold, first.pod))
    }

    /// Chooses a pod for one threshold. The order is that of the ranking, the choice that of the fast path.
    fn choose(
        &self,
        node: Snapshot<'_>,
        threshold: &Threshold,
        growing: Option<&Growing<'_>>,
        excluded: Excluded,
    ) -> Option<EvictionDecision> {
        let resource = threshold.signal.resource();
        let ranked = self.ranked(node, threshold.signal);
        let candidate = |ranked: &Ranked<'_>| Candidate {
            inputs: ranked.inputs,
            usage: ranked.usage.unwrap_or(0),
            is_exact: true,
            state: self.state_for(node, ranked.pod, threshold),
        };
        let mut candidates: Vec<Candidate> = ranked.iter().map(candidate).collect();
        let rules = SelectionCriteria {
            strategy: self.settings.strategy,
            resource,
            system_over_reserved: node.observations.system_over_reserved(),
        };
        if let Some(growing) = growing {
            let position = |uid| ranked.iter().position(|ranked| ranked.pod.uid == uid);
            let growers = growing.pods.iter();
            let (steady, of) = growing.measure();
            let mut growers: Vec<(u64, usize)> = growers
                .filter_map(|(grew, uid)| Some((of(grew), position(*uid)?)))
                .collect();
            let growth = UrgentGrowth {
                per_second: growing.per_second,
                steady,
                growers: &mut growers,
                of_others: 0,
            };
            match excluded {
                Excluded::AllButGrowers => {
                    pass_over_all_but_growers(&mut candidates, rules, growth)
                }
                Excluded::InVain => {
                    let read = |_, usage| (usage, usage);
                    pass_over_in_vain(&mut candidates, rules, growth, node.bounds.rate, read)
                }
            };
        }
        let chosen = select(&mut candidates, rules, Among::Using, |_| None)?;
        Some(self.eviction_of(node, threshold, ranked.get(chosen)?.pod))
    }

    /// All pods that may be asked in place of a soft eviction's pod, in the order of eviction: a budget may protect the
    /// first ones. Empty for what no soft threshold asks for.
    pub fn alternatives(
        &self,
        node: Snapshot<'_>,
        chosen: &EvictionDecision,
    ) -> Vec<EvictionDecision> {
        let Cause::Pressure(signal) = chosen.cause else {
            return Vec::new();
        };
        let seen = node.observations.get(signal);
        let threshold = seen.and_then(|seen| self.pressure.threshold(signal, false, seen.capacity));
        let Some(threshold) = threshold else {
            return Vec::new();
        };
        let leaves_idle = self.settings.mode == Mode::Evictd;
        let may_go = |ranked: &Ranked<'_>| {
            let uses = ranked.usage.is_some_and(|used| used > 0);
            let is_eligible = self.may_go(node, ranked.pod, threshold);
            // What uses nothing of what is short would go in vain.
            chosen.uid == ranked.pod.uid || is_eligible && (uses || !leaves_idle)
        };
        let decision = |pod: &Pod| EvictionDecision {
            timing: chosen.timing.clone(),
            ..self.eviction_of(node, threshold, pod)
        };
        self.ranked(node, signal)
            .into_iter()
            .filter(may_go)
            .map(|ranked| decision(ranked.pod))
            .collect()
    }
}

/// The profile by which the planner decides for a threshold. Hard memory comes here by `evictd replay` alone: a step of its
/// scenario stands for a look of the kubelet, and the first one counts.
fn profile_at_looks(threshold: &Threshold) -> PaceProfile {
    match PaceProfile::for_threshold(threshold.signal, threshold.is_hard()) {
        PaceProfile::Sustained => PaceProfile::Immediate,
        profile => profile,
    }
}

/// The pods that do not go where others make an urgent growth.
#[derive(Clone, Copy)]
enum Excluded {
    /// Those that come before the others, and would go in vain.
    InVain,
    /// All but those that make the growth.
    AllButGrowers,
}

/// Growth of pods that comes in waves: less than this part of the fastest is steady.
const WAVES: u64 = 8;

/// A growth, and the pods that have it.
pub(super) struct Growing<'a> {
    /// Growth of the signal per second.
    per_second: u64,
    /// Growth of each pod that may be evicted and grows, with its UID.
    pods: Vec<(PodGrowth, &'a str)>,
}

impl Growing<'_> {
    /// What pods grow by together, each by what `of` it says.
    fn sum(&self, of: impl Fn(&PodGrowth) -> u64) -> u64 {
        let theirs = self.pods.iter().map(|(grew, _)| of(grew));
        theirs.fold(0, u64::saturating_add)
    }

    /// See [`UrgentGrowth::steady`], and what of a pod is compared with it. A burst is less over a longer time by as much as that of
    /// the pods. Where next to none of it is steady it comes in waves.
    fn measure(&self) -> (u64, fn(&PodGrowth) -> u64) {
        let (steady, fastest) = (self.sum(|g| g.steady), self.sum(|g| g.fastest));
        match steady >= fastest / WAVES {
            true => (scaled(self.per_second, steady, fastest), |g| g.steady),
            false => (self.per_second, |g| g.fastest),
        }
    }

    /// Whether no pods make half of the growth, as far as that is known: another pod's end does not stop it.
    fn is_of_no_pods(&self) -> bool {
        self.sum(|grew| grew.fastest) < self.per_second / 2
    }

    /// Whether there is time for another walk of those that have grown since one from before a moment, and may have ended
    /// that long ago.
    fn awaits_walks(&self, urgency: Urgency, since: u64) -> bool {
        let is_old = |grew: &PodGrowth| grew.since_walk.is_some_and(|began| began < since);
        let old = self.sum(|grew| if is_old(grew) { grew.fastest } else { 0 });
        let is_soon = |in_ns: u64| in_ns <= URGENT_USAGE_WAIT_NS;
        !matches!(urgency, Urgency::Urgent { exhausted_in, .. } if is_soon(exhausted_in))
            && old > 0
            && old >= self.per_second / 2
    }
}
