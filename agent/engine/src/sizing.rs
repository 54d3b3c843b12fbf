//! Whether a node's reservations fit its thresholds. All amounts are bytes of memory.

use super::{Signal, Threshold, hard_threshold};
use crate::units::signed;

/// Amounts that are kept back from pods, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemorySizing {
    /// All memory of the node.
    pub capacity: u64,
    /// Bytes that are reserved for the system and the kubelet.
    pub reserved: u64,
    /// The hard threshold without a step above the kubelet's, which the kubelet keeps back as well; zero if there is none.
    pub hard_threshold: u64,
    /// The largest threshold, hard or soft; zero if there is none.
    pub largest_threshold: u64,
}

impl MemorySizing {
    /// Sizes a node with these thresholds.
    pub fn new(capacity: u64, reserved: u64, thresholds: &[Threshold]) -> Self {
        let total = signed(capacity);
        let amount = |threshold: &Threshold| threshold.amount(total);
        let hard = hard_threshold(thresholds, Signal::MemoryAvailable, total);
        let memory = thresholds.iter();
        let memory = memory.filter(|threshold| threshold.signal == Signal::MemoryAvailable);
        Self {
            capacity,
            reserved,
            hard_threshold: hard.map_or(0, |hard| hard.value.base().amount(total)),
            largest_threshold: memory.map(amount).max().unwrap_or(0),
        }
    }

    /// What pods may request: capacity minus reservations minus the hard threshold (`GetNodeAllocatableReservation`).
    pub fn allocatable(&self) -> u64 {
        self.capacity
            .saturating_sub(self.reserved)
            .saturating_sub(self.hard_threshold)
    }

    /// By how much the reservations fail to cover the largest threshold: with less, pods that stay within their
    /// requests can push the node below it. Zero if they cover it.
    pub fn shortfall(&self) -> u64 {
        // Percentages are single precision: what they are off by is not a shortfall.
        let blur = self.capacity >> 20;
        match self.largest_threshold.saturating_sub(self.reserved) {
            short if short <= blur => 0,
            short => short,
        }
    }
}
