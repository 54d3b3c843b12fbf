//! What others hear of a round.

use std::{
    collections::BTreeSet,
    sync::{Arc, PoisonError},
};

use evictd_engine::{Observations, Resource, record::NodeState};
use evictd_sys::clock::now_ns;

use crate::{
    Note, Status,
    manager_loop::{Loop, execute::is_short},
};

impl Loop {
    /// For whoever asks afterwards how it came about. Memory is the reflex's.
    pub(super) fn record(&self, seen: &Observations) {
        let now = now_ns();
        for threshold in &self.thresholds {
            let signal = threshold.signal;
            if let (Some(seen), true) = (seen.get(signal), signal.resource() != Resource::Memory) {
                let available = u64::try_from(seen.available).unwrap_or(0);
                self.recorder.note(now, signal, available);
            }
        }
    }

    /// What others should know of the round.
    pub(super) fn tell(&mut self, round: evictd_engine::Round, seen: &Observations) {
        let conditions: BTreeSet<_> = round.conditions.into_iter().collect();
        if let Some(met) = self.thresholds.iter().find(|t| is_short(t, seen)) {
            self.message = met.to_string();
        }
        let state = NodeState {
            conditions: conditions.clone(),
            message: self.message.clone(),
        };
        if state.conditions != self.told.conditions && self.note(Note::Node(state.clone())) {
            self.told = state;
        }
        self.rounds += 1;
        for comeback in round.comebacks {
            self.comebacks += 1;
            self.note(Note::Comeback(comeback));
        }
        for threshold in round.met_in_force {
            if let Some(seen) = seen.get(threshold.signal) {
                self.note(Note::MetInForce {
                    signal: threshold.signal,
                    available: u64::try_from(seen.available).unwrap_or(0),
                    threshold: threshold.amount(seen.capacity),
                });
            }
        }
        // In shadow mode the pods were not to end.
        for uid in round.stuck.iter().filter(|_| !self.shadow) {
            if let Some(entry) = self.members.entry(uid) {
                self.note(Note::Stuck(Arc::clone(entry)));
            }
        }
        let status = Status {
            observations: *seen,
            thresholds: self.thresholds.clone(),
            forecasts: round.forecasts,
            conditions,
            drift: self.sensors.drift(),
            rounds: self.rounds,
            comebacks: self.comebacks,
        };
        *self.status.lock().unwrap_or_else(PoisonError::into_inner) = status;
    }

    /// False when nobody listens any more.
    pub(super) fn note(&self, note: Note) -> bool {
        self.notes.blocking_send(note).is_ok()
    }
}
