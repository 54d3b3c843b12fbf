//! The last stretch before a threshold: the loop gets ready.
//!
//! A decision with cold caches takes twice as long, and with many pods the asking is most of it. So a wire a little before
//! the threshold wakes the loop where somebody allocates, and when the growth seen between the last two looks will reach
//! the threshold within a moment, it goes through a decision that nothing follows. Whoever only hovers there is not worth
//! a CPU: the time that may be spent so is small, and comes back slowly.

use std::time::Duration;

/// Expected sooner than this, the crossing is prepared for; what was prepared is good for a little longer.
const SOON_NS: u64 = 1_500_000;
/// A growth is measured over no longer than this.
const RECENT_NS: u64 = 5_000_000;
/// A look costs some ten microseconds; more often than this it would be a spin of its own.
const SHORTEST_WAIT: Duration = Duration::from_micros(300);
/// What may be spent at once, and the share of a CPU in which it comes back.
const MOST_NS: u64 = 20_000_000;
const COMES_BACK: u64 = 100;
/// What an additional look costs of it.
const LOOK_NS: u64 = 50_000;

/// Bytes from the threshold at which the stretch begins: what the fastest growth of this machine (bytes per second) can
/// use up in half a millisecond.
pub fn stretch(growth: u64) -> u64 {
    growth / 2000
}

/// How to go on when a threshold is close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Until the next look.
    pub wait: Duration,
    /// The crossing is expected before that: to be prepared now.
    pub soon: bool,
}

/// What is known of the way to one threshold.
#[derive(Debug)]
pub struct Approach {
    /// When it was looked at last, and how far the threshold was then.
    last: Option<(u64, u64)>,
    /// Bytes per millisecond: the present growth, or half of what was expected before. Whoever is kept from running for
    /// a moment will run again.
    speed: u64,
    /// What may be spent, in nanoseconds of a CPU.
    purse: u64,
    /// What preparing took the last time.
    prepared: u64,
}

impl Default for Approach {
    fn default() -> Self {
        Self {
            last: None,
            speed: 0,
            purse: MOST_NS,
            prepared: 0,
        }
    }
}

impl Approach {
    /// The threshold is met, or whatever was known is not true any more.
    pub fn reset(&mut self) {
        (self.last, self.speed) = (None, 0);
    }

    /// A look at the time `now` (nanoseconds) found the threshold `distance` bytes away; `stretch` is [`stretch`]'s.
    /// `None`: it is far, or nothing moves towards it.
    pub fn look(&mut self, now: u64, distance: u64, stretch: u64) -> Option<Stretch> {
        let (before, was) = self.last.replace((now, distance))?;
        let elapsed = now.saturating_sub(before);
        self.purse = (self.purse + elapsed / COMES_BACK).min(MOST_NS);
        let grown = was.saturating_sub(distance);
        let present = grown.saturating_mul(1_000_000) / elapsed.max(1);
        self.speed = present.max(self.speed / 2);
        if distance > stretch || self.speed == 0 || self.purse < LOOK_NS {
            return None;
        }
        self.purse -= LOOK_NS;
        let expected = distance.saturating_mul(1_000_000) / self.speed;
        // What was seen over a longer time says little of the present.
        let is_known = elapsed <= RECENT_NS;
        let soon = is_known && expected <= SOON_NS && self.purse >= self.prepared;
        // A growth may become faster.
        let wait = match is_known {
            true if soon => SOON_NS,
            true => expected / 4,
            false => 0,
        };
        Some(Stretch {
            wait: Duration::from_nanos(wait).max(SHORTEST_WAIT),
            soon,
        })
    }

    /// To prepare has taken so many nanoseconds.
    pub fn has_prepared(&mut self, time: u64) {
        self.prepared = time;
        self.purse = self.purse.saturating_sub(time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const MIB: u64 = 1 << 20;
    const STRETCH: u64 = 4 * MIB;
    const PREPARED_NS: u64 = 300_000;

    fn asleep(wait: Duration) -> Option<Stretch> {
        Some(Stretch { wait, soon: false })
    }

    #[test]
    fn whoever_arrives_at_full_speed_is_prepared_for() {
        let mut approach = Approach::default();
        assert_eq!(approach.look(0, 100 * MIB, STRETCH), None);
        // The wire has tripped. What was seen long ago does not tell how fast it is now.
        assert_eq!(
            approach.look(60 * MS, 4 * MIB, STRETCH),
            asleep(SHORTEST_WAIT)
        );
        // 1 MiB in 300 us: 3 MiB in 900 us.
        let soon = Stretch {
            wait: Duration::from_nanos(SOON_NS),
            soon: true,
        };
        assert_eq!(
            approach.look(60 * MS + 300_000, 3 * MIB, STRETCH),
            Some(soon)
        );
        // It did not arrive, and may run again any moment: half as fast, as far as anybody knows.
        assert_eq!(
            approach.look(61 * MS + 800_000, 2 * MIB, STRETCH),
            Some(soon)
        );
    }

    #[test]
    fn a_slow_one_is_met_on_the_way() {
        let mut approach = Approach::default();
        approach.look(0, 4 * MIB, STRETCH);
        // 1 MiB in 4 ms: 3 MiB in 12 ms.
        assert_eq!(
            approach.look(4 * MS, 3 * MIB, STRETCH),
            asleep(Duration::from_millis(3))
        );
        // It has stopped: soon nothing is expected of it any more.
        let looks = (8..200).map(|ms| approach.look(ms * MS, 3 * MIB, STRETCH));
        assert!(looks.take_while(Option::is_some).count() < 32);
        // What goes away is not waited for.
        let mut approach = Approach::default();
        approach.look(0, 3 * MIB, STRETCH);
        assert_eq!(approach.look(MS, 4 * MIB, STRETCH), None);
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
            let (mut now, mut spent) = (0, 0);
            for (distance, millis) in steps {
                now += millis * MS;
                let Some(stretch) = approach.look(now, distance, STRETCH) else {
                    continue;
                };
                spent += LOOK_NS;
                if stretch.soon {
                    approach.has_prepared(PREPARED_NS);
                    now += PREPARED_NS;
                    spent += PREPARED_NS;
                }
            }
            proptest::prop_assert!(spent <= MOST_NS + now / COMES_BACK + PREPARED_NS, "{spent} of {now}");
        }
    }
}
