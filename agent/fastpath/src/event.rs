//! The events of the fast path: plain values, made without allocating.

use std::sync::Arc;

use evictd_engine::{
    Signal,
    model::settings::MemoryHook,
    pace::{PaceInputs, Urgency},
    record::{KillOutcome, Stages},
};
use evictd_node::pods::table::PodEntry;

/// One pod was sent SIGKILL, would have been in live mode, or the kernel refused it (`outcome`).
#[derive(Clone, Debug)]
pub struct EvictionReport {
    /// The victim.
    pub pod: Arc<PodEntry>,
    /// Counts the evictions of this agent from 1; [`VictimExit`] refers to it.
    pub number: u64,
    /// The signal whose threshold was met: the node's, or that of the pods' cgroup.
    pub signal: Signal,
    /// The times of the crossing, the wake-up, the decision and the signal.
    pub stages: Stages,
    /// The hook that woke the fast path; the sampler, if no hook did.
    pub hook: MemoryHook,
    /// Usage of the scope at the crossing in bytes, 0 where the hook cannot tell.
    pub usage_at_crossing: u64,
    /// Usage of the scope when it was decided, in bytes.
    pub usage_at_decision: u64,
    /// Bytes that were available when the eviction was decided.
    pub available: u64,
    /// Bytes that the kubelet would have counted as available then; `None` for a kill of the kernel's program, which counts no
    /// page cache.
    pub kubelet_available: Option<u64>,
    /// The capacity of the scope in bytes.
    pub capacity: u64,
    /// The threshold in bytes: what must be available.
    pub threshold: u64,
    /// The victim's working set when it was decided, in bytes.
    pub working_set: u64,
    /// Why it was evicted at that moment.
    pub urgency: Urgency,
    /// All inputs of that decision.
    pub pace_inputs: PaceInputs,
    /// Bytes that the victim was expected to give back: the part of the working set that the kernel cannot take back.
    pub expected: u64,
    /// The part of `expected` that comes back only when the kubelet unmounts it, in bytes.
    pub shmem: u64,
    /// The kernel program has killed from it by itself, past the floor or in the agent's place; `pace_inputs` is no
    /// decision then.
    pub by_kernel: bool,
    /// Policies denied all pods, and the last resort allowed this one.
    pub last_resort: bool,
    /// Whether the pod was chosen because it grew or its processes hold memory: pods before it in the order of eviction
    /// were passed over.
    pub out_of_order: bool,
    /// Whether SIGKILL was sent, or why not.
    pub outcome: KillOutcome,
}

/// End of a victim, and what the scope had then.
#[derive(Clone, Debug)]
pub struct VictimExit {
    /// The victim.
    pub pod: Arc<PodEntry>,
    /// Number of its eviction.
    pub number: u64,
    /// No process was left at this moment (ns of CLOCK_MONOTONIC); 0 when some were left at the deadline.
    pub exited: u64,
    /// The scope had its threshold available again at this moment (ns of CLOCK_MONOTONIC); 0 when it had not.
    pub threshold_cleared: u64,
    /// The largest usage of the scope that was seen since the crossing, in bytes.
    pub peak_usage: u64,
    /// Bytes that were available at the end.
    pub available: u64,
}

/// A victim gives nothing back and has processes all the same.
#[derive(Clone, Debug)]
pub struct StuckVictim {
    /// The victim.
    pub pod: Arc<PodEntry>,
    /// Number of its eviction.
    pub number: u64,
    /// Bytes that the pod still uses.
    pub usage: u64,
}

/// Reasons why no pod was evicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockedBy {
    /// Evictions are paused.
    pub paused: bool,
    /// Only urgent evictions are allowed: the fleet brake is slow or pauses the node, or the policies
    /// or the kubelet's thresholds are not known yet.
    pub urgent_only: bool,
    /// Pods that a policy or a limit denied.
    pub denied: usize,
    /// All pods together use less than what is missing, so that another one would be evicted in vain.
    pub in_vain: bool,
}

impl BlockedBy {
    /// Whether the same holds back the pods at both times, as far as it holds back all of them: a pause; and, where they
    /// are not urgent, the fleet, policies or thresholds of the kubelet that are awaited. What a policy or a limit denies
    /// is not compared.
    pub(crate) fn has_same_holder(self, other: Self) -> bool {
        (self.paused, self.urgent_only) == (other.paused, other.urgent_only)
    }
}

/// Event that the fast path sends to the threads of normal priority.
#[derive(Clone, Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "a box would allocate on the fast path"
)]
pub enum FastPathEvent {
    /// See [`EvictionReport`].
    Evicted(EvictionReport),
    /// See [`VictimExit`].
    Finished(VictimExit),
    /// See [`StuckVictim`]; once for each victim.
    Stuck(StuckVictim),
    /// The kernel program has killed from a pod so long ago, in nanoseconds, that the eviction is not completed;
    /// `None`: the pod is unknown.
    KernelKill(Option<Arc<PodEntry>>, u64),
    /// A threshold was met when it came into force, at the start or by a new configuration.
    MetInForce {
        /// Signal of the threshold.
        signal: Signal,
        /// Bytes that are available.
        available: u64,
        /// Bytes that should be available.
        threshold: u64,
        /// Counts these reports of this agent from 1.
        number: u64,
        /// Shadow mode: no pod is evicted.
        shadow: bool,
    },
    /// The threshold is met and no pod may be evicted; reported once per pressure, and again when something else holds
    /// pods back.
    NoCandidates {
        /// Signal of the threshold.
        signal: Signal,
        /// Bytes that are available.
        available: u64,
        /// Bytes that should be available.
        threshold: u64,
        /// Why not, as far as it is not about critical pods.
        held: BlockedBy,
    },
    /// The per-page hook could not be attached or detached; until that succeeds the sampler watches alone.
    HookLost {
        /// The errno of the attempt.
        errno: i32,
    },
    /// The scope can no longer be read: its cgroup was removed. Sent once until it can be read again.
    ScopeGone {
        /// The signal that it stands for.
        signal: Signal,
        /// The errno of the read.
        errno: i32,
    },
}
