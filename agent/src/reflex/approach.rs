//! The last stretch before a threshold: the loop is awake, and waits for the wire without sleeping.
//!
//! A thread that sleeps on an idle CPU needs longer to wake up than to decide, and decides slowly with cold caches. So a
//! wire a little before the threshold wakes it, and when the growth seen since the look before will reach the threshold
//! within a moment, it stays awake for that moment. Whoever only hovers there is not worth a CPU: each time in vain
//! doubles the rest that follows.

use std::time::Duration;

/// The longest that the loop stays awake at once.
const AWAKE_NS: u64 = 2_000_000;
/// Expected sooner than this, the crossing is waited for awake; a growth that slows down a little still arrives.
const SOON_NS: u64 = 1_500_000;
/// A growth is measured over no longer than this.
const RECENT_NS: u64 = 5_000_000;
/// The rest after the first time in vain, and the longest.
const REST_NS: u64 = 20_000_000;
const LONGEST_REST_NS: u64 = 2_000_000_000;
/// A look costs some ten microseconds; more often than this it would be a spin of its own.
const SHORTEST_WAIT: Duration = Duration::from_micros(300);

/// Bytes from the threshold at which the stretch begins: what the fastest growth of this machine (bytes per second) can
/// use up in half a millisecond.
pub fn stretch(growth: u64) -> u64 {
    growth / 2000
}

/// How to wait for the next look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// Asleep, for no longer than this.
    Asleep(Duration),
    /// Awake, until this time at most (nanoseconds of CLOCK_MONOTONIC).
    Awake(u64),
}

/// What is known of the way to one threshold.
#[derive(Debug, Default)]
pub struct Approach {
    /// When it was looked at last, and how far the threshold was then.
    last: Option<(u64, u64)>,
    rest_until: u64,
    in_vain: u32,
}

impl Approach {
    /// The threshold is met, or whatever was known is not true any more.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    /// A look at the time `now` (nanoseconds) found the threshold `distance` bytes away; `stretch` is [`stretch`]'s.
    /// `None`: it is far, or nothing moves towards it.
    pub fn look(&mut self, now: u64, distance: u64, stretch: u64) -> Option<Waiting> {
        let (before, was) = self.last.replace((now, distance))?;
        let elapsed = now.saturating_sub(before);
        let grown = was.saturating_sub(distance);
        if distance > stretch || grown == 0 || elapsed == 0 {
            return None;
        }
        // Over a longer time it says little of the present.
        if elapsed > RECENT_NS {
            return Some(Waiting::Asleep(SHORTEST_WAIT));
        }
        let expected = u128::from(distance) * u128::from(elapsed) / u128::from(grown);
        let expected = u64::try_from(expected).unwrap_or(u64::MAX);
        if expected > SOON_NS {
            // Half of the way, and then again: the growth may change.
            return Some(Waiting::Asleep(
                Duration::from_nanos(expected / 2).max(SHORTEST_WAIT),
            ));
        }
        if now < self.rest_until {
            return None;
        }
        // A long time without is a new beginning.
        if now - self.rest_until > 2 * LONGEST_REST_NS {
            self.in_vain = 0;
        }
        let rest = (REST_NS << self.in_vain.min(16)).min(LONGEST_REST_NS);
        self.in_vain += 1;
        let until = now + AWAKE_NS;
        self.rest_until = until + rest;
        Some(Waiting::Awake(until))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const MIB: u64 = 1 << 20;
    const STRETCH: u64 = 4 * MIB;

    #[test]
    fn whoever_arrives_at_full_speed_is_waited_for_awake() {
        let mut approach = Approach::default();
        assert_eq!(approach.look(0, 100 * MIB, STRETCH), None);
        // The wire has tripped. What was seen long ago does not tell how fast it is now.
        assert_eq!(
            approach.look(60 * MS, 4 * MIB, STRETCH),
            Some(Waiting::Asleep(SHORTEST_WAIT))
        );
        // 1 MiB in 300 us: 3 MiB in 900 us.
        let now = 60 * MS + 300_000;
        assert_eq!(
            approach.look(now, 3 * MIB, STRETCH),
            Some(Waiting::Awake(now + AWAKE_NS))
        );
    }

    #[test]
    fn a_slow_one_is_met_half_way() {
        let mut approach = Approach::default();
        approach.look(0, 4 * MIB, STRETCH);
        // 1 MiB in 4 ms: 3 MiB in 12 ms.
        assert_eq!(
            approach.look(4 * MS, 3 * MIB, STRETCH),
            Some(Waiting::Asleep(Duration::from_millis(6)))
        );
        // It has stopped, and then goes away.
        assert_eq!(approach.look(8 * MS, 3 * MIB, STRETCH), None);
        assert_eq!(approach.look(9 * MS, 4 * MIB, STRETCH), None);
    }

    #[test]
    fn nobody_is_waited_for_far_away() {
        let mut approach = Approach::default();
        approach.look(0, 20 * MIB, STRETCH);
        assert_eq!(approach.look(MS, 5 * MIB, STRETCH), None);
    }

    proptest::proptest! {
        /// A pod that comes near and goes away for ever, however it moves, costs little of a CPU.
        #[test]
        fn hovering_is_cheap(steps in proptest::collection::vec((0_u64..STRETCH, 1_u64..10), 2000..3000)) {
            let mut approach = Approach::default();
            let (mut now, mut awake) = (0, 0);
            for (distance, millis) in steps {
                now += millis * MS;
                if let Some(Waiting::Awake(until)) = approach.look(now, distance, STRETCH) {
                    awake += until - now;
                    now = until;
                }
            }
            // The first times, and then one in each longest rest.
            let most = 8 * AWAKE_NS + now / LONGEST_REST_NS * AWAKE_NS;
            proptest::prop_assert!(awake <= most, "{awake} of {now}");
        }
    }
}
