//! What the rest of the agent gets of a plan.

use std::{collections::BTreeSet, sync::Arc};

use evictd_engine::{NodeState, Observations, Resource, units::SECOND};
use evictd_sys::clock::monotonic_ns;

use crate::{ManagerEvent, Status, manager_loop::ManagerLoop};

/// What is pressed may change at every look; it is reported no sooner than so long after the last time, in nanoseconds.
const REPORT_AGAIN_NS: u64 = SECOND;

impl ManagerLoop {
    /// Records what is available of all signals but memory, for incidents. Memory is recorded by the fast path.
    pub(super) fn record(&self, seen: &Observations) {
        let now = monotonic_ns();
        for threshold in self.planner.thresholds() {
            let signal = threshold.signal;
            if let (Some(seen), true) = (seen.get(signal), signal.resource() != Resource::Memory) {
                let available = u64::try_from(seen.available).unwrap_or(0);
                self.recorder.record(now, signal, available);
            }
        }
    }

    /// Sends the events of a plan, and sets the status.
    pub(super) fn report(&mut self, plan: evictd_engine::Plan, seen: &Observations) {
        let conditions: BTreeSet<_> = plan.conditions.into_iter().collect();
        let mut met = self.planner.thresholds();
        if let Some(met) = met.find(|t| self.planner.is_pressed(t)) {
            self.message = met.to_string();
        }
        let met = self
            .planner
            .thresholds()
            .filter(|t| self.planner.is_pressed(t));
        let mut pressed: BTreeSet<_> = met.map(|t| t.signal.node_condition()).collect();
        pressed.extend(&self.evicted_for);
        let state = NodeState {
            conditions: conditions.clone(),
            pressed,
            message: self.message.clone(),
        };
        let now = monotonic_ns();
        let is_due = now.saturating_sub(self.reported_at) >= REPORT_AGAIN_NS;
        let is_news = state.conditions != self.reported.conditions
            || (state.pressed != self.reported.pressed && is_due);
        let is_sent = is_news && self.emit(ManagerEvent::Node(state.clone()));
        // An eviction counts as pressure until it is reported: the shortage itself may be over by then.
        if is_sent || state.pressed == self.reported.pressed {
            self.evicted_for.clear();
        }
        if is_sent {
            (self.reported, self.reported_at) = (state, now);
        }
        self.cycles += 1;
        for recreation in plan.recreations {
            self.recreations += 1;
            self.emit(ManagerEvent::Recreated(recreation));
        }
        for threshold in plan.met_in_force {
            if let Some(seen) = seen.get(threshold.signal) {
                self.emit(ManagerEvent::MetInForce {
                    signal: threshold.signal,
                    available: u64::try_from(seen.available).unwrap_or(0),
                    threshold: threshold.amount(seen.capacity),
                });
            }
        }
        // In shadow mode the pods were not to end.
        for uid in plan.stuck.iter().filter(|_| !self.shadow) {
            if let Some(entry) = self.pods.entry(uid) {
                self.emit(ManagerEvent::Stuck(Arc::clone(entry)));
            }
        }
        let status = Status {
            observations: *seen,
            thresholds: self.planner.thresholds().cloned().collect(),
            forecasts: plan.forecasts,
            conditions,
            hung: self.sources.hung(),
            drift: self.sources.drift(),
            cycles: self.cycles,
            recreations: self.recreations,
        };
        self.status.set(status);
    }

    /// Hands an event to the daemon; false when it was dropped because too many wait.
    pub(super) fn emit(&self, event: ManagerEvent) -> bool {
        self.events.send(event)
    }
}
