//! The paces of all thresholds. A soft and a hard threshold of one signal each have their own: they are met at
//! different times.

use super::unsigned_ns;
use crate::{
    Resource, Signal, Threshold, met_by_turns::MetByTurns, model::settings::Mode, pace::Pace,
    shortage::Shortage,
};

/// For each signal what is known of its soft threshold and of its hard one.
#[derive(Clone, Debug, Default)]
pub(super) struct Paces([[ThresholdPace; 2]; Signal::ALL.len()]);

/// Pace of a threshold, and for how long it has been met by turns. Moments are nanoseconds of the clock of `pace`.
#[derive(Clone, Debug, Default)]
pub(super) struct ThresholdPace {
    pub pace: Pace,
    met_by_turns: Option<MetByTurns>,
}

impl ThresholdPace {
    /// Takes in a look.
    pub fn observe(&mut self, now: u64, shortage: &Shortage) {
        self.pace.observe(now, shortage);
        if self.pace.is_met() {
            MetByTurns::note(&mut self.met_by_turns, now);
        }
    }

    /// Leaves out so many nanoseconds until `now` in which no look was taken.
    fn exclude_gap(&mut self, late: u64, now: u64) {
        self.pace.exclude_gap(late, now);
        if let Some(period) = &mut self.met_by_turns {
            period.exclude_gap(late, now);
        }
    }

    /// The threshold comes into force; when a pod was last evicted stays known.
    pub fn reset(&mut self) {
        self.pace.reset();
        self.met_by_turns = None;
    }

    /// Time since which the threshold has been met, perhaps by turns, in nanoseconds.
    pub fn met_by_turns_since(&self) -> Option<u64> {
        self.met_by_turns.map(MetByTurns::since)
    }
}

impl Paces {
    pub fn of(&self, threshold: &Threshold) -> &ThresholdPace {
        &self.0[threshold.signal as usize][usize::from(threshold.is_hard())]
    }

    pub fn of_mut(&mut self, signal: Signal, is_hard: bool) -> &mut ThresholdPace {
        &mut self.0[signal as usize][usize::from(is_hard)]
    }

    /// See [`Pace::exclude_gap`].
    pub fn exclude_gap(&mut self, late: u64, now: u64) {
        let all = self.0.iter_mut().flatten();
        all.for_each(|known| known.exclude_gap(late, now));
    }

    /// All thresholds come into force.
    pub fn reset(&mut self) {
        self.0.iter_mut().flatten().for_each(ThresholdPace::reset);
    }

    /// Whether the minimum reclaim of a threshold counts. The kubelet's does after one look.
    pub fn resolves(&self, threshold: &Threshold, mode: Mode, now: i64) -> bool {
        mode == Mode::Kubelet || self.of(threshold).pace.is_resolving(unsigned_ns(now))
    }

    /// Whether a threshold of a signal is met.
    pub fn is_any_met(&self, signal: Signal) -> bool {
        self.0[signal as usize]
            .iter()
            .any(|known| known.pace.is_met())
    }

    /// Whether a pod was evicted for any signal since the kubelet could have looked.
    pub fn has_evicted_lately(&self, now: u64) -> bool {
        let mut all = self.0.iter().flatten();
        all.any(|known| known.pace.has_evicted_lately(now))
    }

    /// Those of all signals that watch a resource; the order is always the same.
    pub fn of_resource(&self, resource: Resource) -> impl Iterator<Item = &Pace> {
        let all = Signal::ALL.into_iter().zip(&self.0);
        all.filter(move |(signal, _)| signal.resource() == resource)
            .flat_map(|(_, both)| both.iter().map(|known| &known.pace))
    }

    /// The same, each with its signal, to be changed.
    pub fn of_resource_mut(
        &mut self,
        resource: Resource,
    ) -> impl Iterator<Item = (Signal, &mut Pace)> {
        let all = Signal::ALL.into_iter().zip(&mut self.0);
        all.filter(move |(signal, _)| signal.resource() == resource)
            .flat_map(|(signal, both)| both.iter_mut().map(move |known| (signal, &mut known.pace)))
    }
}
