//! The paces of all thresholds. A soft and a hard threshold of one signal each have their own: they are met at
//! different times.

use super::unsigned_ns;
use crate::{
    Resource, Signal, Threshold,
    model::settings::Mode,
    pace::{BY_TURNS_NS, Pace},
};

/// For each signal the pace of its soft threshold and that of its hard one.
#[derive(Clone, Debug, Default)]
pub(super) struct Paces {
    paces: [[Pace; 2]; Signal::ALL.len()],
    shortages: [[Option<ShortPeriod>; 2]; Signal::ALL.len()],
}

/// Time in which a threshold is met, or was by turns. Moments are nanoseconds of the clock of `pace`.
#[derive(Clone, Copy, Debug)]
struct ShortPeriod {
    since: u64,
    until: u64,
}

impl Paces {
    pub fn of(&self, threshold: &Threshold) -> &Pace {
        &self.paces[threshold.signal as usize][usize::from(threshold.is_hard())]
    }

    /// The pace has seen another look.
    pub fn note_look(&mut self, signal: Signal, is_hard: bool, now: i64) {
        let (at, now) = (usize::from(is_hard), unsigned_ns(now));
        if self.paces[signal as usize][at].is_met() {
            let period = &mut self.shortages[signal as usize][at];
            let before = period.filter(|before| now < before.until.saturating_add(BY_TURNS_NS));
            period.replace(ShortPeriod {
                since: before.map_or(now, |before| before.since),
                until: now,
            });
        }
    }

    /// Time since which a threshold has been met, perhaps by turns, in nanoseconds.
    pub fn short_since(&self, threshold: &Threshold) -> Option<u64> {
        let both = self.shortages[threshold.signal as usize];
        both[usize::from(threshold.is_hard())].map(|period| period.since)
    }

    pub fn of_mut(&mut self, signal: Signal, is_hard: bool) -> &mut Pace {
        &mut self.paces[signal as usize][usize::from(is_hard)]
    }

    /// Whether the minimum reclaim of a threshold counts. The kubelet's does after one look.
    pub fn resolves(&self, threshold: &Threshold, mode: Mode, now: i64) -> bool {
        mode == Mode::Kubelet || self.of(threshold).is_resolving(unsigned_ns(now))
    }

    /// Whether a threshold of a signal is met.
    pub fn is_any_met(&self, signal: Signal) -> bool {
        self.paces[signal as usize].iter().any(Pace::is_met)
    }

    /// Those of all signals that watch a resource; the order is always the same.
    pub fn of_resource(&self, resource: Resource) -> impl Iterator<Item = &Pace> {
        let all = Signal::ALL.into_iter().zip(&self.paces);
        all.filter(move |(signal, _)| signal.resource() == resource)
            .flat_map(|(_, both)| both)
    }

    /// The same, to be changed.
    pub fn of_resource_mut(&mut self, resource: Resource) -> impl Iterator<Item = &mut Pace> {
        let all = Signal::ALL.into_iter().zip(&mut self.paces);
        all.filter(move |(signal, _)| signal.resource() == resource)
            .flat_map(|(_, both)| both)
    }
}
