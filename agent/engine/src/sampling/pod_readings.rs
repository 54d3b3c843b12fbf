//! When all pods are read anew while no threshold is met: reading every pod is what a look costs most.

use crate::units::{MS, SECOND};

/// Bytes by which memory moves before pods are ranked anew: they change their ranks by growing.
const MOVED: u64 = 2 << 20;
/// How long readings hold while memory does not move, in nanoseconds: pods may change their ranks among themselves.
const NEAR_NS: u64 = SECOND;
/// How long they hold far from every threshold, where no hook has to be attached: a growth is seen before it gets there.
const FAR_NS: u64 = 10 * SECOND;

/// How often pods are read while victims end, in nanoseconds: the next decision asks which pods grow.
pub const WHILE_TERMINATING_NS: u64 = 100 * MS;

/// Whether readings of all pods have become old by time: they were taken so many nanoseconds ago.
pub fn are_old(age: u64, is_near: bool) -> bool {
    age >= if is_near { NEAR_NS } else { FAR_NS }
}

/// Whether memory has moved since then, with `distance` bytes left to the threshold: by a sixteenth of that, as far from
/// it an older choice does no harm.
pub fn has_moved(before: u64, available: u64, distance: u64) -> bool {
    available.abs_diff(before) >= (distance / 16).max(MOVED)
}
