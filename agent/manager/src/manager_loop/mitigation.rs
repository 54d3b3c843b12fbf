//! What is done about a soft threshold on memory before its grace period is over.

use std::sync::Arc;

use evictd_engine::{
    Observations, Signal, Snapshot,
    mitigation::{Shortage, Step, Steps},
    model::settings::GraduatedConfig,
};
use evictd_node::pods::table::Entry;
use evictd_sys::clock::now_ns;

use crate::{
    Note,
    manager_loop::{Loop, execute::is_short, signed},
    message::Graduated,
    mitigation_worker::{Demand, Done},
};

/// The steps so far.
#[derive(Debug)]
pub(crate) struct Graduating {
    steps: Steps,
    /// What was available when the last reclaim or brake was begun.
    available: i64,
    /// Where a brake that is set stands, so that its release is told with the same signal.
    signal: Signal,
}

impl Graduating {
    pub fn new(config: GraduatedConfig) -> Self {
        Self {
            steps: Steps::new(config),
            available: 0,
            signal: Signal::MemoryAvailable,
        }
    }

    pub fn reconfigure(&mut self, config: GraduatedConfig) {
        self.steps.reconfigure(config);
    }
}

impl Loop {
    /// Takes the next step, if one is due.
    pub(super) fn graduate(&mut self, seen: &Observations) {
        let shortage = match self.restraint.is_paused() {
            // Nothing is done, and whoever is braked is let go.
            true => None,
            false => self.shortage(seen),
        };
        let short = shortage.map(|(_, short)| short);
        let Some(step) = self.graduating.steps.next(now_ns(), short) else {
            return;
        };
        if let Some((signal, _)) = shortage {
            self.graduating.signal = signal;
        }
        let signal = self.graduating.signal;
        if step != Step::Release {
            self.graduating.available = seen.get(signal).map_or(0, |now| now.available);
        }
        let config = self.graduating.steps.config();
        let pods = match step {
            Step::Reclaim(_) => self.unspared(),
            Step::Brake => self.first(seen, signal, config.brake.map_or(0, |b| b.pods)),
            Step::Release => Vec::new(),
        };
        let demand = Demand {
            step,
            signal,
            pods,
            within: config.reclaim.unwrap_or_default(),
            shadow: self.shadow,
        };
        self.note(Note::Graduate(Box::new(demand)));
        if self.shadow {
            // Nothing is done, so that nobody answers.
            self.graduating.steps.reclaimed();
        }
    }

    /// Lets a pod grow that is asked to go: it may need memory to end.
    pub(super) fn unbrake(&mut self, pod: &Arc<Entry>) {
        if self.shadow || self.graduating.steps.config().brake.is_none() {
            return;
        }
        let demand = Demand {
            step: Step::Release,
            signal: self.graduating.signal,
            pods: vec![Arc::clone(pod)],
            within: std::time::Duration::ZERO,
            shadow: false,
        };
        self.note(Note::Graduate(Box::new(demand)));
    }

    /// A step is over.
    pub(super) fn graduated(&mut self, done: Done) {
        if matches!(done.step, Step::Reclaim(_)) {
            self.graduating.steps.reclaimed();
        }
        if done.pods.is_empty() {
            return;
        }
        let seen = self.sensors.look(signed(now_ns()));
        let after = seen.get(done.signal).map_or(0, |now| now.available);
        self.note(Note::Graduated(Box::new(Graduated {
            done,
            available_before: self.graduating.available,
            available_after: after,
        })));
    }

    /// The soft threshold on memory that lacks most.
    fn shortage(&self, seen: &Observations) -> Option<(Signal, Shortage)> {
        let memory = [Signal::MemoryAvailable, Signal::AllocatableMemoryAvailable];
        self.thresholds
            .iter()
            .filter(|t| !t.is_hard() && memory.contains(&t.signal) && is_short(t, seen))
            .filter_map(|t| {
                let now = seen.get(t.signal)?;
                let wanted = i128::from(t.resolved_amount(now.capacity));
                let deficit = wanted - i128::from(now.available);
                let short = Shortage {
                    deficit: u64::try_from(deficit).unwrap_or(0),
                    is_met: now.available < signed(t.amount(now.capacity)),
                };
                Some((t.signal, short))
            })
            .max_by_key(|(_, short)| (short.is_met, short.deficit))
    }

    /// Everybody whom no policy spares; those that nobody may evict are not among the members.
    fn unspared(&self) -> Vec<Arc<Entry>> {
        let unspared = self.running.iter().filter(|pod| !pod.is_spared);
        unspared
            .filter_map(|pod| self.members.entry(&pod.uid).cloned())
            .collect()
    }

    /// The first candidates, in the order of eviction.
    fn first(&self, seen: &Observations, signal: Signal, count: usize) -> Vec<Arc<Entry>> {
        let node = Snapshot {
            observations: seen,
            pods: &self.running,
            usages: self.measured.usages(),
        };
        let candidates = self.manager.candidates(node, signal).into_iter();
        candidates
            .filter_map(|pod| self.members.entry(&pod.uid).cloned())
            .take(count)
            .collect()
    }
}
