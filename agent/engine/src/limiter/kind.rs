//! Whether one pod may be evicted at a moment.

use super::{ALL_BUT_NODE_RATE, EvictionLimiter, RATES};
use crate::{
    Cause, EvictionDecision, ManagedPod,
    permit::{LastResort, MAX_QUOTAS_PER_POD, Permission},
};

/// Why a pod would be evicted: that says which limits hold for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EvictionKind {
    /// For a shortage of the node that cannot wait.
    #[default]
    Urgent,
    /// The same, and the pod makes the growth: where the node's rate exempts those, it does not hold it back
    /// ([`NodeRate::is_for_growers_only`](crate::permit::NodeRate::is_for_growers_only)).
    Grower,
    /// For a shortage of the node at the kubelet's pace: the fleet brake, and policies and thresholds that are awaited, hold
    /// it back.
    Paced,
    /// For a shortage of the node as `mode: kubelet` sees it, which knows no urgency: the fleet brake and thresholds that are
    /// awaited hold it back, but no policies, since a fork bomb does not wait for them.
    AsKubelet,
    /// Above a limit of its own: the node's rate, which bounds what a shortage of the node takes, does not hold it back.
    OwnLimit,
    /// For a cause that is not known yet: what holds for every cause. The planner itself counts with the node's rate.
    AnyCause,
    /// By the kernel program at the floor, where no code can check whether a permission still counts: only a pod that
    /// may go for good. While the manager kills it, it stays the pod to kill from.
    KernelKill,
}

impl EvictionKind {
    /// The kind of a decision of the planner.
    pub fn of(decision: &EvictionDecision) -> Self {
        match (decision.cause, &decision.timing) {
            (Cause::LocalStorage(_), _) => Self::OwnLimit,
            (Cause::Pressure(_), None) => Self::AsKubelet,
            (Cause::Pressure(_), Some(timing)) if timing.is_beyond_rate => Self::Grower,
            (Cause::Pressure(_), Some(_)) if decision.is_urgent() => Self::Urgent,
            (Cause::Pressure(_), Some(_)) => Self::Paced,
        }
    }
}

impl EvictionLimiter {
    /// Whether a pod may go now: it is not on its way already, and every limit that it is under has room. `resort` is
    /// what the last resort takes: [`LastResort::None`] for an ordinary look. Allocates nothing, takes no lock.
    pub fn allows(
        &self,
        pod: &dyn ManagedPod,
        now: u64,
        kind: EvictionKind,
        resort: LastResort,
    ) -> bool {
        let limits = match kind {
            EvictionKind::OwnLimit | EvictionKind::AnyCause | EvictionKind::Grower => {
                ALL_BUT_NODE_RATE
            }
            _ if resort >= LastResort::Conditional => 0..RATES,
            _ => 0..MAX_QUOTAS_PER_POD,
        };
        let is_for_good = || {
            let permission = pod.permit().permission(now);
            permission == Permission::Always && !pod.is_protected()
        };
        self.is_in_time(kind, now)
            && (kind != EvictionKind::KernelKill || is_for_good())
            && self.is_permitted(pod, now, resort)
            && self.has_capacity_in(pod, now, limits)
    }

    /// Whether nothing on the whole node holds back an eviction that could wait.
    pub(super) fn is_in_time(&self, kind: EvictionKind, now: u64) -> bool {
        match kind {
            EvictionKind::Paced => self.allows_paced(now),
            EvictionKind::AsKubelet => {
                !self.awaits_configuration(now) && self.fleet_allows_paced(now)
            }
            EvictionKind::Urgent
            | EvictionKind::Grower
            | EvictionKind::OwnLimit
            | EvictionKind::AnyCause
            | EvictionKind::KernelKill => true,
        }
    }

    fn is_permitted(&self, pod: &dyn ManagedPod, now: u64, resort: LastResort) -> bool {
        if self.is_paused() || pod.eviction_state().is_ending() {
            return false;
        }
        match pod.permit().permission(now) {
            Permission::Always | Permission::Until(_) => true,
            Permission::Denied => resort >= LastResort::Conditional,
            Permission::Never => resort >= LastResort::Any,
        }
    }
}
