//! What goes to the manager, and what comes from it.

use std::sync::Arc;

use evictd_engine::{
    EvictionDecision, NodeReclaim, Recreation, Signal,
    model::settings::MitigationConfig,
    reclaim::Removed,
    record::{NodeState, Stages},
};
use evictd_node::{memory_scope::Scope, pods::table::Entry};

use crate::{
    DiskSources, PodSet,
    mitigation_worker::{Done, MitigationRequest},
};

/// To the manager.
#[derive(Debug)]
pub enum Command {
    /// Who runs here from now on.
    Members(PodSet),
    /// The cgroup of all pods has come, or is another one or of another size now.
    PodsMemory(Box<Scope>),
    /// The node's memory has another capacity now.
    NodeMemory(Box<Scope>),
    /// The disks, which could not be told apart before.
    Disks(Box<DiskSources>),
    /// The fast path has evicted a pod.
    EvictedByFastPath {
        /// The pod's UID.
        uid: String,
        /// Which signal was short.
        signal: Signal,
        /// What was available then, in the signal's unit.
        available: u64,
        /// It was only reported: the pod lives on.
        shadow: bool,
        /// The kernel has refused SIGKILL: the pod lives on too.
        refused: bool,
    },
    /// What came of a [`SoftEvictionRequest`].
    SoftEvictionFinished {
        /// The UID of the pod that was chosen first.
        chosen: String,
        /// The pod that goes, if one does.
        gone: Option<EvictionDecision>,
    },
    /// A reclaim by [`ManagerEvent::Reclaim`] is over: what was removed, or `None` when there is no runtime to ask.
    Reclaimed(Option<Removed>),
    /// A step by [`ManagerEvent::Mitigate`] is over.
    MitigationDone(Box<Done>),
    /// Other settings.
    Settings {
        /// Thresholds and all that the engine is told.
        settings: Box<evictd_engine::Settings>,
        /// Decide, tell, and do nothing.
        shadow: bool,
        /// What is done before a pod is evicted.
        mitigation: MitigationConfig,
    },
}

/// From the manager.
#[derive(Debug)]
pub enum ManagerEvent {
    /// A pod was killed, or would have been.
    Evicted(Box<EvictionReport>),
    /// A pod is to be asked to go; answered by [`Command::SoftEvictionFinished`].
    Soft(Box<SoftEvictionRequest>),
    /// What the node should say has changed.
    Node(NodeState),
    /// The node is to give back what it can; pods wait for that, and a look at the signals says whether it has come.
    Reclaim(ReclaimRequest),
    /// What a reclaim has brought.
    Reclaimed(Box<Reclaimed>),
    /// A step before an eviction is to be taken; answered by [`Command::MitigationDone`] unless it is shadow mode's.
    Mitigate(Box<MitigationRequest>),
    /// What such a step has brought.
    Graduated(Box<MitigationOutcome>),
    /// An evicted pod's owner has put another one here.
    Recreated(Recreation),
    /// A threshold is met as it comes into force.
    MetInForce {
        /// The threshold's signal.
        signal: Signal,
        /// What is available, in the signal's unit.
        available: u64,
        /// What should be.
        threshold: u64,
    },
    /// The processes of an evicted pod do not end.
    Stuck(Arc<Entry>),
    /// A kernel hook could not be armed, for this reason; the sampler goes on alone.
    HookRefused(String),
}

/// The node is to give back what it can.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReclaimRequest {
    /// What the disk that is short is helped by, in this order.
    pub what: Vec<NodeReclaim>,
    /// Who is asked.
    pub of: ReclaimBy,
}

/// What may remove what is not in use on a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReclaimBy {
    /// The container runtime; answered by [`Command::Reclaimed`].
    Runtime,
    /// The kubelet beside this agent, which has the same thresholds.
    Kubelet,
    /// None: shadow mode only speaks of it.
    None,
}

/// What a reclaim by the container runtime has brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reclaimed {
    /// What the disk was to be helped by.
    pub what: Vec<NodeReclaim>,
    /// What was removed.
    pub removed: Removed,
    /// How much more of each signal that was short is available now, in its unit; less where others have used more
    /// meanwhile.
    pub freed: Vec<(Signal, i64)>,
    /// No threshold that asked for it is met any more, minimum reclaim included: no pod has to go.
    pub is_enough: bool,
    /// How long it took.
    pub took: std::time::Duration,
}

/// A pod that the manager has killed.
#[derive(Clone, Debug)]
pub struct EvictionReport {
    /// The victim.
    pub pod: Arc<Entry>,
    /// The number of this eviction: the manager counts its own from 1.
    pub number: u64,
    /// The engine's decision.
    pub eviction: EvictionDecision,
    /// What asked for it: a signal, or the name of the pod's own limit.
    pub signal: String,
    /// What woke the thread.
    pub hook: String,
    /// When.
    pub stages: Stages,
    /// What was available, in the signal's unit.
    pub available: u64,
    /// What should have been.
    pub threshold: u64,
    /// What the pod used of it.
    pub usage: u64,
    /// Nothing was killed.
    pub shadow: bool,
    /// SIGKILL was refused with this errno, 0 when it was not.
    pub errno: i32,
}

/// A pod is to be evicted for a soft threshold.
pub type SoftEvictionRequest = evictd_engine::soft::SoftEvictionRequest<Arc<Entry>>;

/// What a step has brought.
#[derive(Clone, Debug)]
pub struct MitigationOutcome {
    /// What was done.
    pub done: Done,
    /// What was available of the signal before, in bytes; for a release, when the throttle was set.
    pub available_before: i64,
    /// And now.
    pub available_after: i64,
}
