//! The eviction manager: from observations and pods to evictions, round by round. It asks for node-level reclaim and
//! for evictions; somebody else does them.

use std::collections::HashMap;

use super::{
    Candidate, CandidateState, Demand, Layout, LocalStorageExcess, Message, NodeCondition,
    NodeReclaim, Observations, Pod, Pressure, Ranking, Rules, Threshold, Usages,
    local_storage_excess, message, select,
};
use crate::config::{EvictionConfig, Mode, RankingStrategy};

/// The termination grace period of an eviction that cannot wait, in seconds (the kubelet's
/// `immediateEvictionGracePeriodSeconds`).
pub const IMMEDIATE_GRACE_PERIOD_SECONDS: i64 = 1;

/// How long a victim may take beyond its grace period until it no longer counts as on its way (R43).
const VICTIM_DEADLINE_NANOS: i64 = 10_000_000_000;

/// What the manager is told about its node.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Thresholds and periods.
    pub eviction: EvictionConfig,
    /// How the disks are laid out.
    pub layout: Layout,
    /// The order of eviction.
    pub strategy: RankingStrategy,
    /// How far to go beyond the kubelet.
    pub mode: Mode,
}

/// The node at one instant.
#[derive(Clone, Copy, Debug)]
pub struct Snapshot<'a> {
    /// What it has left of everything.
    pub observations: &'a Observations,
    /// The pods that run, each with its containers.
    pub pods: &'a [Pod],
    /// What they use.
    pub usages: &'a Usages,
}

/// What a round came to.
#[derive(Clone, Debug, Default)]
pub struct Round {
    /// The node conditions that hold (R6).
    pub conditions: Vec<NodeCondition>,
    /// What to reclaim from the node before [`Manager::after_reclaim`] says which pods must go (R8).
    pub node_reclaim: Vec<NodeReclaim>,
    /// The pods to evict.
    pub evictions: Vec<Eviction>,
    /// The thresholds that call for action and wait for the reclaim.
    pending: Vec<Threshold>,
}

/// A pod to evict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eviction {
    /// The pod's UID.
    pub uid: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// How long it has to end, in seconds.
    pub grace_period_seconds: i64,
    /// What is said about it.
    pub message: Message,
    /// Why.
    pub cause: Cause,
}

/// Why a pod is evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A signal is below its threshold.
    Pressure(super::Signal),
    /// The pod exceeded a limit of its own on local storage, which has this name.
    LocalStorage(&'static str),
}

impl Cause {
    /// Whether the pod is told beforehand by a DisruptionTarget condition: the kubelet does so under pressure only
    /// (R18).
    pub fn announces_disruption(self) -> bool {
        matches!(self, Self::Pressure(_))
    }
}

/// Decides round by round.
#[derive(Clone, Debug)]
pub struct Manager {
    settings: Settings,
    pressure: Pressure,
    /// Victims by UID, with the time until which they count as on their way.
    victims: HashMap<String, i64>,
}

impl Manager {
    /// A manager that has seen nothing yet.
    pub fn new(settings: Settings) -> Self {
        let thresholds = settings.layout.apply(&settings.eviction.thresholds);
        let pressure = Pressure::new(thresholds, settings.eviction.pressure_transition_period);
        Self {
            settings,
            pressure,
            victims: HashMap::new(),
        }
    }

    /// Takes a look at the node. If the round asks for node-level reclaim, its evictions are not known yet: do the
    /// reclaim, look again, and call [`Manager::after_reclaim`].
    pub fn step(&mut self, now: i64, node: Snapshot<'_>) -> Round {
        self.forget_the_dead(node);
        let due = self.pressure.update(now, node.observations);
        let conditions = self.pressure.conditions(now);
        let excesses = self.local_storage_evictions(now, node);
        // Whoever exceeds its own limits goes first, and that may be all that is needed.
        if !excesses.is_empty() {
            return Round {
                conditions,
                evictions: excesses,
                ..Round::default()
            };
        }
        let node_reclaim = self.node_reclaim(&due);
        if !node_reclaim.is_empty() {
            return Round {
                conditions,
                node_reclaim,
                pending: due,
                ..Round::default()
            };
        }
        let evictions = self.evictions(now, node, &due);
        Round {
            conditions,
            evictions,
            ..Round::default()
        }
    }

    /// Says which pods must go after the node-level reclaim that a round asked for. `before` is the snapshot of that
    /// round, `after` one from after the reclaim.
    ///
    /// If every threshold, its minimum reclaim included, is satisfied then, nobody goes. If not, the kubelet decides
    /// by what it saw *before*; the `evictd` mode by what is the case now.
    pub fn after_reclaim(
        &mut self,
        now: i64,
        round: &Round,
        before: Snapshot<'_>,
        after: Snapshot<'_>,
    ) -> Vec<Eviction> {
        match self.settings.mode {
            Mode::Kubelet
                if self
                    .pressure
                    .unresolved(after.observations)
                    .next()
                    .is_none() =>
            {
                Vec::new()
            }
            Mode::Kubelet => self.evictions(now, before, &round.pending),
            Mode::Evictd => {
                let unresolved: Vec<&Threshold> =
                    self.pressure.unresolved(after.observations).collect();
                let due: Vec<Threshold> = round
                    .pending
                    .iter()
                    .filter(|t| unresolved.contains(t))
                    .cloned()
                    .collect();
                self.evictions(now, after, &due)
            }
        }
    }

    /// What to reclaim from the node for the thresholds that will be acted on: the kubelet acts on the first one.
    fn node_reclaim(&self, due: &[Threshold]) -> Vec<NodeReclaim> {
        let acted_on = match self.settings.mode {
            Mode::Kubelet => due.get(..1).unwrap_or_default(),
            Mode::Evictd => due,
        };
        let reclaims = acted_on
            .iter()
            .flat_map(|t| self.settings.layout.node_reclaim(t.signal));
        let mut reclaims: Vec<NodeReclaim> = reclaims.copied().collect();
        reclaims.sort_unstable();
        reclaims.dedup();
        reclaims
    }

    fn local_storage_evictions(&mut self, now: i64, node: Snapshot<'_>) -> Vec<Eviction> {
        let excess =
            |pod: &Pod| local_storage_excess(pod, node.usages.get(&pod.uid)?, self.settings.layout);
        let candidates = node.pods.iter().filter(|pod| self.may_evict(pod));
        let evictions = candidates.filter_map(|pod| {
            let LocalStorageExcess { limit, message } = excess(pod)?;
            Some(eviction(
                pod,
                IMMEDIATE_GRACE_PERIOD_SECONDS,
                message,
                Cause::LocalStorage(limit),
            ))
        });
        let evictions: Vec<Eviction> = evictions.collect();
        self.remember(now, &evictions);
        evictions
    }

    /// Chooses victims for the thresholds that call for action.
    fn evictions(&mut self, now: i64, node: Snapshot<'_>, due: &[Threshold]) -> Vec<Eviction> {
        let mut evictions = Vec::new();
        match self.settings.mode {
            // One pod a round, for the first threshold alone.
            Mode::Kubelet => {
                if let Some(threshold) = due.first() {
                    evictions = self.choose(node, threshold, due, Demand::First);
                    self.remember(now, &evictions);
                }
            }
            Mode::Evictd => {
                for threshold in due {
                    let Some(seen) = node.observations.get(threshold.signal) else {
                        continue;
                    };
                    let available = u64::try_from(seen.available).unwrap_or(0);
                    let overdrawn = u64::try_from(seen.available.saturating_neg()).unwrap_or(0);
                    let deficit = threshold
                        .resolved_amount(seen.capacity)
                        .saturating_sub(available);
                    let deficit = deficit.saturating_add(overdrawn);
                    let Some(demand) = Demand::after(deficit, self.coming(now, node, threshold))
                    else {
                        continue;
                    };
                    let chosen = self.choose(node, threshold, due, demand);
                    self.remember(now, &chosen);
                    evictions.extend(chosen);
                }
            }
        }
        evictions
    }

    /// Chooses victims for one threshold; the order and the choice are those of the fast path.
    fn choose(
        &self,
        node: Snapshot<'_>,
        threshold: &Threshold,
        due: &[Threshold],
        demand: Demand,
    ) -> Vec<Eviction> {
        let Settings {
            strategy, layout, ..
        } = self.settings;
        let signal = threshold.signal;
        let ranked = Ranking {
            strategy,
            signal,
            layout,
        }
        .order(node.pods, node.usages);
        let met: Vec<&Threshold> = due.iter().collect();
        let evict = |pod: &Pod| {
            let usage = node.usages.get(&pod.uid);
            let message =
                message::resource_is_short(signal.resource(), pod, usage, &met, node.observations);
            eviction(
                pod,
                self.grace_period(threshold, pod),
                message,
                Cause::Pressure(signal),
            )
        };
        if demand == Demand::First && self.settings.mode == Mode::Kubelet {
            return ranked
                .iter()
                .find(|r| self.may_evict(r.pod))
                .map(|r| evict(r.pod))
                .into_iter()
                .collect();
        }
        let candidate = |ranked: &super::Ranked<'_>| Candidate {
            claim: ranked.claim,
            usage: ranked.usage.unwrap_or(0),
            is_exact: true,
            state: match () {
                () if self.victims.contains_key(&ranked.pod.uid) => CandidateState::OnItsWay,
                () if !self.may_evict(ranked.pod) => CandidateState::Protected,
                () => CandidateState::Eligible,
            },
        };
        let mut candidates: Vec<Candidate> = ranked.iter().map(candidate).collect();
        let mut victims = vec![0; candidates.len()];
        let rules = Rules {
            strategy,
            resource: signal.resource(),
            system_over_reserved: false,
        };
        let selection = select(&mut candidates, rules, demand, |_| None, &mut victims);
        let chosen = victims
            .iter()
            .take(selection.count)
            .filter_map(|position| ranked.get(*position));
        chosen.map(|ranked| evict(ranked.pod)).collect()
    }

    /// How long a victim has to end: no time under a hard threshold, else its own grace period or the longest that is
    /// allowed (R5).
    fn grace_period(&self, threshold: &Threshold, pod: &Pod) -> i64 {
        let longest = i64::from(self.settings.eviction.max_pod_grace_period_seconds);
        match pod.termination_grace_period_seconds {
            _ if threshold.is_hard() => IMMEDIATE_GRACE_PERIOD_SECONDS,
            Some(own) => own.min(longest),
            None => longest,
        }
    }

    /// Whether a pod may be evicted at all (R12).
    fn may_evict(&self, pod: &Pod) -> bool {
        !pod.is_critical()
    }

    /// How much of what a signal watches is on its way back from earlier victims.
    fn coming(&self, now: i64, node: Snapshot<'_>, threshold: &Threshold) -> u64 {
        let dying = node.pods.iter().filter(|pod| {
            self.victims
                .get(&pod.uid)
                .is_some_and(|deadline| now < *deadline)
        });
        let usage = |pod: &Pod| {
            Some(
                self.settings
                    .layout
                    .usage(threshold.signal, pod, node.usages.get(&pod.uid)?),
            )
        };
        dying.filter_map(usage).fold(0, u64::saturating_add)
    }

    fn remember(&mut self, now: i64, evictions: &[Eviction]) {
        for eviction in evictions {
            let grace = eviction.grace_period_seconds.saturating_mul(1_000_000_000);
            let deadline = now
                .saturating_add(grace)
                .saturating_add(VICTIM_DEADLINE_NANOS);
            self.victims.insert(eviction.uid.clone(), deadline);
        }
    }

    /// What a victim used has come back once it is no longer among the pods.
    fn forget_the_dead(&mut self, node: Snapshot<'_>) {
        self.victims
            .retain(|uid, _| node.pods.iter().any(|pod| pod.uid == *uid));
    }
}

fn eviction(pod: &Pod, grace_period_seconds: i64, message: Message, cause: Cause) -> Eviction {
    Eviction {
        uid: pod.uid.clone(),
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        grace_period_seconds,
        message,
        cause,
    }
}
