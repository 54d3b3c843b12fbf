//! The paces of all thresholds. A soft and a hard threshold of one signal each have their own: they are met at
//! different times.

use super::unsigned_ns;
use crate::{Resource, Signal, Threshold, model::settings::Mode, pace::Pace};

/// For each signal what is known of its soft threshold and of its hard one.
#[derive(Clone, Debug, Default)]
pub(super) struct Paces([[Pace; 2]; Signal::ALL.len()]);

impl Paces {
    pub fn of(&self, threshold: &Threshold) -> &Pace {
        &self.0[threshold.signal as usize][usize::from(threshold.is_hard())]
    }

    pub fn of_mut(&mut self, signal: Signal, is_hard: bool) -> &mut Pace {
        &mut self.0[signal as usize][usize::from(is_hard)]
    }

    /// See [`Pace::exclude_gap`].
    pub fn exclude_gap(&mut self, late: u64, now: u64) {
        let all = self.0.iter_mut().flatten();
        all.for_each(|pace| pace.exclude_gap(late, now));
    }

    /// All thresholds come into force.
    pub fn reset(&mut self) {
        self.0.iter_mut().flatten().for_each(Pace::reset);
    }

    /// Whether the minimum reclaim of a threshold counts. The kubelet's does after one look.
    pub fn resolves(&self, threshold: &Threshold, mode: Mode, now: i64) -> bool {
        mode == Mode::Kubelet || self.of(threshold).is_resolving(unsigned_ns(now))
    }

    /// Whether a threshold of a signal is met.
    pub fn is_any_met(&self, signal: Signal) -> bool {
        self.0[signal as usize].iter().any(Pace::is_met)
    }

    /// Whether a pod was evicted for any signal since the kubelet could have looked.
    pub fn has_evicted_lately(&self, now: u64) -> bool {
        let mut all = self.0.iter().flatten();
        all.any(|pace| pace.has_evicted_lately(now))
    }

    /// Those of all signals that watch a resource; the order is always the same.
    pub fn of_resource(&self, resource: Resource) -> impl Iterator<Item = &Pace> {
        let all = Signal::ALL.into_iter().zip(&self.0);
        all.filter(move |(signal, _)| signal.resource() == resource)
            .flat_map(|(_, both)| both)
    }

    /// The same, each with its signal, to be changed.
    pub fn of_resource_mut(
        &mut self,
        resource: Resource,
    ) -> impl Iterator<Item = (Signal, &mut Pace)> {
        let all = Signal::ALL.into_iter().zip(&mut self.0);
        all.filter(move |(signal, _)| signal.resource() == resource)
            .flat_map(|(signal, both)| both.iter_mut().map(move |pace| (signal, pace)))
    }
}
