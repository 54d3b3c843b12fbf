//! What a signal reads at one instant.

use super::{Resource, Signal};
use crate::config::{Format, Quantity};

/// Available and capacity of one signal at one instant, in the signal's unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observation {
    /// What is left; below zero where more is in use than there should be.
    pub available: i64,
    /// How much there is in all.
    pub capacity: i64,
    /// When it was measured, in nanoseconds since the epoch of whatever clock measured it; `None` if nobody said.
    pub time: Option<i64>,
}

/// The observations of one instant; a signal that nobody observed has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Observations([Option<Observation>; Signal::ALL.len()]);

impl Observations {
    /// What was observed of a signal.
    pub fn get(&self, signal: Signal) -> Option<Observation> {
        self.0.get(signal as usize).copied().flatten()
    }

    /// Adds an observation, or replaces it.
    pub fn set(&mut self, signal: Signal, observation: Observation) {
        if let Some(slot) = self.0.get_mut(signal as usize) {
            *slot = Some(observation);
        }
    }
}

impl Observation {
    /// What is available as the kubelet prints it: bytes with binary suffixes, counts with decimal ones.
    pub fn available_quantity(&self, signal: Signal) -> Quantity {
        let format = match signal.resource() {
            Resource::Memory | Resource::EphemeralStorage => Format::BinarySi,
            Resource::Inodes | Resource::Pids => Format::DecimalSi,
        };
        Quantity::from_units(self.available, format)
    }
}
