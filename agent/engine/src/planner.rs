//! The planner: from observations and pods to evictions, one plan after each look. It asks for node-level reclaim and
//! for evictions; the caller carries them out.

mod blocked;
mod choose;
mod eligibility;
pub mod empty_pods;
pub mod local_storage;
pub mod node_reclaim;
mod paces;
pub mod plan;
pub mod pressure;
pub mod recreation;
pub mod restored;
mod rollback;
mod updates;
mod usage_growth;
pub mod victims;

use std::{collections::BTreeSet, slice, time::Duration};

use super::{
    CandidateState, Cause, EvictionDecision, IMMEDIATE_GRACE_PERIOD_SECONDS, Layout,
    LocalStorageExcess, Message, NodeReclaim, Observation, Observations, Plan, PlannerSettings,
    Pod, Ranked, Ranking, Recreation, Resource, RestoredState, Signal, SignalForecast, Snapshot,
    Threshold, Trend, growth::Headroom, local_storage_excess, message, pace::PaceProfile,
    shortage::Shortage,
};
use crate::{
    model::settings::Mode,
    planner::{
        blocked::Blocked,
        paces::Paces,
        pressure::Pressure,
        recreation::RecreationTracker,
        rollback::Choices,
        usage_growth::{UsageGrowth, Use},
        victims::PendingVictims,
    },
    units::signed,
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
    /// Thresholds for which shadow mode has reported a pod ([`Threshold::key`]). No pod dies, so that nothing changes: one
    /// decision per pressure is all there is to report.
    reported_in_shadow: BTreeSet<(Signal, bool)>,
    /// The capacity of each signal when it was first seen; of inodes the largest.
    capacities: [Option<i64>; Signal::ALL.len()],
    /// Growth of each pod's usage: which pods make an urgent growth.
    usage_growth: UsageGrowth,
    is_soft_request_under_way: bool,
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
            reported_in_shadow: BTreeSet::new(),
            capacities: [None; Signal::ALL.len()],
            usage_growth: UsageGrowth::default(),
            is_soft_request_under_way: false,
        }
    }

    /// Decides on a snapshot of the node. If the plan asks for node-level reclaim, do that, look again, and ask
    /// [`Planner::after_reclaim`] for the evictions that are still needed.
    ///
    /// `now` is nanoseconds of any one clock; only differences count.
    pub fn plan(&mut self, now: i64, node: Snapshot<'_>) -> Plan {
        self.take_look(now, node);
        self.choices.keep(|uid| self.pending.contains(uid));
        self.usage_growth.forget_old(unsigned_ns(now));
        self.watch_growth(now, node);
        let mut due = self.update_pressure(now, node.observations);
        due.retain(|threshold| self.acts_on(threshold));
        self.blocked.keep(&due);
        // Not by what is due: a soft threshold may be blocked, and a disk slow to answer.
        if self.met_on_files().next().is_none() {
            self.pending.forget_files();
        }
        let mut met_in_force = self.pressure.take_met_in_force();
        met_in_force.retain(|threshold| !self.is_left_to_fastpath(threshold));
        let mut plan = Plan {
            met_in_force,
            stuck: self.pending.take_stuck(now),
            files_stay: self.settings.mode == Mode::Evictd && self.pending.take_files_stay(now),
            conditions: self.pressure.conditions(now),
            recreations: self.recreations(now, node),
            forecasts: self.forecasts(now, node),
            evictions: self.local_storage_evictions(now, node),
            ..Plan::default()
        };
        plan.conditions.extend(self.recreations.held());
        plan.conditions.sort_unstable();
        plan.conditions.dedup();
        self.recreations.note_in_force(now, &plan.conditions);
        match self.settings.mode {
            // A pod that exceeds its own limits goes first, and the kubelet waits for what that brings.
            Mode::Kubelet if !plan.evictions.is_empty() => {}
            Mode::Kubelet => {
                let mut free = due.iter().filter(|t| {
                    !self.is_reported_in_shadow(t) && !self.waits_as_kubelet(now, t.is_hard())
                });
                let first = free.next().map(slice::from_ref).unwrap_or_default();
                plan.node_reclaim = self.node_reclaim(first);
                if plan.node_reclaim.is_empty() {
                    plan.evictions = self.evictions(now, node, first);
                } else {
                    plan.awaiting_reclaim = first.to_vec();
                }
            }
            // What no reclaim can help does not wait for one.
            Mode::Evictd => {
                let reclaims =
                    |t: &Threshold| !self.settings.layout.node_reclaim(t.signal).is_empty();
                let (awaiting_reclaim, without_reclaim): (Vec<_>, Vec<_>) =
                    due.into_iter().partition(reclaims);
                plan.node_reclaim = self.node_reclaim(&awaiting_reclaim);
                plan.awaiting_reclaim = awaiting_reclaim;
                plan.evictions
                    .extend(self.evictions(now, node, &without_reclaim));
            }
        }
        plan.blocked = self.blocked.take_new();
        plan
    }

    /// Takes note of what victims have given back, and of those that have ended: each look counts, since a victim that runs
    /// again is left out of one look, whichever that is.
    pub fn take_look(&mut self, now: i64, node: Snapshot<'_>) {
        self.pending.take_look(now, node);
    }

    /// Takes note of so many nanoseconds until `now` in which no look was taken although one was due: they are no time of a
    /// shortage or of a grace period, and none in which victims had to end.
    pub fn exclude_gap(&mut self, late: u64, now: i64) {
        self.paces.exclude_gap(late, unsigned_ns(now));
        self.choices.exclude_gap(late, unsigned_ns(now));
        self.pressure.exclude_gap(signed(late), now);
        self.pending.exclude_gap(signed(late), now);
        self.usage_growth.forget_counted();
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
        self.take_look(now, after);
        let mode = self.settings.mode;
        let resolves = |threshold: &Threshold| self.paces.resolves(threshold, mode, now);
        let unresolved = self.pressure.unresolved(after.observations, resolves);
        let unresolved: Vec<Threshold> = unresolved.cloned().collect();
        match self.settings.mode {
            Mode::Kubelet if unresolved.is_empty() => Vec::new(),
            Mode::Kubelet => self.evictions(now, before, &plan.awaiting_reclaim),
            Mode::Evictd => {
                let due = plan
                    .awaiting_reclaim
                    .iter()
                    // One that was met anew meanwhile has all of its grace period.
                    .filter(|t| unresolved.iter().any(|u| u.bound() == t.bound()))
                    .filter(|t| self.pressure.is_due(t));
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
    pub fn is_under_pressure(&self, threshold: &Threshold) -> bool {
        self.pressure.is_under_pressure(threshold)
    }

    /// The newest time, in nanoseconds, since which a threshold on files that is met has been met: its evictions wait for
    /// walks that began then.
    pub fn files_short_since(&self) -> Option<u64> {
        let since = |threshold: &Threshold| {
            // The pace begins anew with the end of shadow mode, and is not kept in the kubelet's mode.
            let met_since = self.pressure.met_since(threshold).map(unsigned_ns);
            met_since.max(self.paces.of(threshold).met_since())
        };
        self.met_on_files().filter_map(since).max()
    }

    /// The thresholds on files that were met at the last look.
    fn met_on_files(&self) -> impl Iterator<Item = &Threshold> {
        let on_files = |t: &&Threshold| t.signal.resource().is_of_files();
        self.thresholds()
            .filter(on_files)
            .filter(|t| self.is_under_pressure(t))
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
        let Some(now_seen) = seen.get(signal) else {
            return false;
        };
        let hard = self.pressure.threshold(signal, true, now_seen.capacity);
        let Some(hard) = hard.filter(|hard| hard.is_met(seen, false)) else {
            return false;
        };
        let profile = PaceProfile::for_threshold(signal, true);
        let due_at = self.paces.of(hard).due_at(profile);
        let turn = self.shortage(hard, now_seen).kubelets_turn(false);
        let is_over = |at: u64| at.saturating_add(turn) <= unsigned_ns(now);
        self.settings.mode == Mode::Kubelet || due_at.is_some_and(is_over)
    }

    /// Whether a threshold that is due leads to evictions here.
    fn acts_on(&self, threshold: &Threshold) -> bool {
        match threshold.is_hard() {
            true => !self.is_left_to_fastpath(threshold),
            false => !self.is_soft_request_under_way,
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
                Cause::LocalStorage(limit),
                false,
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
            let is_one_requested = self.is_soft_request_under_way
                || evictions.iter().any(|e: &EvictionDecision| e.is_soft);
            if is_one_requested && !threshold.is_hard() || self.is_reported_in_shadow(threshold) {
                continue;
            }
            let chosen = match self.settings.mode {
                Mode::Kubelet if !node.bounds.allows_paced_for(threshold.signal.resource()) => None,
                Mode::Kubelet if self.waits_as_kubelet(now, threshold.is_hard()) => None,
                Mode::Kubelet => self.first_in_order(node, threshold),
                Mode::Evictd if self.waits_for_room(now, node, threshold) => continue,
                Mode::Evictd => self.choose_in_time(now, node, threshold),
            };
            let Some(chosen) = chosen else {
                self.note_blocked(now, node, threshold);
                continue;
            };
            // A pod that would be asked to end at this very look.
            if let Some(at) = evictions.iter().position(|e| e.uid == chosen.uid) {
                evictions.remove(at);
                self.cancel_eviction(&chosen.uid);
            }
            let resource = threshold.signal.resource();
            self.choices.note(&chosen, now, resource, &self.paces);
            let condition = threshold.signal.node_condition();
            let chosen = slice::from_ref(evictions.push_mut(chosen));
            self.recreations.remember(now, node, chosen, condition);
            self.pending.remember(now, node, &self.settings, chosen);
            self.note_eviction(now, threshold.signal, threshold.is_hard());
        }
        evictions
    }

    fn is_reported_in_shadow(&self, threshold: &Threshold) -> bool {
        self.reported_in_shadow.contains(&threshold.key())
    }

    /// Whether inodes are short for want of room, and pods go for that: XFS and ZFS have as many inodes as the free space
    /// has room for.
    fn waits_for_room(&self, now: i64, node: Snapshot<'_>, threshold: &Threshold) -> bool {
        let (seen, signal) = (node.observations, threshold.signal);
        let bytes = signal
            .bytes_beside()
            .and_then(|bytes| Some((bytes, seen.get(bytes)?)));
        let known = seen.get(signal).zip(self.capacities[signal as usize]);
        let (Some((bytes, room)), Some((inodes, most))) = (bytes, known) else {
            return false;
        };
        let used = inodes.capacity.saturating_sub(inodes.available);
        let with_all_room = u64::try_from(most.saturating_sub(used)).unwrap_or(0);
        let wants_room = inodes.capacity < most && with_all_room >= threshold.amount(most);
        let brings_room = |bytes: &Threshold| {
            self.pressure.is_due(bytes)
                && self.decide(now, node, bytes).is_none_or(|(timing, _)| {
                    let attainable = self.attainable(node, bytes);
                    let ends = timing
                        .pace_inputs
                        .can_end_shortage(timing.urgency, attainable);
                    attainable > 0 && ends
                })
        };
        let thresholds = [true, threshold.is_hard()].into_iter();
        let mut thresholds =
            thresholds.filter_map(|is_hard| self.pressure.threshold(bytes, is_hard, room.capacity));
        wants_room && thresholds.any(brings_room)
    }

    /// Whether no pod goes now in the kubelet's mode: one in ten seconds, and none while the kubelet would wait for the end
    /// of the last one.
    fn waits_as_kubelet(&self, now: i64, is_hard: bool) -> bool {
        self.paces.has_evicted_lately(unsigned_ns(now)) || self.pending.awaits_cleanup(now, is_hard)
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
                let pace = self.paces.of_mut(signal, is_hard);
                // Samples do not tell what victims still hold.
                if pace.is_settling(unsigned_ns(now)) || is_larger {
                    pace.forget_growth();
                }
                pace.observe(unsigned_ns(now), &shortage);
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

    /// Keeps the first capacity, of inodes the largest, unless more than that is available; whether it is another one.
    fn note_capacity(&mut self, signal: Signal, seen: Observation) -> bool {
        let known = &mut self.capacities[signal as usize];
        let is_larger = known.is_some_and(|capacity| seen.available > capacity);
        let is_inodes = signal.resource() == Resource::Inodes;
        if is_larger || known.is_none_or(|known| is_inodes && known < seen.capacity) {
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
        // Files do not come back so soon, and a soft threshold is evictd's alone.
        let waits = threshold.is_hard() && !signal.resource().is_of_files();
        let is_kubelets = self.settings.kubelets_signals.contains(&signal);
        Shortage {
            available,
            threshold: threshold.amount(seen.capacity),
            resolved: threshold.resolved_amount(seen.capacity),
            used: unsigned(capacity.saturating_sub(seen.available)),
            headroom: Headroom {
                immediate: available,
                ..Headroom::default()
            },
            is_kubelets: waits && is_kubelets && !threshold.is_raised(seen.capacity),
            ..Shortage::default()
        }
    }

    /// A pod goes for the hard or the soft threshold of a signal.
    fn note_eviction(&mut self, now: i64, signal: Signal, is_hard: bool) {
        self.note_eviction_for(now, signal);
        let pace = self.paces.of_mut(signal, is_hard);
        pace.note_own_eviction(true);
    }

    /// A pod goes for a signal, here or before the agent was started, at `at` in nanoseconds of the planner's clock. What it
    /// gives back, every signal of the same resource gets, but for those of other disks.
    fn note_eviction_for(&mut self, at: i64, signal: Signal) {
        let layout = self.settings.layout;
        let resource = signal.resource();
        self.note_eviction_of(at, resource, |other| {
            !resource.is_of_files() || layout.watch_the_same(signal, other)
        });
    }

    /// A pod goes for a resource. `gets` says which signals of it get what the pod gives back; the others keep the kubelet's
    /// pace, and what they know of growth.
    fn note_eviction_of(&mut self, at: i64, resource: Resource, gets: impl Fn(Signal) -> bool) {
        for (signal, pace) in self.paces.of_resource_mut(resource) {
            match gets(signal) {
                true => pace.evicted(unsigned_ns(at)),
                false => pace.evicted_elsewhere(unsigned_ns(at)),
            }
        }
    }

    /// All pods in the order of eviction for a signal.
    fn ranked<'a>(&self, node: Snapshot<'a>, signal: Signal) -> Vec<Ranked<'a>> {
        let ranking = Ranking {
            strategy: self.settings.strategy,
            signal,
            layout: self.settings.layout,
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
            Cause::Pressure(threshold.signal),
            !threshold.is_hard(),
        )
    }

    fn eviction(
        &self,
        node: Snapshot<'_>,
        pod: &Pod,
        grace_period_seconds: i64,
        message: Message,
        cause: Cause,
        is_soft: bool,
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
        let walk = usage.walk_of(signal.resource());
        let used = Use {
            time: walk.unwrap_or(unsigned_ns(now)),
            usage: layout.usage(signal, pod, usage),
            of_walk: walk.is_some(),
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
