//! Close to a threshold the loop spins: it waits for the trigger without sleeping.
//!
//! A thread that sleeps on an idle CPU needs longer to wake up than to decide, and decides slowly with cold caches. So
//! a trigger a spin window before the threshold wakes it, and it spins if the growth between the last two looks will
//! reach the threshold within 1.5 ms. A usage that hovers there is not worth a CPU: the loop spins from a small budget
//! that refills slowly.

use std::time::Duration;

use evictd_engine::units::MS;

/// The longest that the loop spins at once.
const LONGEST_SPIN_NS: u64 = 2 * MS;
/// The loop spins for a crossing that is expected sooner; one whose growth slows down a little still comes within
/// [`LONGEST_SPIN_NS`].
const SOON_NS: u64 = 1_500_000;
/// A growth that was measured over a longer time tells too little of the present.
const RECENT_NS: u64 = 5 * MS;
/// The shortest sleep: a look costs some ten microseconds.
const SHORTEST_WAIT: Duration = Duration::from_micros(300);
/// No spinning for this long after a spin without a crossing: the growing task was preempted, and the task that runs
/// instead keeps the CPU awake.
const REST_NS: u64 = 20 * MS;
/// The budget for spinning.
const BUDGET_NS: u64 = 20 * MS;
/// The budget refills by one nanosecond in so many.
const REFILL_SHARE: u64 = 100;
/// Time that an additional look takes from the budget, in nanoseconds.
const LOOK_NS: u64 = 50_000;

/// Bytes from the threshold at which the spin window begins: what the fastest growth of this machine (bytes per second)
/// can use up in half a millisecond.
pub fn spin_window(growth: u64) -> u64 {
    growth / 2000
}

/// Way to wait for the next look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Sleep, for no longer than this.
    Sleep(Duration),
    /// Spin, until this time at most (nanoseconds of CLOCK_MONOTONIC).
    Spin(u64),
}

impl Wait {
    /// The longest that it takes from `now`, in nanoseconds.
    pub fn longest(self, now: u64) -> u64 {
        match self {
            Self::Sleep(interval) => u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX / 4),
            Self::Spin(until) => until.saturating_sub(now),
        }
    }

    /// Waits for both: spins if one of them does, else sleeps until the first of them is due.
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Sleep(one), Self::Sleep(other)) => Self::Sleep(one.min(other)),
            (Self::Sleep(_), spin) | (spin, _) => spin,
        }
    }
}

/// Policy by which the loop spins before one threshold.
#[derive(Debug)]
pub struct SpinPolicy {
    /// Time of the last look, and the distance to the threshold then, in bytes.
    last: Option<(u64, u64)>,
    /// Bytes per millisecond: the present growth, or half of what was expected before. A task that is kept from running
    /// for a moment will run again.
    speed: u64,
    /// Time since which the loop spins, and the time until which it spins at most; `None` while it does not.
    spinning: Option<(u64, u64)>,
    rest_until: u64,
    /// Nanoseconds of a CPU that are left.
    budget: u64,
}

impl Default for SpinPolicy {
    fn default() -> Self {
        Self {
            last: None,
            speed: 0,
            spinning: None,
            rest_until: 0,
            budget: BUDGET_NS,
        }
    }
}

impl SpinPolicy {
    /// The threshold is met, or it is another one.
    pub fn reset(&mut self) {
        (self.last, self.spinning, self.speed) = (None, None, 0);
    }

    /// A look at the time `now` (nanoseconds) found the threshold `distance` bytes away; `spin_window` is that of
    /// [`spin_window`]. `None`: it is far, or nothing moves towards it.
    pub fn observe(&mut self, now: u64, distance: u64, spin_window: u64) -> Option<Wait> {
        if let Some((since, until)) = self.spinning.take() {
            self.spend(now.saturating_sub(since));
            if now >= until {
                self.rest_until = now + REST_NS;
            }
        }
        let (before, was) = self.last.replace((now, distance))?;
        let elapsed = now.saturating_sub(before);
        self.budget = (self.budget + elapsed / REFILL_SHARE).min(BUDGET_NS);
        let grown = was.saturating_sub(distance);
        let present = grown.saturating_mul(1_000_000) / elapsed.max(1);
        self.speed = present.max(self.speed / 2);
        if distance > spin_window || self.speed == 0 || self.budget < LOOK_NS {
            return None;
        }
        let expected = distance.saturating_mul(1_000_000) / self.speed;
        if elapsed <= RECENT_NS && expected <= SOON_NS && now >= self.rest_until {
            let until = now + LONGEST_SPIN_NS.min(self.budget);
            self.spinning = Some((now, until));
            return Some(Wait::Spin(until));
        }
        self.spend(LOOK_NS);
        // A speed over a longer time tells little of the present; and a growth may become faster.
        let wait = if elapsed > RECENT_NS { 0 } else { expected / 4 };
        Some(Wait::Sleep(Duration::from_nanos(wait).max(SHORTEST_WAIT)))
    }

    fn spend(&mut self, time: u64) {
        self.budget = self.budget.saturating_sub(time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const SPIN_WINDOW: u64 = 4 * MIB;

    #[test]
    fn a_full_speed_approach_is_waited_for_spinning() {
        let mut approach = SpinPolicy::default();
        assert_eq!(approach.observe(0, 100 * MIB, SPIN_WINDOW), None);
        // The trigger has tripped. The growth over 60 ms does not tell how fast it is now.
        assert_eq!(
            approach.observe(60 * MS, 4 * MIB, SPIN_WINDOW),
            Some(Wait::Sleep(SHORTEST_WAIT))
        );
        // 1 MiB in 300 us: 3 MiB in 900 us.
        let now = 60 * MS + 300_000;
        assert_eq!(
            approach.observe(now, 3 * MIB, SPIN_WINDOW),
            Some(Wait::Spin(now + LONGEST_SPIN_NS))
        );
        // It did not arrive.
        assert_eq!(
            approach.observe(now + LONGEST_SPIN_NS, 2 * MIB, SPIN_WINDOW),
            Some(Wait::Sleep(SHORTEST_WAIT))
        );
    }

    #[test]
    fn a_slow_one_is_met_on_the_way() {
        let mut approach = SpinPolicy::default();
        approach.observe(0, 4 * MIB, SPIN_WINDOW);
        // 1 MiB in 4 ms: 3 MiB in 12 ms.
        assert_eq!(
            approach.observe(4 * MS, 3 * MIB, SPIN_WINDOW),
            Some(Wait::Sleep(Duration::from_millis(3)))
        );
        // It has stopped: soon nothing is expected of it any more.
        let looks = (8..200).map(|ms| approach.observe(ms * MS, 3 * MIB, SPIN_WINDOW));
        assert!(looks.take_while(Option::is_some).count() < 32);
        // What goes away is not waited for.
        let mut approach = SpinPolicy::default();
        approach.observe(0, 3 * MIB, SPIN_WINDOW);
        assert_eq!(approach.observe(MS, 4 * MIB, SPIN_WINDOW), None);
    }

    #[test]
    fn far_away_it_sleeps() {
        let mut approach = SpinPolicy::default();
        approach.observe(0, 20 * MIB, SPIN_WINDOW);
        assert_eq!(approach.observe(MS, 5 * MIB, SPIN_WINDOW), None);
    }

    proptest::proptest! {
        /// A pod that comes near and goes away for ever, however it moves, costs little of a CPU.
        #[test]
        fn hovering_is_cheap(steps in proptest::collection::vec((0_u64..SPIN_WINDOW, 1_u64..10), 2000..3000)) {
            let mut approach = SpinPolicy::default();
            let (mut now, mut spent) = (0, 0);
            for (distance, millis) in steps {
                now += millis * MS;
                match approach.observe(now, distance, SPIN_WINDOW) {
                    Some(Wait::Spin(until)) => {
                        spent += until - now;
                        now = until;
                    }
                    Some(Wait::Sleep(_)) => spent += LOOK_NS,
                    None => {}
                }
            }
            proptest::prop_assert!(spent <= BUDGET_NS + now / REFILL_SHARE + LONGEST_SPIN_NS, "{spent} of {now}");
        }
    }
}
