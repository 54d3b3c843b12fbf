//! Values that describe one decision, for what is reported and kept of it.

use crate::Signal;

/// Moments of one eviction, in nanoseconds of CLOCK_MONOTONIC; 0 where a hook cannot tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Stages {
    /// The kernel saw the counter cross the limit (only hooks with a kernel program).
    pub crossed: u64,
    /// The fast path thread ran.
    pub woken: u64,
    /// The victim was chosen, on values read after `woken`.
    pub decided: u64,
    /// SIGKILL was sent to every process of the victim.
    pub signalled: u64,
}

/// What a pod uses of a signal beside the one that it is evicted for, in that signal's unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SignalUse {
    /// Amount that the pod's end gives back.
    pub usage: u64,
    /// Amount that was available.
    pub available: i64,
}

/// Values that are reported of a signal and a pod that goes for it. Amounts are in the signal's unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignalReading {
    /// Signal that is short.
    pub signal: Signal,
    /// Amount that was available, in the signal's unit.
    pub available: u64,
    /// Threshold: the amount that should have been available, in the signal's unit.
    pub threshold: u64,
    /// Amount that the pod used, in the signal's unit.
    pub usage: u64,
}

/// Outcome of the kill of a pod that was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KillOutcome {
    /// The pod was sent SIGKILL.
    Killed,
    /// The kill was only reported, in shadow mode: the pod lives on.
    Shadow,
    /// The kernel has refused SIGKILL with this errno: the pod lives on too.
    Refused(i32),
}

impl KillOutcome {
    /// Whether no signal was sent because of shadow mode.
    pub fn is_shadow(self) -> bool {
        self == Self::Shadow
    }

    /// The errno with which SIGKILL was refused.
    pub fn refusal(self) -> Option<i32> {
        match self {
            Self::Refused(errno) => Some(errno),
            Self::Killed | Self::Shadow => None,
        }
    }
}

/// Manner in which a pod goes for a soft threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// The pod was requested to end, and has its time.
    Requested,
    /// The pod was requested to end, and has ended.
    Ended,
    /// The pod was gone before the request: no limit counts it.
    GoneBefore,
}
