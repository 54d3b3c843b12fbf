//! The planner: from observations and pods to evictions, one plan after each look. It asks for node-level reclaim and
//! for evictions; the caller carries them out.

mod blocked;
mod choices;
pub mod empty_pods;
pub mod local_storage;
pub mod node_reclaim;
mod paces;
pub mod pending;
pub mod plan;
pub mod pressure;
pub mod recreation;
pub mod restored;
mod updates;
mod usage_growth;

use std::time::Duration;

use super::{
    Among, Candidate, CandidateState, Cause, EvictionDecision, IMMEDIATE_GRACE_PERIOD_SECONDS,
    Layout, LocalStorageExcess, Message, NodeReclaim, Observation, Observations, Plan,
    PlannerSettings, Pod, Ranked, Ranking, Recreation, Resource, RestoredState, SelectionCriteria,
    Signal, SignalForecast, Snapshot, Threshold, Timing, Trend,
    growth::Headroom,
    local_storage_excess, message,
    pace::{Decision, PaceInputs, PaceProfile, Urgency},
    select,
    select::{UrgentGrowth, goes_by_order_alone, pass_over_all_but_growers, pass_over_in_vain},
    shortage::Shortage,
};
use crate::{
    model::settings::Mode,
    planner::{
        blocked::Blocked,
        choices::Choices,
        paces::Paces,
        pending::PendingVictims,
        pressure::Pressure,
        recreation::RecreationTracker,
        usage_growth::{UsageGrowth, Use},
    },
};

/// Time over which a forecast looks back.
const FORECAST_WINDOW: Duration = Duration::from_secs(60);

/// Makes a plan after each look.
#[derive(Clone, Debug)]
pub struct Planner {
    settings: PlannerSettings,
    pressure: Pressure,
    pending: PendingVictims,
    recreations: RecreationTracker,
    trends: [Trend; Signal::ALL.len()],
    /// Paces of evictions. The `kubelet` mode asks for the time of the last eviction alone.
    paces: Paces,
    choices: Choices,
    blocked: Blocked,
    /// The capacity of each signal when it was first seen.
    capacities: [Option<i64>; Signal::ALL.len()],
    /// Growth of each pod's usage: which pods make an urgent growth.
    usage_growth: UsageGrowth,
    soft_is_blocked: bool,
}

impl Planner {
    /// A planner that has seen nothing yet.
    pub fn new(settings: PlannerSettings) -> Self {
        let thresholds = settings.layout.apply(&settings.eviction.thresholds);
        let pressure = Pressure::new(thresholds, settings.eviction.pressure_transition_period);
        let trends = [Trend::new(FORECAST_WINDOW); Signal::ALL.len()];
        Self {
            settings,
            pressure,
            pending: PendingVictims::default(),
            recreations: RecreationTracker::default(),
            trends,
            paces: Paces::default(),
            choices: Choices::default(),
            blocked: Blocked::default(),
            capacities: [None; Signal::ALL.len()],
            usage_growth: UsageGrowth::default(),
            soft_is_blocked: false,
        }
    }

    /// Decides on a snapshot of the node. If the plan asks for node-level reclaim, do that, look again, and ask
    /// [`Planner::after_reclaim`] for the evictions that are still needed.
    ///
    /// `now` is nanoseconds of any one clock; only differences count.
    pub fn plan(&mut self, now: i64, node: Snapshot<'_>) -> Plan {
        self.pending.take_look(now, node);
        self.choices.keep(|uid| self.pending.contains(uid));
        self.usage_growth.forget_old(unsigned_ns(now));
        self.watch_growth(now, node);
        let mut due = self.update_pressure(now, node.observations);
        due.retain(|threshold| self.acts_on(threshold));
        self.blocked.keep(&due);
        let mut met_in_force = self.pressure.take_met_in_force();
        met_in_force.retain(|threshold| !self.is_left_to_fastpath(threshold));
        let mut plan = Plan {
            met_in_force,
            stuck: self.pending.take_stuck(now),
            conditions: self.pressure.conditions(now),
            recreations: self.recreations(now, node),
            forecasts: self.forecasts(now, node),
            evictions: self.local_storage_evictions(now, node),
            ..Plan::default()
        };
        plan.conditions.extend(self.recreations.held());
        plan.conditions.sort_unstable();
        plan.conditions.dedup();
        match self.settings.mode {
            // A pod that exceeds its own limits goes first, and the kubelet waits for what that brings.
            Mode::Kubelet if !plan.evictions.is_empty() => {}
            Mode::Kubelet => {
                let first = due.get(..1).unwrap_or_default();
                let waits = |t: &Threshold| self.waits_as_kubelet(now, t.is_hard());
                let first = if first.iter().any(waits) { &[] } else { first };
                plan.node_reclaim = self.node_reclaim(first);
                if plan.node_reclaim.is_empty() {
                    plan.evictions = self.evictions(now, node, first);
                } else {
                    plan.pending = first.to_vec();
                }
            }
            // What no reclaim can help does not wait for one.
            Mode::Evictd => {
                let reclaims =
                    |t: &Threshold| !self.settings.layout.node_reclaim(t.signal).is_empty();
                let (pending, urgent): (Vec<_>, Vec<_>) = due.into_iter().partition(reclaims);
                plan.node_reclaim = self.node_reclaim(&pending);
                plan.pending = pending;
                plan.evictions.extend(self.evictions(now, node, &urgent));
            }
        }
        plan.blocked = self.blocked.take_new();
        plan
    }

    /// Decides which pods must go after the node-level reclaim that a plan asked for. `before` is the snapshot of that
    /// plan, `after` one from after the reclaim.
    ///
    /// The kubelet lets all pods live if every threshold is satisfied then, its minimum reclaim included; if not, it
    /// decides by what it saw *before*. The `evictd` mode looks at the thresholds that asked for the reclaim, and
    /// decides by what is the case now.
    pub fn after_reclaim(
        &mut self,
        now: i64,
        plan: &Plan,
        before: Snapshot<'_>,
        after: Snapshot<'_>,
    ) -> Vec<EvictionDecision> {
        // A victim that runs again is left out of one look, whichever that is.
        self.pending.take_look(now, after);
        let mode = self.settings.mode;
        let resolves = |threshold: &Threshold| self.paces.resolves(threshold, mode, now);
        let unresolved = self.pressure.unresolved(after.observations, resolves);
        let unresolved: Vec<Threshold> = unresolved.cloned().collect();
        match self.settings.mode {
            Mode::Kubelet if unresolved.is_empty() => Vec::new(),
            Mode::Kubelet => self.evictions(now, before, &plan.pending),
            Mode::Evictd => {
                let due = plan
                    .pending
                    .iter()
                    .filter(|threshold| unresolved.contains(threshold));
                let due: Vec<Threshold> = due.cloned().collect();
                self.evictions(now, after, &due)
            }
        }
    }

    /// The thresholds in force, containerfs's own included.
    pub fn thresholds(&self) -> impl Iterator<Item = &Threshold> {
        self.pressure.thresholds()
    }

    /// The hard or the soft threshold of a signal, of several the one that is met first.
    pub fn threshold(&self, signal: Signal, is_hard: bool, capacity: i64) -> Option<&Threshold> {
        self.pressure.threshold(signal, is_hard, capacity)
    }

    /// Degree to which the planner goes beyond the kubelet.
    pub fn mode(&self) -> Mode {
        self.settings.mode
    }

    /// Whether a threshold was met at the last look, be it because its minimum reclaim counts and is not there.
    pub fn is_pressed(&self, threshold: &Threshold) -> bool {
        self.pressure.is_pressed(threshold)
    }

    /// Takes in which thresholds are met; the answer is those that call for action.
    fn update_pressure(&mut self, now: i64, observations: &Observations) -> Vec<Threshold> {
        let (paces, mode) = (&self.paces, self.settings.mode);
        let resolves = |threshold: &Threshold| paces.resolves(threshold, mode, now);
        self.pressure.update(now, observations, resolves)
    }

    /// Whether the hard threshold of a signal has been met for as long as it takes until a pod goes that is not urgent:
    /// disruption budgets no longer count.
    pub fn is_hard_due(&self, now: i64, seen: &Observations, signal: Signal) -> bool {
        let capacity = seen.get(signal).map_or(0, |seen| seen.capacity);
        let hard = self.pressure.threshold(signal, true, capacity);
        let Some(hard) = hard.filter(|hard| hard.is_met(seen, false)) else {
            return false;
        };
        let profile = PaceProfile::of(signal, true);
        let ripe_at = self.paces.of(hard).pace.ripe_at(profile);
        self.settings.mode == Mode::Kubelet || ripe_at.is_some_and(|at| at <= unsigned_ns(now))
    }

    /// Whether a threshold that is due leads to evictions here.
    fn acts_on(&self, threshold: &Threshold) -> bool {
        match threshold.is_hard() {
            true => !self.is_left_to_fastpath(threshold),
            false => !self.soft_is_blocked,
        }
    }

    fn is_left_to_fastpath(&self, threshold: &Threshold) -> bool {
        threshold.is_hard() && self.settings.fastpath_signals.contains(&threshold.signal)
    }

    /// Lists what to reclaim from the node for these thresholds.
    fn node_reclaim(&self, due: &[Threshold]) -> Vec<NodeReclaim> {
        let reclaims = due
            .iter()
            .flat_map(|threshold| self.settings.layout.node_reclaim(threshold.signal));
        let mut reclaims: Vec<NodeReclaim> = reclaims.copied().collect();
        reclaims.sort_unstable();
        reclaims.dedup();
        reclaims
    }

    fn local_storage_evictions(&mut self, now: i64, node: Snapshot<'_>) -> Vec<EvictionDecision> {
        if !self.settings.eviction.limits_local_storage
            || !node.bounds.allows_own_limits
            || self.settings.mode == Mode::Kubelet && self.pending.awaits_cleanup(now, true)
        {
            return Vec::new();
        }
        // No rate and no fleet holds them back: they are no answer to a shortage of the node.
        let candidates = node.pods.iter().filter(|pod| {
            let state = self.state_at_own_limit(pod, Resource::EphemeralStorage);
            state == CandidateState::Eligible
        });
        let evictions = candidates.filter_map(|pod| {
            let usage = node.usages.get(&pod.uid)?;
            let LocalStorageExcess { limit, message } =
                local_storage_excess(pod, usage, self.settings.layout)?;
            Some(self.eviction(
                node,
                pod,
                IMMEDIATE_GRACE_PERIOD_SECONDS,
                message,
                (Cause::LocalStorage(limit), false),
            ))
        });
        let evictions: Vec<EvictionDecision> = evictions.collect();
        self.pending.remember(now, node, &self.settings, &evictions);
        evictions
    }

    /// Chooses victims for the thresholds that call for action: In `mode: kubelet` one pod for the first threshold; in
    /// `mode: evictd` at most one pod for each threshold, if its pace allows it.
    fn evictions(
        &mut self,
        now: i64,
        node: Snapshot<'_>,
        due: &[Threshold],
    ) -> Vec<EvictionDecision> {
        let mut evictions = Vec::new();
        for threshold in due {
            // One pod is asked to end at a time.
            let is_one_requested =
                self.soft_is_blocked || evictions.iter().any(|e: &EvictionDecision| e.is_soft);
            if is_one_requested && !threshold.is_hard() {
                continue;
            }
            let chosen = match self.settings.mode {
                Mode::Kubelet if !node.bounds.allows_paced => None,
                Mode::Kubelet if self.waits_as_kubelet(now, threshold.is_hard()) => None,
                Mode::Kubelet => self.first_in_order(node, threshold),
                Mode::Evictd => self.choose_in_time(now, node, threshold),
            };
            let Some(chosen) = chosen else {
                self.note_blocked(now, node, threshold);
                continue;
            };
            let resource = threshold.signal.resource();
            self.choices.note(&chosen, now, resource, &self.paces);
            // A pod that would be asked to end at this very look.
            evictions.retain(|earlier: &EvictionDecision| earlier.uid != chosen.uid);
            let condition = threshold.signal.node_condition();
            let chosen = std::slice::from_ref(evictions.push_mut(chosen));
            self.recreations.remember(now, node, chosen, condition);
            self.pending.remember(now, node, &self.settings, chosen);
            self.note_eviction(now, threshold.signal, threshold.is_hard());
        }
        evictions
    }

    /// Whether no pod goes now in the kubelet's mode: one in ten seconds, and none while the kubelet would wait for the end
    /// of the last one.
    fn waits_as_kubelet(&self, now: i64, is_hard: bool) -> bool {
        self.paces.has_evicted_lately(unsigned_ns(now)) || self.pending.awaits_cleanup(now, is_hard)
    }

    /// The pod that may be evicted now for one threshold: urgency decides ([`super::pace`]). One at a look, however
    /// urgent, and no [`super::round`]: a round takes further pods by what it expects of the memory of the first, while
    /// the next look here, within a quarter of a second, sees what the end of a pod has brought.
    fn choose_in_time(
        &mut self,
        now: i64,
        node: Snapshot<'_>,
        threshold: &Threshold,
    ) -> Option<EvictionDecision> {
        let (timing, growing) = self.decide(now, node, threshold)?;
        let attainable = self.attainable(node, threshold);
        // A fleet that evicts holds back what is not urgent.
        if !node.bounds.allows_paced && !timing.urgency.is_urgent()
            || self.awaits_usage(node, threshold, &timing)
            || !timing
                .pace_inputs
                .can_end_shortage(timing.urgency, attainable)
        {
            return None;
        }
        let growing = growing.as_ref();
        if self.awaits_an_end(node, threshold, timing.urgency) {
            return None;
        }
        let grower = || self.choose(node.beyond_rate()?, threshold, Some(growing?), true);
        let (chosen, is_beyond_rate) = match self.choose(node, threshold, growing, false) {
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
    fn decide<'a>(
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
            pace: self.paces.of(threshold).pace,
            shortage: self.shortage(threshold, node.observations.get(signal)?),
            pending: self.pending.pending(now, node, &self.settings, threshold),
            profile: profile_at_looks(threshold),
        };
        // For a moment growth may be the victims' own.
        let is_victims =
            pace_inputs.pending.due.is_some() && pace_inputs.pace.is_settling(pace_inputs.now);
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
        let Urgency::Urgent { growth, .. } = urgency else {
            return None;
        };
        let has_evicted = pace_inputs.pace.has_evicted_lately(pace_inputs.now);
        let by_order = goes_by_order_alone(has_evicted, node.bounds.left_of_node_rate);
        (!by_order).then(|| Growing {
            per_second: growth,
            pods: self.growers(node.beyond_rate().unwrap_or(node), threshold),
        })
    }

    /// Whether a decision waits: what the pods use is not known yet.
    fn awaits_usage(&self, node: Snapshot<'_>, threshold: &Threshold, timing: &Timing) -> bool {
        let met_since = self.paces.of(threshold).met_by_turns_since();
        let waits_for = met_since.and_then(|since| {
            let pace_inputs = &timing.pace_inputs;
            pace_inputs.waits_for_usage_since(timing.urgency, since)
        });
        let node = node.beyond_rate().unwrap_or(node);
        waits_for.is_some_and(|since| self.awaits_walks(node, threshold, since))
    }

    /// Whether a decision waits for the end of a pod, of which it is not known yet: it may be over, or goes itself in a
    /// moment. No other pod goes in its stead for what it holds, unless others make an urgent growth.
    fn awaits_an_end(&self, node: Snapshot<'_>, threshold: &Threshold, urgency: Urgency) -> bool {
        if !threshold.signal.resource().is_of_files() {
            return false;
        }
        let usage = |pod: &Pod| {
            let usage = node.usages.get(&pod.uid)?;
            Some(self.settings.layout.usage(threshold.signal, pod, usage))
        };
        let may_be_over = node.pods.iter().filter(|pod| pod.may_be_over);
        let largest = may_be_over.filter_map(usage).max().unwrap_or(0);
        let may_go = |pod: &&Pod| self.may_go(node, pod, threshold);
        let others = node.pods.iter().filter(may_go).filter_map(usage).max();
        if largest == 0 || largest < others.unwrap_or(0) {
            return false;
        }
        match urgency {
            Urgency::Paced { .. } => true,
            Urgency::Urgent { growth, .. } => {
                let growing = Growing {
                    per_second: growth,
                    pods: self.growers(node.beyond_rate().unwrap_or(node), threshold),
                };
                growth == 0 || growing.is_of_no_pods()
            }
        }
    }

    /// Lists the growth per second of each pod that may be evicted and grows, with its UID.
    fn growers<'a>(&self, node: Snapshot<'a>, threshold: &Threshold) -> Vec<(u64, &'a str)> {
        let signal = threshold.signal;
        let may_go = |pod: &&Pod| self.may_go(node, pod, threshold);
        let grew = |pod: &'a Pod| (self.usage_growth.of(signal, &pod.uid), pod.uid.as_str());
        let growers = node.pods.iter().filter(may_go).map(grew);
        growers.filter(|(grew, _)| *grew > 0).collect()
    }

    /// Whether the files of a pod that may go were not walked yet: it counts as one that uses nothing, whatever it has.
    /// Its bytes are those of a walk that began since a moment; its inodes are counted.
    fn awaits_walks(&self, node: Snapshot<'_>, threshold: &Threshold, since: u64) -> bool {
        let resource = threshold.signal.resource();
        let is_recent = |began: u64| began >= since || resource != Resource::EphemeralStorage;
        let is_walked = |pod: &Pod| {
            let usage = node.usages.get(&pod.uid);
            let walked = usage.filter(|usage| usage.ephemeral_storage.is_some());
            walked.is_some_and(|usage| usage.walk_began.is_none_or(is_recent))
        };
        resource.is_of_files()
            && node
                .pods
                .iter()
                .any(|pod| self.may_go(node, pod, threshold) && !is_walked(pod))
    }

    /// Computes what all pods that may go use together of what a threshold watches, in its unit.
    fn attainable(&self, node: Snapshot<'_>, threshold: &Threshold) -> u64 {
        let usage = |pod: &Pod| {
            let usage = node.usages.get(&pod.uid)?;
            Some(self.settings.layout.usage(threshold.signal, pod, usage))
        };
        let may_go = |pod: &&Pod| self.may_go(node, pod, threshold);
        let usages = node.pods.iter().filter(may_go).filter_map(usage);
        usages.fold(0, u64::saturating_add)
    }

    /// Takes in what is in use of each signal, whether or not its threshold is met.
    fn watch_growth(&mut self, now: i64, node: Snapshot<'_>) {
        if self.settings.mode == Mode::Kubelet {
            return;
        }
        for signal in Signal::ALL {
            let Some(seen) = node.observations.get(signal) else {
                continue;
            };
            let is_larger = self.note_capacity(signal, seen);
            for is_hard in [false, true] {
                let threshold = self.pressure.threshold(signal, is_hard, seen.capacity);
                let shortage = threshold.map(|threshold| self.shortage(threshold, seen));
                let Some(shortage) = shortage else {
                    continue;
                };
                let known = self.paces.of_mut(signal, is_hard);
                // Samples do not tell what victims still hold.
                if known.pace.is_settling(unsigned_ns(now)) || is_larger {
                    known.pace.forget_growth();
                }
                known.observe(unsigned_ns(now), &shortage);
            }
            if self.paces.is_any_met(signal) {
                note_usages(
                    &mut self.usage_growth,
                    now,
                    node,
                    signal,
                    self.settings.layout,
                );
            }
        }
    }

    /// Keeps the first capacity, unless more than that is available; whether it is another one.
    fn note_capacity(&mut self, signal: Signal, seen: Observation) -> bool {
        let known = &mut self.capacities[signal as usize];
        let is_larger = known.is_some_and(|capacity| seen.available > capacity);
        if is_larger || known.is_none() {
            *known = Some(seen.capacity);
        }
        is_larger
    }

    /// What is short of a signal. Nothing of it can be given back without an eviction or a reclaim that is asked for.
    ///
    /// Bytes are used of the capacity that was seen first: that of a zfs dataset falls with what is available when
    /// another one is written to. Inodes are used of the present one: XFS has as many as the free space has room for.
    fn shortage(&self, threshold: &Threshold, seen: Observation) -> Shortage {
        let unsigned = |amount: i64| u64::try_from(amount).unwrap_or(0);
        let available = unsigned(seen.available);
        let signal = threshold.signal;
        let capacity = match (signal.resource(), self.capacities.get(signal as usize)) {
            (Resource::EphemeralStorage, Some(Some(capacity))) => *capacity,
            _ => seen.capacity,
        };
        Shortage {
            available,
            threshold: threshold.amount(seen.capacity),
            resolved: threshold.resolved_amount(seen.capacity),
            used: unsigned(capacity.saturating_sub(seen.available)),
            headroom: Headroom {
                immediate: available,
                ..Headroom::default()
            },
            ..Shortage::default()
        }
    }

    /// A pod goes for the hard or the soft threshold of a signal: what it gives back, every signal of the same resource
    /// gets.
    fn note_eviction(&mut self, now: i64, signal: Signal, is_hard: bool) {
        self.note_eviction_for(now, signal.resource());
        self.paces.of_mut(signal, is_hard).pace.note_own_eviction();
    }

    /// A pod goes for a resource, here, by the kubelet, or before the agent was started, at `at` in nanoseconds of the
    /// planner's clock.
    fn note_eviction_for(&mut self, at: i64, resource: Resource) {
        self.usage_growth.begin_anew(resource);
        for pace in self.paces.of_resource_mut(resource) {
            pace.evicted(unsigned_ns(at));
        }
    }

    /// The pod that the kubelet evicts. Those without numbers come first, which a candidate cannot say.
    fn first_in_order(
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

    /// Chooses a pod for one threshold, with `only_growers` one of those that make the growth. The order is that of the
    /// ranking, the choice that of the fast path; before the pods that make a growth none is evicted in vain.
    fn choose(
        &self,
        node: Snapshot<'_>,
        threshold: &Threshold,
        growing: Option<&Growing<'_>>,
        only_growers: bool,
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
            let mut growers: Vec<(u64, usize)> = growers
                .filter_map(|(grew, uid)| Some((*grew, position(*uid)?)))
                .collect();
            let growth = UrgentGrowth {
                per_second: growing.per_second,
                growers: &mut growers,
                allowed: node.bounds.left_of_node_rate,
            };
            match only_growers {
                true => pass_over_all_but_growers(&mut candidates, rules, growth),
                false => pass_over_in_vain(&mut candidates, rules, growth, |_, usage| usage),
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

    /// All pods in the order of eviction for a signal.
    fn ranked<'a>(&self, node: Snapshot<'a>, signal: Signal) -> Vec<Ranked<'a>> {
        let PlannerSettings {
            strategy, layout, ..
        } = self.settings;
        let ranking = Ranking {
            strategy,
            signal,
            layout,
        };
        ranking.order(node.pods, node.usages)
    }

    fn eviction_of(
        &self,
        node: Snapshot<'_>,
        threshold: &Threshold,
        pod: &Pod,
    ) -> EvictionDecision {
        let usage = node.usages.get(&pod.uid);
        self.eviction(
            node,
            pod,
            self.grace_period(threshold, pod),
            message::resource_is_short(threshold, pod, usage, node.observations),
            (Cause::Pressure(threshold.signal), !threshold.is_hard()),
        )
    }

    fn eviction(
        &self,
        node: Snapshot<'_>,
        pod: &Pod,
        grace_period_seconds: i64,
        message: Message,
        (cause, is_soft): (Cause, bool),
    ) -> EvictionDecision {
        let layout = self.settings.layout;
        let is_other = |signal: Signal| match cause {
            _ if signal.resource() == Resource::Memory => false,
            Cause::Pressure(one) => !layout.watch_the_same(one, signal),
            Cause::LocalStorage(_) => true,
        };
        let freed = self.settings.freed_of_all_signals(node, &pod.uid);
        EvictionDecision {
            uid: pod.uid.clone(),
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            grace_period_seconds,
            message,
            cause,
            is_soft,
            timing: None,
            other_signals: freed
                .filter(|(signal, freed)| freed.usage > 0 && is_other(*signal))
                .collect(),
        }
    }

    /// How long a victim has to end: no time under a hard threshold, else its own grace period or the longest that is
    /// allowed.
    fn grace_period(&self, threshold: &Threshold, pod: &Pod) -> i64 {
        let longest = i64::from(self.settings.eviction.max_pod_grace_period_seconds);
        match pod.termination_grace_period_seconds {
            _ if threshold.is_hard() => IMMEDIATE_GRACE_PERIOD_SECONDS,
            Some(own) => own.min(longest),
            None => longest,
        }
    }

    /// Whether a pod may be evicted that is above a limit of its own. The kubelet would evict one that is still there a
    /// second time.
    fn state_at_own_limit(&self, pod: &Pod, resource: Resource) -> CandidateState {
        match self.settings.mode {
            mode if pod.is_protected(mode) || pod.is_denied => CandidateState::Protected,
            _ if pod.may_be_over => CandidateState::Terminating,
            // In vain, and again as soon as the kubelet has started it.
            _ if self.settings.keeps_files(pod, resource) => CandidateState::Protected,
            Mode::Evictd if self.pending.contains(&pod.uid) => CandidateState::Terminating,
            Mode::Kubelet if self.pending.is_refused(&pod.uid) => CandidateState::Terminating,
            _ => CandidateState::Eligible,
        }
    }

    /// Whether a pod can be asked to end, as a soft threshold does.
    fn can_be_deleted(&self, pod: &Pod) -> bool {
        !self.settings.has_api_server || pod.can_be_deleted()
    }

    fn may_go(&self, node: Snapshot<'_>, pod: &Pod, threshold: &Threshold) -> bool {
        self.state_for(node, pod, threshold) == CandidateState::Eligible
    }

    /// Whether a pod may be evicted for a threshold: for a soft one it is asked. One that was only asked to end goes for
    /// a hard one: no other pod in its stead. The node's rate counts it already.
    fn state_for(&self, node: Snapshot<'_>, pod: &Pod, threshold: &Threshold) -> CandidateState {
        let may_be_deleted = threshold.is_hard() || self.can_be_deleted(pod);
        let goes_again = threshold.is_hard() && self.pending.is_requested(&pod.uid);
        match self.state_at_own_limit(pod, threshold.signal.resource()) {
            _ if !may_be_deleted => CandidateState::Protected,
            CandidateState::Terminating if goes_again => CandidateState::Eligible,
            _ if node.bounds.left_of_node_rate == 0 && !goes_again => CandidateState::Protected,
            state => state,
        }
    }

    /// Finds the pods that came back after an eviction; none in the kubelet's mode, since the kubelet does not ask.
    fn recreations(&mut self, now: i64, node: Snapshot<'_>) -> Vec<Recreation> {
        match self.settings.mode {
            Mode::Kubelet => Vec::new(),
            Mode::Evictd => self.recreations.detect(now, node),
        }
    }

    /// Forecasts where the signals that have thresholds are heading.
    fn forecasts(&mut self, now: i64, node: Snapshot<'_>) -> Vec<SignalForecast> {
        let mut forecasts = Vec::new();
        for (signal, trend) in Signal::ALL.into_iter().zip(&mut self.trends) {
            let Some(seen) = node.observations.get(signal) else {
                continue;
            };
            trend.observe(now, seen.available);
            if let Some(threshold) = self.pressure.highest(signal, seen.capacity) {
                forecasts.push(SignalForecast {
                    signal,
                    forecast: trend.forecast(threshold),
                });
            }
        }
        forecasts
    }
}

/// The profile by which the planner decides for a threshold. Hard memory comes here by `evictd replay` alone: a step of its
/// scenario stands for a look of the kubelet, and the first one counts.
fn profile_at_looks(threshold: &Threshold) -> PaceProfile {
    match PaceProfile::of(threshold.signal, threshold.is_hard()) {
        PaceProfile::Sustained => PaceProfile::Immediate,
        profile => profile,
    }
}

/// A growth, and the pods that have it.
struct Growing<'a> {
    /// Growth of the signal per second.
    per_second: u64,
    /// Growth per second of each pod that may be evicted and grows, with its UID.
    pods: Vec<(u64, &'a str)>,
}

impl Growing<'_> {
    /// Whether no pods make half of the growth, as far as that is known: another pod's end does not stop it.
    fn is_of_no_pods(&self) -> bool {
        let theirs = self.pods.iter().map(|(grew, _)| *grew);
        theirs.fold(0, u64::saturating_add) < self.per_second / 2
    }
}

/// Takes in what the pods use of a signal.
fn note_usages(
    growth: &mut UsageGrowth,
    now: i64,
    node: Snapshot<'_>,
    signal: Signal,
    layout: Layout,
) {
    for pod in node.pods {
        let Some(usage) = node.usages.get(&pod.uid) else {
            continue;
        };
        // Bytes are those of the last walk.
        let walk = usage
            .walk_began
            .filter(|_| signal.resource() == Resource::EphemeralStorage);
        let used = Use {
            time: walk.unwrap_or(unsigned_ns(now)),
            usage: layout.usage(signal, pod, usage),
            is_whole: !signal.resource().is_of_files() || usage.ephemeral_storage.is_some(),
        };
        growth.note(signal, &pod.uid, unsigned_ns(now), used);
    }
}

/// Converts to the clock of `pace`; a negative time, as in recorded sequences, becomes 0.
fn unsigned_ns(now: i64) -> u64 {
    u64::try_from(now).unwrap_or(0)
}

#[cfg(test)]
mod tests;
