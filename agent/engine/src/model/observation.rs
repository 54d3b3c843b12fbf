//! What a signal reads at one instant.

use crate::{
    Resource, Signal,
    model::quantity::{Format, Quantity},
};

/// Available and capacity of one signal at one instant, in the signal's unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observation {
    /// Amount that is left; below zero where more is in use than there should be.
    pub available: i64,
    /// Capacity of the signal, in its unit.
    pub capacity: i64,
    /// When it was measured, in nanoseconds since the epoch of whatever clock measured it; `None` if that is not known.
    pub time: Option<i64>,
}

/// The observations of one instant; a signal that was not observed has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Observations([Option<Observation>; Signal::ALL.len()]);

impl Observations {
    /// Returns the observation of a signal; `None` if there is none.
    pub fn get(&self, signal: Signal) -> Option<Observation> {
        self.0[signal as usize]
    }

    /// Adds an observation, or replaces it.
    pub fn set(&mut self, signal: Signal, observation: Observation) {
        self.0[signal as usize] = Some(observation);
    }

    /// Whether the node's own daemons use more memory than was kept back for them: what is used outside the
    /// pods' cgroup, against what the pods may not have.
    pub fn system_over_reserved(&self) -> bool {
        let (Some(node), Some(pods)) = (
            self.get(Signal::MemoryAvailable),
            self.get(Signal::AllocatableMemoryAvailable),
        ) else {
            return false;
        };
        let used = |seen: Observation| i128::from(seen.capacity) - i128::from(seen.available);
        let reserved = i128::from(node.capacity) - i128::from(pods.capacity);
        used(node) - used(pods) > reserved
    }
}

impl Signal {
    /// An amount in the signal's unit as the kubelet prints it: bytes with binary suffixes, counts with decimal ones.
    pub fn quantity(self, units: i64) -> Quantity {
        let format = match self.resource() {
            Resource::Memory | Resource::EphemeralStorage => Format::BinarySi,
            Resource::Inodes | Resource::Pids => Format::DecimalSi,
        };
        Quantity::from_units(units, format)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn daemons_are_measured_against_what_is_reserved_for_them() {
        // R20: 10 in all, 8 for pods; the pods use 5, everything together 6 or 8.
        let seen = |available, capacity| Observation {
            available,
            capacity,
            time: None,
        };
        let mut observations = Observations::default();
        assert!(!observations.system_over_reserved());
        observations.set(Signal::AllocatableMemoryAvailable, seen(3, 8));
        observations.set(Signal::MemoryAvailable, seen(4, 10));
        assert!(!observations.system_over_reserved());
        observations.set(Signal::MemoryAvailable, seen(2, 10));
        assert!(observations.system_over_reserved());
    }
}
