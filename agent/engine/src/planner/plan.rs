//! What goes into a plan, and what comes out of it.

use std::{collections::BTreeSet, time::Duration};

use super::local_storage::LIMITS;
use crate::{
    Forecast, Layout, Message, NodeCondition, NodeReclaim, Observations, Pod, PodUsage, Resource,
    Signal, Threshold, Usages,
    model::settings::{EvictionConfig, Mode, RankingStrategy},
    pace::{PaceInputs, Urgency},
    permit::NodeRate,
    record::SignalUse,
};

/// The termination grace period of an eviction that cannot wait, in seconds (the kubelet's
/// `immediateEvictionGracePeriodSeconds`).
pub const IMMEDIATE_GRACE_PERIOD_SECONDS: i64 = 1;

/// Grace period that the API gives a pod that does not say how long it needs, in seconds.
const DEFAULT_GRACE_PERIOD_SECONDS: i64 = 30;

/// The settings of the planner.
#[derive(Clone, Debug)]
pub struct PlannerSettings {
    /// Thresholds and periods.
    pub eviction: EvictionConfig,
    /// Layout of the node's disks.
    pub layout: Layout,
    /// The order of eviction.
    pub strategy: RankingStrategy,
    /// Degree to which the planner goes beyond the kubelet.
    pub mode: Mode,
    /// Signals whose hard thresholds the fast path acts on: here they count for conditions and forecasts alone.
    pub fastpath_signals: Vec<Signal>,
    /// Signals whose hard thresholds are the kubelet's, but for a step that raises them: the kubelet acts there as well.
    pub kubelets_signals: Vec<Signal>,
    /// Soft thresholds ask the API server, which static pods do not end by; killed, they keep their files: the kubelet
    /// starts them again with them.
    pub has_api_server: bool,
}

impl PlannerSettings {
    /// Whether the end of a pod leaves what it uses of a resource where it is.
    pub(super) fn keeps_files(&self, pod: &Pod, resource: Resource) -> bool {
        self.has_api_server && resource.is_of_files() && !pod.ends_by_api()
    }

    /// Computes what the end of a pod brings of what a signal watches, in its unit.
    pub(super) fn freed_by_eviction(&self, signal: Signal, pod: &Pod, usage: &PodUsage) -> u64 {
        match self.keeps_files(pod, signal.resource()) {
            true => 0,
            false => self.layout.usage(signal, pod, usage),
        }
    }

    /// Computes what the end of a pod brings of each signal that was observed, as far as its usage is known.
    pub(super) fn freed_of_all_signals(
        &self,
        node: Snapshot<'_>,
        uid: &str,
    ) -> impl Iterator<Item = (Signal, SignalUse)> {
        let pod = node.pods.iter().find(|pod| pod.uid == uid);
        let known = pod.zip(node.usages.get(uid));
        Signal::ALL.into_iter().filter_map(move |signal| {
            let (pod, usage) = known?;
            let freed = SignalUse {
                usage: self.freed_by_eviction(signal, pod, usage),
                available: node.observations.get(signal)?.available,
            };
            Some((signal, freed))
        })
    }
}

/// The node at one instant.
#[derive(Clone, Copy, Debug)]
pub struct Snapshot<'a> {
    /// Observations of all signals at this instant.
    pub observations: &'a Observations,
    /// The pods that run, each with its containers.
    pub pods: &'a [Pod],
    /// Usages of the pods.
    pub usages: &'a Usages,
    /// Bounds on the evictions of the whole node.
    pub bounds: NodeBounds,
}

impl Snapshot<'_> {
    /// The same node without its rate, where that is used up and the pods that make an urgent growth are exempt.
    pub(crate) fn beyond_rate(self) -> Option<Self> {
        let bounds = NodeBounds {
            rate: NodeRate::default(),
            ..self.bounds
        };
        let is_beyond = self.bounds.rate.is_for_growers_only();
        is_beyond.then_some(Self { bounds, ..self })
    }
}

/// Bounds on the evictions of the whole node at one moment, whatever policies say of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeBounds {
    /// Pods may go that are not urgent.
    pub allows_paced: bool,
    /// The API server accepts no DELETE: files of evicted pods stay.
    pub awaits_removals: bool,
    /// Pods may go that are above limits of their own.
    pub allows_own_limits: bool,
    /// What the node's rate allows.
    pub rate: NodeRate,
}

impl NodeBounds {
    /// Whether pods may go for a resource that are not urgent. While no DELETE is accepted, the files of a further victim
    /// would stay on the disk too.
    pub(crate) fn allows_paced_for(&self, resource: Resource) -> bool {
        self.allows_paced && !(self.awaits_removals && resource.is_of_files())
    }
}

impl Default for NodeBounds {
    /// Nothing is held back.
    fn default() -> Self {
        Self {
            allows_paced: true,
            awaits_removals: false,
            allows_own_limits: true,
            rate: NodeRate::default(),
        }
    }
}

/// Work that the planner wants done after one look at all signals.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The node conditions that hold.
    pub conditions: Vec<NodeCondition>,
    /// The pods that came back after an eviction.
    pub recreations: Vec<Recreation>,
    /// Forecasts for the signals that have thresholds.
    pub forecasts: Vec<SignalForecast>,
    /// Steps of node reclaim to take before [`crate::Planner::after_reclaim`] says which pods must go.
    pub node_reclaim: Vec<NodeReclaim>,
    /// The pods to evict.
    pub evictions: Vec<EvictionDecision>,
    /// Thresholds that are met as they come into force, at the start or by other settings; each once.
    pub met_in_force: Vec<Threshold>,
    /// Thresholds that ask for an eviction while no pod may go; each once, at this look or during the reclaim after the
    /// last one.
    pub blocked: Vec<BlockedThreshold>,
    /// UIDs of evicted pods whose processes do not end; each once.
    pub stuck: Vec<String>,
    /// The files of evicted pods have stayed where they are, and for now pods go for files only where that is urgent;
    /// told once.
    pub files_stay: bool,
    /// The thresholds that call for action and wait for the reclaim.
    pub awaiting_reclaim: Vec<Threshold>,
}

/// A threshold that asks for an eviction while no pod may go.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockedThreshold {
    /// The threshold.
    pub threshold: Threshold,
    /// Pods that a policy, a limit, a rate or a pause denies, the others being protected.
    pub denied: usize,
    /// No pod may go for its resource where that is not urgent.
    pub urgent_only: bool,
}

/// Conditions that the Node object should show, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeState {
    /// The conditions that hold: for a whole transition period after the last sign of pressure.
    pub conditions: BTreeSet<NodeCondition>,
    /// Conditions whose thresholds were met at the last look, or by an eviction since the look before.
    pub under_pressure: BTreeSet<NodeCondition>,
    /// Text for people that says why the conditions hold.
    pub message: String,
}

/// Forecast of one signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignalForecast {
    /// The signal.
    pub signal: Signal,
    /// Time until its highest threshold is met, and until nothing is left.
    pub forecast: Forecast,
}

/// A pod to evict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvictionDecision {
    /// The pod's UID.
    pub uid: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// Time that the pod has to end, in seconds.
    pub grace_period_seconds: i64,
    /// Text of the eviction, with its annotations for programs.
    pub message: Message,
    /// Cause of the eviction.
    pub cause: Cause,
    /// A soft threshold asks for it: the pod may be asked, and budgets count.
    pub is_soft: bool,
    /// Why at this moment; `None` for a pod that exceeds a limit of its own, and in the kubelet's mode.
    pub timing: Option<Box<Timing>>,
    /// What its end brings of signals beside the one that it is for; not of memory, which is back with its last process.
    pub other_signals: Vec<(Signal, SignalUse)>,
}

impl EvictionDecision {
    /// Whether the pod goes at machine speed.
    pub fn is_urgent(&self) -> bool {
        let timing = self.timing.as_ref();
        timing.is_some_and(|timing| timing.urgency.is_urgent())
    }

    /// The time that its pod is given where it is asked to end, in seconds: the decision's, as far as the pod itself
    /// takes that long. A negative `evictionMaxPodGracePeriod` leaves it to the pod.
    pub fn grace_to_ask(&self, pod: &Pod) -> i64 {
        let own = pod.termination_grace_period_seconds;
        let own = own.unwrap_or(DEFAULT_GRACE_PERIOD_SECONDS);
        let grace = match self.grace_period_seconds {
            ..0 => own,
            granted => own.min(granted),
        };
        grace.max(IMMEDIATE_GRACE_PERIOD_SECONDS)
    }
}

/// Why a pod goes at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Whether it could not wait.
    pub urgency: Urgency,
    /// All that this was decided from.
    pub pace_inputs: PaceInputs,
    /// The node's rate is used up, and does not hold this pod back: it makes the growth.
    pub is_beyond_rate: bool,
}

/// Why a pod is evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A signal is below its threshold.
    Pressure(Signal),
    /// The pod exceeded a limit of its own on local storage, which has this name.
    LocalStorage(&'static str),
}

impl Cause {
    /// The names of all causes: those of the signals and those of the limits.
    pub fn names() -> impl Iterator<Item = &'static str> {
        Signal::ALL.into_iter().map(Signal::as_str).chain(LIMITS)
    }

    /// Its name in records: the signal's or the limit's.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pressure(signal) => signal.as_str(),
            Self::LocalStorage(limit) => limit,
        }
    }

    /// The cause that a record names; `None` for a name that is neither a signal's nor a limit's.
    pub fn named(name: &str) -> Option<Self> {
        let limit = LIMITS.into_iter().find(|limit| *limit == name);
        let signal = || name.parse().ok().map(Self::Pressure);
        limit.map(Self::LocalStorage).or_else(signal)
    }

    /// Whether the pod is told beforehand by a DisruptionTarget condition: the kubelet does so under pressure only.
    pub fn announces_disruption(self) -> bool {
        matches!(self, Self::Pressure(_))
    }

    /// Whether files of the pod have to go. The kubelet keeps the last containers of a pod that it has not evicted itself,
    /// with their layers and logs, until the pod is deleted (`ShouldPodContentBeRemoved`).
    pub fn is_of_files(self) -> bool {
        match self {
            Self::Pressure(signal) => signal.resource().is_of_files(),
            Self::LocalStorage(_) => true,
        }
    }
}

/// A pod that came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recreation {
    /// The new pod's UID.
    pub uid: String,
    /// The UID of the owner that put it here again.
    pub owner_uid: String,
    /// The condition under which the last one was evicted.
    pub condition: NodeCondition,
    /// Number of times in a row that pods of this owner have come back.
    pub count: u32,
    /// Time for which the condition is held from now on, so that its taint keeps further ones away.
    pub hold: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    // R18
    #[test]
    fn a_record_tells_whether_the_disruption_was_announced() {
        for (name, announces) in [
            ("memory.available", true),
            ("nodefs.inodesFree", true),
            ("pid.available", true),
            ("emptydirfs.limit", false),
            ("ephemeralpodfs.limit", false),
            ("ephemeralcontainerfs.limit", false),
        ] {
            let cause = Cause::named(name).expect("a known name");
            assert_eq!(cause.announces_disruption(), announces, "{name}");
        }
        assert_eq!(Cause::named("of.tomorrow"), None);
    }

    // R5
    #[test]
    fn the_smaller_grace_period_counts() {
        for (own, granted, expected) in [
            (Some(30), 10, 10),
            (Some(5), 10, 5),
            (None, 100, 30),
            (Some(60), -1, 60),
            (None, -1, 30),
            (Some(30), 0, 1),
        ] {
            let decision = EvictionDecision {
                uid: String::new(),
                namespace: String::new(),
                name: String::new(),
                grace_period_seconds: granted,
                message: Message::default(),
                cause: Cause::Pressure(Signal::MemoryAvailable),
                is_soft: true,
                timing: None,
                other_signals: Vec::new(),
            };
            let pod = Pod {
                termination_grace_period_seconds: own,
                ..Pod::default()
            };
            assert_eq!(decision.grace_to_ask(&pod), expected, "{own:?} {granted}");
        }
    }
}
