//! Deadline sampling: when to look again.

use std::time::Duration;

/// Shortest interval: below it looking costs more than it tells.
pub const FLOOR: Duration = Duration::from_millis(1);
/// Longest interval: the ground (inactive_file, capacity) moves without any hook firing.
pub const CEILING: Duration = Duration::from_secs(1);

/// The fastest growth this machine can make, in bytes per second: every CPU clearing huge pages at memory speed.
///
/// 4 GiB/s per CPU is more than any one of them was seen to reach (page-fault loops with THP: 2 to 3 GiB/s); memory
/// controllers end the scaling at about 64 GiB/s.
pub fn fastest_growth() -> u64 {
    const PER_CPU: u64 = 4 << 30;
    const MACHINE: u64 = 64 << 30;
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    (cpus * PER_CPU).min(MACHINE)
}

/// The time in which the fastest growth could use up `distance` bytes, within [`FLOOR`] and [`CEILING`].
pub fn next_look(distance: u64, growth_per_second: u64) -> Duration {
    let micros = u128::from(distance) * 1_000_000 / u128::from(growth_per_second.max(1));
    let interval = Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX));
    interval.clamp(FLOOR, CEILING)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn far_is_slow_near_is_sharp() {
        const GIB: u64 = 1 << 30;
        assert_eq!(next_look(0, 8 * GIB), FLOOR);
        assert_eq!(next_look(GIB, 8 * GIB), Duration::from_millis(125));
        assert_eq!(next_look(u64::MAX, 8 * GIB), CEILING);
        assert_eq!(next_look(1, 0), CEILING);
    }

    proptest::proptest! {
        /// Whatever the distance, growth at full speed cannot use it up before the next look, but for the floor.
        #[test]
        fn nothing_slips_through(distance: u64, growth in 1_u64..1 << 40) {
            let interval = next_look(distance, growth);
            let grown = u128::from(growth) * interval.as_micros() / 1_000_000;
            proptest::prop_assert!(grown <= u128::from(distance) || interval == FLOOR);
            proptest::prop_assert!((FLOOR..=CEILING).contains(&interval));
        }
    }
}
