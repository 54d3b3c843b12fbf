//! When the hook that costs something per page is attached.

use std::time::Duration;

use super::{MIN_INTERVAL, sample_interval};

/// When a hook that costs something per page is attached: early enough that the fastest growth cannot reach the
/// threshold before the hook is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nearness {
    growth: u64,
}

/// Longest time that attaching takes: the kernel patches its code on every CPU.
const ATTACHING: Duration = Duration::from_millis(30);

impl Nearness {
    /// Creates the rule for the machine's fastest growth, in bytes per second.
    pub fn new(growth: u64) -> Self {
        Self { growth }
    }

    /// Bytes from the threshold at which the hook must be attached.
    pub fn distance(self) -> u64 {
        let micros = (ATTACHING + MIN_INTERVAL).as_micros();
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

    /// Computes when to look again while the hook is away: before the fastest growth has reached the line.
    pub fn sample_interval(self, distance: u64) -> Duration {
        sample_interval(distance.saturating_sub(self.distance()), self.growth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
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
                distance = distance.saturating_sub(grown(nearness.sample_interval(distance), speed));
            }
        }
    }
}
