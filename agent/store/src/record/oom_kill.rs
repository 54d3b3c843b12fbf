//! One kill of the OOM killer, as it is recorded.

use std::fmt;

use evictd_engine::{Pod, units::is_zero};
use serde::{Deserialize, Serialize};

/// Why the OOM killer came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum OomCause {
    /// The machine was short of memory.
    Machine,
    /// A cgroup that evictd watches was at its limit: the one that counts as the node, or that of all pods.
    Scope,
    /// The pod was at a limit of its own, or one of its containers was: the node had memory left.
    PodLimit,
    /// Another cgroup was at its limit.
    OtherLimit,
}

impl OomCause {
    /// The word that the journal uses.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Machine => "machine",
            Self::Scope => "scope",
            Self::PodLimit => "podLimit",
            Self::OtherLimit => "otherLimit",
        }
    }
}

/// Namespace, name and UID of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodName {
    /// Namespace of the pod, empty where it is known by its cgroup only.
    pub namespace: String,
    /// Name of the pod, empty where it is known by its cgroup only.
    pub name: String,
    /// UID of the pod.
    pub uid: String,
}

impl From<&Pod> for PodName {
    fn from(pod: &Pod) -> Self {
        Self {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            uid: pod.uid.clone(),
        }
    }
}

/// `namespace/name`, or the UID where that is all that is known.
impl fmt::Display for PodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.as_str() {
            "" => f.write_str(&self.uid),
            name => write!(f, "{}/{name}", self.namespace),
        }
    }
}

/// The cgroup that was at its limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AtLimit {
    /// Path of the cgroup below the root of the hierarchy, or its id where it is gone already.
    pub cgroup: String,
    /// Usage of the cgroup at the moment of the kill, in bytes.
    pub usage: u64,
    /// Limit of the cgroup, in bytes.
    pub limit: u64,
}

/// Eviction that evictd had carried out, or only decided, before the kill.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Before {
    /// The process that it had chosen.
    pub pod: PodName,
    /// Time from the eviction to the kill, in nanoseconds.
    pub nanos_before: u64,
    /// Whether the pod was still on its way out.
    pub in_flight: bool,
    /// Whether the eviction was only decided, in shadow mode.
    pub shadow: bool,
}

/// One kill of the OOM killer, or all of one decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OomKillRecord {
    /// Time of the kill, as RFC 3339.
    pub time: String,
    /// Time of the kill, in nanoseconds of CLOCK_MONOTONIC.
    pub at: u64,
    /// The victim's process id.
    pub pid: u32,
    /// Number of processes that were killed together (`memory.oom.group`), with the victim, by the time at which the agent
    /// read of it; absent where that was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes: Option<u32>,
    /// Name of the process.
    pub comm: String,
    /// Cgroup of the process, below the root of the hierarchy; as much of it as was still there.
    pub cgroup: String,
    /// Pod of the process, if it was in one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodName>,
    /// Value of the process's `oom_score_adj`.
    pub oom_score_adj: i32,
    /// Resident memory of the process in bytes, where it could be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rss: Option<u64>,
    /// Cause of the kill.
    pub cause: OomCause,
    /// Cgroup that was at its limit; absent where the machine was short.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_limit: Option<AtLimit>,
    /// Usage of the scope at that moment in bytes, if the victim was in it: what its page counter read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope_usage: Option<u64>,
    /// Evictions that were under way, or had just ended.
    pub before: Vec<Before>,
    /// The node was short, and evictd had not acted: the OOM killer was first.
    pub was_first: bool,
    /// Number of further kills for the same limit since the record before, which have no record of their own. Where kills
    /// for many limits share a record they are for other limits too.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more: u64,
}

/// Says it in the log.
pub fn log_kill(kill: &OomKillRecord) {
    let pod = kill.pod.as_ref().map(PodName::to_string);
    let evicted: Vec<_> = kill.before.iter().map(|b| b.pod.name.as_str()).collect();
    let limit = kill.at_limit.as_ref();
    tracing::warn!(
        pid = kill.pid,
        processes = kill.processes,
        comm = kill.comm,
        pod,
        cgroup = kill.cgroup,
        cause = kill.cause.as_str(),
        at_limit = limit.map(|l| l.cgroup.as_str()),
        limit = limit.map(|l| l.limit),
        rss = kill.rss,
        oom_score_adj = kill.oom_score_adj,
        scope_usage = kill.scope_usage,
        evicted_before = evicted.join(","),
        more = (kill.more > 0).then_some(kill.more),
        "{}",
        match kill.cause {
            OomCause::PodLimit => "the OOM killer: a pod is at a limit of its own",
            OomCause::OtherLimit => "the OOM killer: a cgroup is at its limit",
            _ if kill.was_first => "the OOM killer was first",
            _ => "the OOM killer came although a pod is being evicted",
        }
    );
}
