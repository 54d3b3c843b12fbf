//! Deadline sampling: when to look again.

use std::time::Duration;

use crate::proc::machine::online_cpus;

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
    // Not only those that this process may run on.
    (online_cpus() * PER_CPU).min(MACHINE)
}

/// The time in which the fastest growth could use up `distance` bytes, within [`FLOOR`] and [`CEILING`].
pub fn next_look(distance: u64, growth_per_second: u64) -> Duration {
    let micros = u128::from(distance) * 1_000_000 / u128::from(growth_per_second.max(1));
    let interval = Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX));
    interval.clamp(FLOOR, CEILING)
}

/// When a hook that costs something per page is attached: early enough that the fastest growth cannot reach the
/// threshold before the hook is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nearness {
    growth: u64,
}

/// Longest time that attaching takes: the kernel patches its code on every CPU. Seen: 0.1 to 22 ms on busy CPUs.
const ATTACHING: Duration = Duration::from_millis(30);

impl Nearness {
    /// For a growth in bytes per second.
    pub fn new(growth: u64) -> Self {
        Self { growth }
    }

    /// Bytes from the threshold at which the hook must be attached.
    pub fn distance(self) -> u64 {
        let micros = (ATTACHING + FLOOR).as_micros();
        u64::try_from(u128::from(self.growth) * micros / 1_000_000).unwrap_or(u64::MAX)
    }

    /// Whether the hook should be attached. It goes away only at twice the distance, or it would flap.
    pub fn wants_hook(self, distance: u64, is_attached: bool) -> bool {
        let line = self.distance();
        distance
            < if is_attached {
                line.saturating_mul(2)
            } else {
                line
            }
    }

    /// When to look again while the hook is away: before the fastest growth has reached the line.
    pub fn next_look(self, distance: u64) -> Duration {
        next_look(distance.saturating_sub(self.distance()), self.growth)
    }
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

        /// Growth at any speed up to the fastest, looked at when it is due: the hook is attached before the distance
        /// is used up, and the time to attach it is counted in.
        #[test]
        fn the_hook_is_there_before_the_threshold(
            growth in 1_u64 << 20..1 << 37,
            start in 0_u64..1 << 42,
            speeds in proptest::collection::vec(0.0..=1.0_f64, 1..200),
        ) {
            let nearness = Nearness::new(growth);
            let grown = |time: Duration, speed: f64| (growth as f64 * speed * time.as_secs_f64()) as u64;
            let mut distance = start + nearness.distance();
            for speed in speeds {
                if nearness.wants_hook(distance, false) {
                    // Even if attaching takes its longest time at full speed; a byte is lost to rounding.
                    proptest::prop_assert!(distance + 1 >= grown(ATTACHING, 1.0));
                    break;
                }
                distance = distance.saturating_sub(grown(nearness.next_look(distance), speed));
            }
        }
    }
}
