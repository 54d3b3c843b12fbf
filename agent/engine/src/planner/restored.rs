//! What the planner takes over from an earlier agent.

use super::plan::Recreation;
use crate::{NodeCondition, Signal, record::SignalUse};

/// What an earlier agent has done, for a planner that goes on where it ended. Moments are nanoseconds of the clock that
/// [`crate::Planner::plan`] is given; below zero are those before it began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestoredState {
    /// Pods that may be on their way still, or whose files are; the newest of one pod last.
    pub victims: Vec<RestoredPending>,
    /// The UIDs of all pods that were killed or asked to go lately, whatever is left of them, each with when that was;
    /// the last one of a pod last.
    pub killed: Vec<(String, u64)>,
    /// Evictions for a signal, the oldest first.
    pub evictions: Vec<RestoredOwnerEviction>,
    /// Recreations, the oldest first.
    pub recreations: Vec<RestoredRecreation>,
    /// Signals for which pods were evicted, each with the time of the last eviction.
    pub last: Vec<(Signal, i64)>,
}

/// A pod that was evicted, and may be there still.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoredPending {
    /// The pod's UID.
    pub uid: String,
    /// Moment when the time that the pod was given to end was over.
    pub at: i64,
    /// Whether the pod was asked to go, not killed.
    pub is_requested: bool,
    /// Whether nothing is left of what ran then.
    pub is_dead: bool,
    /// Signal for which the pod was chosen; `None` for one above a limit of its own.
    pub signal: Option<Signal>,
    /// Amount that the pod used then, in the signal's unit.
    pub usage: u64,
    /// Amount that was available then, in the signal's unit.
    pub available: i64,
    /// The same of other signals.
    pub other_signals: Vec<(Signal, SignalUse)>,
}

/// An eviction of a pod with an owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoredOwnerEviction {
    /// Moment when this happened, in nanoseconds of the planner's clock.
    pub at: i64,
    /// Time of the eviction, in seconds since 1970.
    pub since: i64,
    /// The pod's UID.
    pub uid: String,
    /// The UID of its owner.
    pub owner_uid: String,
    /// The condition under which it was evicted.
    pub condition: NodeCondition,
}

/// A pod that came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoredRecreation {
    /// Moment when this happened, in nanoseconds of the planner's clock.
    pub at: i64,
    /// Recreation that was found at that moment.
    pub recreation: Recreation,
}
