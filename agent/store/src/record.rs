//! What stands in the journal, a line each.

pub mod counted;
pub mod mitigation;
pub mod node_reclaim;
pub mod oom_kill;
pub mod shadow;

use std::{collections::BTreeMap, time::Duration};

use evictd_engine::{
    EvictionDecision, Pod, Resource, Signal, Timing,
    message::EVICTED,
    pace::{PaceInputs, Urgency},
    record::{SignalReading, SignalUse, Stages},
};
use evictd_sys::clock::{boot_id, monotonic_ns};
use serde::{Deserialize, Serialize};

use crate::record::{
    counted::{Counted, RecreationRecord, TimeBound, Workload},
    mitigation::MitigationRecord,
    node_reclaim::NodeReclaimed,
    oom_kill::OomKillRecord,
    shadow::{KubeletEviction, ShadowNode},
};

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "camelCase")]
pub enum Record {
    /// A pod was killed, or would have been.
    Evicted(Box<EvictionRecord>),
    /// Outcome of an eviction: what became of the pod.
    Finished(OutcomeRecord),
    /// The API server has heard of it.
    Reported(Reported),
    /// A pod is about to be requested to end.
    #[serde(rename = "asked")]
    Requested(Box<RequestRecord>),
    /// The node has given back what was no longer needed.
    Reclaimed(NodeReclaimed),
    /// A step was taken before a pod was evicted.
    #[serde(rename = "graduated")]
    Mitigated(MitigationRecord),
    /// The OOM killer has killed a process.
    OomKill(Box<OomKillRecord>),
    /// Evictions were paused, or a pause was lifted.
    Paused(Pause),
    /// An evicted pod does not end.
    Stuck(StuckPod),
    /// A threshold was met when it came into force.
    MetInForce(MetInForce),
    /// An eviction as limits count it.
    Counted(Box<Counted>),
    /// A pod came back after an eviction.
    #[serde(rename = "comeback")]
    Recreated(RecreationRecord),
    /// Bound of time: the records above it are older than this.
    TimeBound(TimeBound),
    /// The kubelet has evicted a pod.
    KubeletEvicted(KubeletEviction),
    /// Conditions that the Node would have, in shadow mode.
    ShadowNode(ShadowNode),
}

/// An evicted pod gives nothing back and has processes all the same; it is not evicted again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StuckPod {
    /// Id of the pod's eviction.
    pub id: String,
    /// Time at which the pod was found stuck, as RFC 3339.
    pub time: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The pod's UID.
    pub uid: String,
    /// Bytes that the pod still uses.
    pub usage: u64,
}

/// A threshold was met when it came into force, by a start or a new configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MetInForce {
    /// Names the moment.
    pub id: String,
    /// Time of the event, as RFC 3339.
    pub time: String,
    /// The signal.
    pub signal: String,
    /// Amount that was available, in the signal's unit.
    pub available: u64,
    /// Threshold: the amount that should have been available, in the signal's unit.
    pub threshold: u64,
    /// Soft threshold: pods are asked to end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub soft: bool,
    /// Shadow mode: no pod is evicted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shadow: bool,
}

impl MetInForce {
    /// What follows from it for pods, as a clause.
    pub fn consequence(&self) -> &'static str {
        match (self.shadow, self.soft) {
            (true, _) => "shadow mode evicts no pod",
            (_, true) => "pods are asked to end, one at a time, when its grace period is over",
            (..) => {
                "one pod is evicted at a time, the next one after 10 s or more, sooner only while that is urgent"
            }
        }
    }
}

/// The API server has heard of an eviction, which need not be reported again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Reported {
    /// The eviction.
    pub id: String,
    /// Time of the event, as RFC 3339.
    pub time: String,
    /// What the API server made of it: `deleted`, `gone` before, `replaced` by a pod of the same name, `static` where
    /// it cannot end the pod, `restarted` where the pod was left alone because it runs anew, `shadow`, or the refusal
    /// after which it was given up.
    pub outcome: String,
}

/// A pod is about to be asked to go, or would be. Written beforehand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestRecord {
    /// Identifies it among the evictions.
    pub id: String,
    /// When, as RFC 3339.
    pub time: String,
    /// Moment of the decision, in nanoseconds of CLOCK_MONOTONIC.
    pub decided: u64,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The pod's UID.
    pub uid: String,
    /// Text for people that says why the pod is asked.
    pub message: String,
    /// Annotations of the Event that say why, for programs, as the kubelet has them; absent in records of older
    /// versions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// The signal whose soft threshold was met for its grace period.
    pub signal: String,
    /// Amount that was available, in the signal's unit.
    pub available: u64,
    /// Threshold: the amount that should have been available, in the signal's unit.
    pub threshold: u64,
    /// Amount that the pod used, in the signal's unit.
    pub working_set: u64,
    /// Amount that the pod had requested of the same; 0 where nothing can be requested.
    pub request: u64,
    /// Whether shadow mode has only decided it: no pod was asked.
    pub shadow: bool,
    /// The time that the pod is given, in seconds.
    pub grace_period_seconds: i64,
    /// Why a PodDisruptionBudget was passed over, if one was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub override_reason: Option<String>,
    /// The boot of `decided`; empty where it is not known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub boot: String,
    /// The API server may say no: it goes when there is a [`Record::Counted`] with the same id.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub may_be_refused: bool,
    /// Why it is asked at that moment; absent in records of older versions, and in the kubelet's mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pace: Option<PaceRecord>,
    /// Inputs from which `pace` was decided: the file of the incident has them.
    #[serde(skip)]
    pub pace_inputs: Option<Box<PaceInputs>>,
    /// Owner and labels of the pod, which limits need; absent in records of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<Workload>,
    /// What its end gives back of disks, inodes and process ids beside `signal`; absent in records of older versions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub other_signals: OtherSignals,
}

/// What a pod's end gives back of signals that it is not evicted for, by their names.
pub type OtherSignals = BTreeMap<String, SignalUse>;

/// A pod was killed, or would have been.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EvictionRecord {
    /// Identifies the eviction: the boot, the agent's start and a number.
    pub id: String,
    /// When, as RFC 3339.
    pub time: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The pod's UID.
    pub uid: String,
    /// `Failed`, as the kubelet would set it; absent in shadow mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// `Evicted`.
    pub reason: String,
    /// Why, in the kubelet's words.
    pub message: String,
    /// Annotations of the Event that say why, for programs, as the kubelet has them; absent in records of older
    /// versions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// The signal.
    pub signal: String,
    /// Whether shadow mode has only decided it: nothing was killed.
    pub shadow: bool,
    /// The hook that woke the agent.
    pub hook: String,
    /// Moments in nanoseconds of CLOCK_MONOTONIC.
    pub stages: Stages,
    /// What was available, in the signal's unit.
    pub available: u64,
    /// What the kubelet would have counted as available, in bytes: `available` is no more than the memory guard leaves. Absent
    /// in records of older versions, and where the manager has evicted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubelet_available: Option<u64>,
    /// Threshold: the amount that should have been available, in the signal's unit.
    pub threshold: u64,
    /// Memory of the scope at the crossing, in bytes; 0 where the hook cannot tell, and for other signals.
    pub usage_at_crossing: u64,
    /// Memory of the scope at the decision, in bytes; 0 for other signals.
    pub usage_at_decision: u64,
    /// Amount that the pod used: its working set, or its part of what the signal watches.
    pub working_set: u64,
    /// Amount that the pod had requested of the same; 0 where nothing can be requested.
    pub request: u64,
    /// Why the kernel refused the signal, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Why the pod went at that moment; absent in journals of older agents, for pods above their own limits, and for
    /// what the manager does in the kubelet's mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pace: Option<PaceRecord>,
    /// Owner and labels of the pod, which limits need; absent in records of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<Workload>,
    /// What its end gives back of disks, inodes and process ids beside `signal`; absent in records of older versions, and
    /// where the fast path has killed the pod.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub other_signals: OtherSignals,
}

/// Why a pod went at that moment, and what was expected of it. Amounts are in the signal's unit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PaceRecord {
    /// Whether what is left would have been used up before the kubelet looked again.
    pub urgent: bool,
    /// Nanoseconds until then, at the growth that was seen; 0 where it was not urgent.
    pub exhausted_in: u64,
    /// Growth that was seen, in the signal's unit per second; 0 where it was not urgent.
    pub growth: u64,
    /// The threshold was met by memory that the kernel could give back, for as long as the kubelet needs to see it.
    pub only_cache: bool,
    /// Amount that could still be used.
    pub room: u64,
    /// Amount that earlier victims were expected to give back.
    pub pending: u64,
    /// What this one was expected to give back, the part of it included that comes only when the kubelet unmounts it.
    pub expected: u64,
    /// Part of `expected` that comes only when the kubelet unmounts it.
    #[serde(rename = "shared")]
    pub shmem: u64,
    /// The kernel program has killed from the pod by itself: past the floor, or in the agent's place.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub by_kernel: bool,
    /// Enough was on its way, and the pod went because it grew or its processes hold memory: pods before it in the
    /// order were passed over.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[serde(rename = "growing")]
    pub out_of_order: bool,
}

impl PaceRecord {
    /// An eviction at this urgency, with so much room, and so much pending.
    pub fn new(urgency: Urgency, room: u64, pending: u64) -> Self {
        let base = Self {
            room,
            pending,
            ..Self::default()
        };
        match urgency {
            Urgency::Urgent {
                exhausted_in,
                growth,
            } => Self {
                urgent: true,
                exhausted_in,
                growth,
                ..base
            },
            Urgency::Paced { only_cache } => Self { only_cache, ..base },
        }
    }

    /// An eviction at this urgency, which was decided from these inputs.
    pub fn of_inputs(urgency: Urgency, inputs: &PaceInputs) -> Self {
        let room = inputs.shortage.usable().in_time();
        Self::new(urgency, room, inputs.pending.amount)
    }

    /// An eviction of the manager, of a pod that is expected to give so much.
    pub fn of(timing: &Timing, expected: u64) -> Self {
        Self {
            expected,
            ..Self::of_inputs(timing.urgency, &timing.pace_inputs)
        }
    }
}

/// Outcome of an eviction: what became of the pod.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OutcomeRecord {
    /// The eviction.
    pub id: String,
    /// Moment when the pod's last process was gone, in nanoseconds of CLOCK_MONOTONIC; 0 when some were left.
    pub exited: u64,
    /// The threshold was available again, ns of CLOCK_MONOTONIC; 0 when it was not.
    pub freed: u64,
    /// The largest usage of the scope that was seen since, in bytes.
    pub peak_usage: u64,
    /// Bytes that were available at the end.
    pub available: u64,
}

impl OutcomeRecord {
    /// Creates the outcome of an eviction of whose end nothing is known.
    pub fn unknown(id: &str) -> Self {
        Self {
            id: id.to_owned(),
            exited: 0,
            freed: 0,
            peak_usage: 0,
            available: 0,
        }
    }
}

impl EvictionRecord {
    /// The pod, as `namespace/name`.
    pub fn pod(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Whether the pod was sent SIGKILL: neither was it only decided, in shadow mode, nor has the kernel refused.
    pub fn is_kill(&self) -> bool {
        !self.shadow && self.error.is_none()
    }
}

impl RequestRecord {
    /// The pod, as `namespace/name`.
    pub fn pod(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// The time that the pod is given.
    pub fn grace(&self) -> Duration {
        Duration::from_secs(u64::try_from(self.grace_period_seconds).unwrap_or(0))
    }

    /// Creates the record of a pod that is asked now.
    pub fn new(pod: &Pod, decision: &EvictionDecision, numbers: SignalReading) -> Self {
        let timing = decision.timing.as_deref();
        let now = jiff::Timestamp::now();
        Self {
            id: format!("soft-{}", now.as_nanosecond()),
            time: now.to_string(),
            decided: monotonic_ns(),
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            uid: pod.uid.clone(),
            message: decision.message.text.clone(),
            annotations: decision.message.annotations(),
            signal: numbers.signal.to_string(),
            available: numbers.available,
            threshold: numbers.threshold,
            working_set: numbers.usage,
            request: requested(pod, numbers.signal.resource()),
            shadow: false,
            grace_period_seconds: decision.grace_to_ask(pod),
            override_reason: None,
            boot: boot_id(),
            may_be_refused: false,
            pace: timing.map(|timing| PaceRecord::of(timing, numbers.usage)),
            pace_inputs: timing.map(|timing| Box::new(timing.pace_inputs)),
            workload: Some(pod.into()),
            other_signals: other_signals(decision),
        }
    }
}

/// What a decision says of other signals, for its record.
pub fn other_signals(decision: &EvictionDecision) -> OtherSignals {
    let others = decision.other_signals.iter();
    others
        .map(|(signal, freed)| (signal.to_string(), *freed))
        .collect()
}

#[cfg(test)]
impl EvictionRecord {
    /// One for memory, of a pod that is called web, with nothing measured.
    pub(crate) fn example(id: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            time: "2026-11-21T02:00:00Z".into(),
            namespace: "default".into(),
            name: "web".into(),
            uid: "u".into(),
            reason: "Evicted".into(),
            signal: "memory.available".into(),
            hook: "sampler".into(),
            ..Self::default()
        }
    }
}

/// An eviction like others, as far as it is one.
impl From<&RequestRecord> for EvictionRecord {
    fn from(asked: &RequestRecord) -> Self {
        Self {
            id: asked.id.clone(),
            time: asked.time.clone(),
            namespace: asked.namespace.clone(),
            name: asked.name.clone(),
            uid: asked.uid.clone(),
            reason: EVICTED.to_owned(),
            message: asked.message.clone(),
            annotations: asked.annotations.clone(),
            signal: asked.signal.clone(),
            shadow: asked.shadow,
            hook: "sampler".to_owned(),
            stages: Stages {
                signalled: asked.decided,
                ..Stages::default()
            },
            available: asked.available,
            threshold: asked.threshold,
            working_set: asked.working_set,
            request: asked.request,
            pace: asked.pace.clone(),
            workload: asked.workload.clone(),
            other_signals: asked.other_signals.clone(),
            ..Self::default()
        }
    }
}

/// The resource of a record's signal; `None` where [`is_own_limit`].
pub fn resource_of_signal(signal: &str) -> Option<Resource> {
    signal.parse().ok().map(Signal::resource)
}

/// Whether a record's signal is the name of a pod's own limit on local storage: the node was short of nothing.
pub fn is_own_limit(signal: &str) -> bool {
    resource_of_signal(signal).is_none()
}

/// What a pod has requested of a resource, in its unit. Inodes and process ids cannot be requested.
pub fn requested(pod: &Pod, resource: Resource) -> u64 {
    match resource {
        Resource::Memory => pod.memory_request,
        Resource::EphemeralStorage => pod.storage_request,
        Resource::Inodes | Resource::Pids => 0,
    }
}

impl Record {
    /// A record of an eviction.
    pub fn evicted(eviction: EvictionRecord) -> Self {
        Self::Evicted(Box::new(eviction))
    }

    /// Time of the event, as RFC 3339; `None` where the record does not say.
    pub fn time(&self) -> Option<&str> {
        let time = match self {
            Self::Evicted(record) => &record.time,
            Self::Reported(record) => &record.time,
            Self::Requested(record) => &record.time,
            Self::Reclaimed(record) => &record.time,
            Self::Mitigated(record) => &record.time,
            Self::OomKill(record) => &record.time,
            Self::Paused(record) => &record.time,
            Self::Stuck(record) => &record.time,
            Self::MetInForce(record) => &record.time,
            Self::Counted(record) => &record.time,
            Self::Recreated(record) => &record.time,
            Self::TimeBound(record) => &record.time,
            Self::KubeletEvicted(record) => &record.time,
            Self::ShadowNode(record) => &record.time,
            Self::Finished(_) => return None,
        };
        Some(time)
    }

    /// Whether a new file of the journal may begin with it although it is older.
    pub fn may_be_carried_over(&self) -> bool {
        matches!(
            self,
            Self::Evicted(_)
                | Self::Counted(_)
                | Self::Recreated(_)
                | Self::Stuck(_)
                | Self::TimeBound(_)
        )
    }
}

/// A pause was seen, or it was seen that it is lifted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pause {
    /// Time at which this agent saw the change, as RFC 3339.
    pub time: String,
    /// Source of the pause: `file`, `node`, `configMap`.
    pub by: String,
    /// Whether evictions are to stop.
    pub paused: bool,
    /// Whether they do, by this word or another one.
    pub evictions_paused: bool,
    /// Changes just before this one that were too many to be written down.
    pub untold: u64,
}
