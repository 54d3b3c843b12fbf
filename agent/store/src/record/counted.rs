//! What limits and recreations count, as the journal keeps it.

use std::collections::BTreeMap;

use evictd_engine::{NodeCondition, Owner, Pod, Signal, units::is_zero};
use evictd_sys::clock::{boot_id, monotonic_ns};
use serde::{Deserialize, Serialize};

use super::{EvictionRecord, OtherSignals, RequestRecord};

/// Labels of a pod take so many bytes at most, keys and values together; the API server takes a megabyte and more. As
/// many evictions as may wait for the API server still fit into two files of the journal.
const LABELS: usize = 4 << 10;
/// Largest size of the pod's owner that is kept, in bytes: a kind, the name of an object, and a UID together.
const OWNER: usize = 1 << 10;

/// Owner and labels of a pod, as policies see them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Workload {
    /// The controller that owns the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// `metadata.labels`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Whether something is absent because it was too long to be kept: limits count the pod as one of which it is not
    /// known.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_partial: bool,
}

impl From<&Pod> for Workload {
    fn from(pod: &Pod) -> Self {
        let labels = pod.labels.iter();
        let labels: usize = labels.map(|(key, value)| key.len() + value.len()).sum();
        let owner = |owner: &Owner| owner.kind.len() + owner.name.len() + owner.uid.len();
        let owner = pod.owner.as_ref().map_or(0, owner);
        Self {
            owner: pod.owner.clone().filter(|_| owner <= OWNER),
            labels: match labels <= LABELS {
                true => pod.labels.clone(),
                false => BTreeMap::new(),
            },
            is_partial: labels > LABELS || owner > OWNER,
        }
    }
}

/// An eviction as limits count it: a pod goes because the API server has agreed, or the record of an eviction was
/// carried over into a new file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Counted {
    /// The eviction.
    pub id: String,
    /// Time of the event, as RFC 3339.
    pub time: String,
    /// The boot in which that was; empty where it is not known.
    pub boot: String,
    /// Time of the event, in nanoseconds of CLOCK_MONOTONIC.
    pub at: u64,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The pod's UID.
    pub uid: String,
    /// The signal.
    pub signal: String,
    /// Amount that the pod used, in the signal's unit; 0 where it is not known.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub usage: u64,
    /// Amount that was available, in the signal's unit.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub available: u64,
    /// What its end gives back of other signals.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub other_signals: OtherSignals,
    /// The time that the pod was given, in seconds; absent where it was killed at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_period_seconds: Option<i64>,
    /// Limits count it from this moment on, not from the end of its time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_agreed: bool,
    /// Absent where it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<Workload>,
}

impl From<&EvictionRecord> for Counted {
    fn from(e: &EvictionRecord) -> Self {
        Self {
            id: e.id.clone(),
            time: e.time.clone(),
            boot: e.boot().to_owned(),
            at: e.stages.signalled,
            namespace: e.namespace.clone(),
            name: e.name.clone(),
            uid: e.uid.clone(),
            signal: e.signal.clone(),
            usage: e.working_set,
            available: e.available,
            other_signals: e.other_signals.clone(),
            grace_period_seconds: None,
            is_agreed: false,
            workload: e.workload.clone(),
        }
    }
}

impl From<&RequestRecord> for Counted {
    fn from(a: &RequestRecord) -> Self {
        Self {
            id: a.id.clone(),
            time: a.time.clone(),
            boot: a.boot.clone(),
            at: a.decided,
            namespace: a.namespace.clone(),
            name: a.name.clone(),
            uid: a.uid.clone(),
            signal: a.signal.clone(),
            usage: a.working_set,
            available: a.available,
            other_signals: a.other_signals.clone(),
            grace_period_seconds: Some(a.grace_period_seconds),
            is_agreed: false,
            workload: a.workload.clone(),
        }
    }
}

impl Counted {
    /// The API server has just agreed to what it was asked for.
    pub fn agreed(asked: &RequestRecord) -> Self {
        let now = Clocks::now();
        Self {
            time: now.wall.to_string(),
            boot: now.boot,
            at: now.monotonic,
            is_agreed: true,
            ..Self::from(asked)
        }
    }
}

/// A pod came back after an eviction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RecreationRecord {
    /// Time of the event, as RFC 3339.
    pub time: String,
    /// The boot in which that was.
    pub boot: String,
    /// Time of the event, in nanoseconds of CLOCK_MONOTONIC.
    pub at: u64,
    /// The new pod's UID.
    pub uid: String,
    /// The UID of the controller that owns it.
    pub owner_uid: String,
    /// The node condition under which the last one was evicted.
    pub condition: String,
    /// Number of times in a row that pods of this owner have come back.
    pub count: u32,
    /// Time for which the condition is held, in seconds.
    pub hold_seconds: u64,
}

impl From<&evictd_engine::Recreation> for RecreationRecord {
    fn from(recreation: &evictd_engine::Recreation) -> Self {
        let now = Clocks::now();
        Self {
            time: now.wall.to_string(),
            boot: now.boot,
            at: now.monotonic,
            uid: recreation.uid.clone(),
            owner_uid: recreation.owner_uid.clone(),
            condition: recreation.condition.to_string(),
            count: recreation.count,
            hold_seconds: recreation.hold.as_secs(),
        }
    }
}

/// What stands above in the journal is older than this, whatever its own times say: the clock was set back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TimeBound {
    /// Time at which it was seen that the clock was set back, as RFC 3339.
    pub time: String,
}

impl EvictionRecord {
    /// The boot in which it was, with which its id begins; empty where that is not known.
    pub fn boot(&self) -> &str {
        /// Characters of a UUID.
        const UUID: usize = 36;
        let boot = self.id.get(..UUID).unwrap_or_default();
        let is_uuid = boot.bytes().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        });
        if is_uuid { boot } else { "" }
    }
}

/// The node condition of this name.
pub fn condition(name: &str) -> Option<NodeCondition> {
    let mut all = Signal::ALL.into_iter().map(Signal::node_condition);
    all.find(|condition| condition.as_str() == name)
}

/// All clocks at one moment.
#[derive(Clone, Debug)]
pub struct Clocks {
    /// The boot; empty where it is not known.
    pub boot: String,
    /// CLOCK_MONOTONIC, in nanoseconds.
    pub monotonic: u64,
    /// The wall clock.
    pub wall: jiff::Timestamp,
}

impl Clocks {
    /// Reads the clocks as they stand now.
    pub fn now() -> Self {
        Self {
            boot: boot_id(),
            monotonic: monotonic_ns(),
            wall: jiff::Timestamp::now(),
        }
    }
}
