//! The steps before an eviction: reclaim page cache, throttle pods, release them.
//!
//! `evictd_engine::mitigation` decides which step is next, `manager_loop::mitigation_steps` sends the request, and
//! [`threads`] have [`worker`] do it: a step may wait for the kernel or for a disk, which the manager's thread does
//! not.

mod threads;
mod worker;

use std::{sync::Arc, time::Duration};

use evictd_engine::{Signal, mitigation::Step};
use evictd_node::{cgroup::reclaim::ReclaimResult, pods::table::PodEntry};

pub use threads::MitigationThreads;
pub use worker::{MitigationCounters, MitigationWorker};

/// A step to take.
#[derive(Clone, Debug)]
pub struct MitigationRequest {
    /// Action to take.
    pub action: MitigationAction,
    /// Signal that is short.
    pub signal: Signal,
    /// Shadow mode: log the step and do nothing.
    pub shadow: bool,
}

/// Actions that may be taken before a pod is evicted.
#[derive(Clone, Debug)]
pub enum MitigationAction {
    /// Reclaim page cache.
    Reclaim {
        /// Bytes of what counts as used that are to be reclaimed.
        deficit: u64,
        /// Pods from which page cache is reclaimed.
        pods: Vec<Arc<PodEntry>>,
        /// Longest time that the reclaim may take.
        within: Duration,
    },
    /// Keep these from growing: the first candidates, in their order.
    Throttle(Vec<Arc<PodEntry>>),
    /// Let these grow again.
    Release(Vec<Arc<PodEntry>>),
    /// Let all pods grow again.
    ReleaseAll,
}

impl MitigationAction {
    /// The engine's name for it.
    pub fn step(&self) -> Step {
        match self {
            Self::Reclaim { deficit, .. } => Step::Reclaim(*deficit),
            Self::Throttle(_) => Step::Throttle,
            Self::Release(_) | Self::ReleaseAll => Step::Unthrottle,
        }
    }

    /// The pods that it names.
    pub fn pods(&self) -> &[Arc<PodEntry>] {
        match self {
            Self::Reclaim { pods, .. } | Self::Throttle(pods) | Self::Release(pods) => pods,
            Self::ReleaseAll => &[],
        }
    }
}

/// Effect of a step on one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodEffect {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The pod's UID.
    pub uid: String,
    /// Memory that the pod has given back.
    pub given: ReclaimResult,
    /// The limit that it was given or that was taken away, in bytes.
    pub high: Option<u64>,
}

/// Effect of a step.
#[derive(Clone, Debug)]
pub struct StepEffect {
    /// The step.
    pub step: Step,
    /// Signal that was short.
    pub signal: Signal,
    /// Pod by pod.
    pub pods: Vec<PodEffect>,
    /// Why nothing was done, or not everything.
    pub refusal: Option<String>,
    /// Time that the step took.
    pub took: Duration,
}

/// Outcome of a step, with the signal before and after it.
#[derive(Clone, Debug)]
pub struct MitigationOutcome {
    /// The step and its pods.
    pub effect: StepEffect,
    /// Bytes of the signal that were available before; for a release, when the throttle was set.
    pub available_before: i64,
    /// Bytes of the signal that are available now.
    pub available_after: i64,
}
