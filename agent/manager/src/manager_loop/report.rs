//! What the rest of the agent gets of a plan.

use std::{collections::BTreeSet, sync::Arc};

use evictd_engine::{
    NodeCondition, NodeState, Observations, Plan, Planner, Resource, Threshold, recorder::Recorder,
    units::SECOND,
};
use evictd_sys::clock::monotonic_ns;

use crate::{ManagerEvent, ManagerEventQueue, SharedStatus, SignalSources, Status, ThresholdMet};

/// What is under pressure may change at every look; it is reported no sooner than so long after the last time, in nanoseconds.
const REPORT_AGAIN_NS: u64 = SECOND;

/// Tells the rest of the agent what the loop sees and does.
pub(crate) struct NodeReporter {
    pub events: Arc<ManagerEventQueue>,
    pub status: Arc<SharedStatus>,
    recorder: Arc<Recorder>,
    /// The state of the node that was sent last.
    sent: NodeState,
    /// Time at which `sent` was sent, in nanoseconds of CLOCK_MONOTONIC.
    sent_at: u64,
    /// Conditions for which the fast path has evicted and that were not sent since.
    evicted_for: BTreeSet<NodeCondition>,
    /// Why the conditions hold: a threshold that is met, or the message of an eviction.
    cause: String,
    /// Cycles since the start.
    cycles: u64,
    /// Pods that came back after an eviction.
    recreations: u64,
}

impl NodeReporter {
    pub fn new(
        events: Arc<ManagerEventQueue>,
        status: Arc<SharedStatus>,
        recorder: Arc<Recorder>,
    ) -> Self {
        Self {
            events,
            status,
            recorder,
            sent: NodeState::default(),
            sent_at: 0,
            evicted_for: BTreeSet::new(),
            cause: String::new(),
            cycles: 0,
            recreations: 0,
        }
    }

    /// Records what is available of all signals but memory, for incidents. Memory is recorded by the fast path.
    pub fn record(&self, planner: &Planner, seen: &Observations) {
        let now = monotonic_ns();
        for threshold in planner.thresholds() {
            let signal = threshold.signal;
            if let (Some(seen), true) = (seen.get(signal), signal.resource() != Resource::Memory) {
                let available = u64::try_from(seen.available).unwrap_or(0);
                self.recorder.record(now, signal, available);
            }
        }
    }

    /// The fast path has evicted a pod for this condition.
    pub fn note_eviction(&mut self, condition: NodeCondition) {
        self.evicted_for.insert(condition);
    }

    /// A pod goes for this reason.
    pub fn set_cause(&mut self, message: &str) {
        message.trim_end().clone_into(&mut self.cause);
    }

    /// Sends the events of a plan, and sets the status.
    pub fn report(
        &mut self,
        plan: Plan,
        planner: &Planner,
        sources: &SignalSources,
        seen: &Observations,
    ) {
        self.report_state(planner, plan.conditions.iter().copied().collect());
        self.cycles += 1;
        for recreation in plan.recreations {
            self.recreations += 1;
            self.emit(ManagerEvent::Recreated(recreation));
        }
        let met = |threshold: &Threshold| {
            let seen = seen.get(threshold.signal)?;
            Some(ThresholdMet {
                signal: threshold.signal,
                is_hard: threshold.is_hard(),
                available: u64::try_from(seen.available).unwrap_or(0),
                threshold: threshold.amount(seen.capacity),
            })
        };
        for met in plan.met_in_force.iter().filter_map(met) {
            self.emit(ManagerEvent::MetInForce(met));
        }
        for blocked in &plan.blocked {
            if let Some(met) = met(&blocked.threshold) {
                self.emit(ManagerEvent::NoCandidates {
                    met,
                    denied: blocked.denied,
                    urgent_only: blocked.urgent_only,
                });
            }
        }
        let mut thresholds = planner.thresholds();
        let asks_for_disks = thresholds.any(|t| t.signal.resource().is_of_files());
        self.status.set(Status {
            observations: *seen,
            thresholds: planner.thresholds().cloned().collect(),
            forecasts: plan.forecasts,
            conditions: plan.conditions.into_iter().collect(),
            hung: sources.hung(asks_for_disks),
            drift: sources.drift(),
            cycles: self.cycles,
            recreations: self.recreations,
        });
    }

    /// Sends the state of the node where it is news.
    fn report_state(&mut self, planner: &Planner, conditions: BTreeSet<NodeCondition>) {
        let under_pressure = || {
            planner
                .thresholds()
                .filter(|t| planner.is_under_pressure(t))
        };
        if let Some(met) = under_pressure().next() {
            self.cause = met.to_string();
        }
        let mut under_pressure: BTreeSet<_> = under_pressure()
            .map(|t| t.signal.node_condition())
            .collect();
        under_pressure.extend(&self.evicted_for);
        let state = NodeState {
            conditions,
            under_pressure,
            message: self.cause.clone(),
        };
        let now = monotonic_ns();
        let is_due = now.saturating_sub(self.sent_at) >= REPORT_AGAIN_NS;
        let is_new = state.conditions != self.sent.conditions
            || (state.under_pressure != self.sent.under_pressure && is_due);
        let is_sent = is_new && self.emit(ManagerEvent::Node(state.clone()));
        // An eviction counts as pressure until it is reported: the shortage itself may be over by then.
        if is_sent || state.under_pressure == self.sent.under_pressure {
            self.evicted_for.clear();
        }
        if is_sent {
            (self.sent, self.sent_at) = (state, now);
        }
    }

    /// Hands an event to the daemon; false when it was dropped because too many wait.
    pub fn emit(&self, event: ManagerEvent) -> bool {
        self.events.send(event)
    }
}
