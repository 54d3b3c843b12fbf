//! Deadline sampling: when to look again.

use std::time::Duration;

/// Shortest interval: below it looking costs more than it tells.
pub const FLOOR: Duration = Duration::from_millis(1);
/// Longest interval: inactive_file and capacity change without any hook firing.
pub const CEILING: Duration = Duration::from_secs(1);

/// The time in which the fastest growth could use up `distance` bytes, within [`FLOOR`] and [`CEILING`].
pub fn sample_interval(distance: u64, growth_per_second: u64) -> Duration {
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

/// Longest time that attaching takes: the kernel patches its code on every CPU.
const ATTACHING: Duration = Duration::from_millis(30);

impl Nearness {
    /// Creates the rule for the machine's fastest growth, in bytes per second.
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

    /// Computes when to look again while the hook is away: before the fastest growth has reached the line.
    pub fn sample_interval(self, distance: u64) -> Duration {
        sample_interval(distance.saturating_sub(self.distance()), self.growth)
    }
}

/// State of a scope that its next look depends on: how short of memory it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScopeState {
    /// No threshold is met.
    Calm,
    /// A threshold is met, and victims are ending.
    Busy,
    /// A threshold is met, and nothing is to be done about it at once: the recovery trips a trigger, and a growth that
    /// makes it urgent has to be seen.
    Idle,
    /// A threshold is met, and nothing is to be done about it at once: every pod is protected for good or uses nothing.
    NoCandidates,
}

/// Means by which a crossing between two looks is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notification {
    /// A kernel program does, at the crossing: only what no charge moves has to be looked at (inactive_file, the
    /// capacity), which is slower than usage.
    AtCrossing,
    /// An eventfd tells late, and nothing tells on the way to a hook that was refused: the crossing is found by
    /// looking.
    Late,
    /// A hook that is not attached as long as the threshold is far.
    OnceNear,
    /// Nothing does: other memory takes the place of page cache. It grows by so many bytes per second.
    Hidden(u64),
}

/// Interval between looks while memory is on its way back.
pub const BUSY: Duration = Duration::from_millis(1);
const IDLE: Duration = Duration::from_millis(20);
const HOOKED_FLOOR: Duration = Duration::from_millis(10);

/// When to look at a scope again: `distance` bytes may still be used before its threshold is met, and `room` before
/// nothing is left, at the fastest growth of the machine in bytes per second.
pub fn sample_interval_at(
    state: ScopeState,
    notification: Notification,
    distance: u64,
    room: u64,
    growth: u64,
) -> Duration {
    let far = sample_interval(distance, growth);
    match (state, notification) {
        (ScopeState::Busy, _) => BUSY,
        (ScopeState::NoCandidates, _) => IDLE,
        // In good time for a growth that begins now to be seen before it has used up much of what is left.
        (ScopeState::Idle, _) => sample_interval(room / 4, growth).min(IDLE),
        (ScopeState::Calm, Notification::AtCrossing) => far.max(HOOKED_FLOOR),
        (ScopeState::Calm, Notification::Late) => far,
        // By the growth that is seen, half of the way at a time: the fastest one would ask for a look every millisecond
        // of a scope that stays close to its threshold.
        (ScopeState::Calm, Notification::Hidden(seen)) => {
            far.max(sample_interval(distance / 2, seen).min(HOOKED_FLOOR))
        }
        (ScopeState::Calm, Notification::OnceNear) => {
            Nearness::new(growth).sample_interval(distance)
        }
    }
}

/// Interval between looks while the threshold of process ids is met: what was done about it shows after a while only,
/// and PIDs come back faster than files.
pub const PRESSED_PIDS: Duration = Duration::from_millis(20);
/// Interval between looks while a threshold of disk bytes or inodes is met.
pub const PRESSED: Duration = Duration::from_millis(250);

/// Amounts by which a flush of statistics is decided, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct FlushInputs {
    /// Bytes that are not charged.
    pub free: u64,
    /// The threshold.
    pub threshold: u64,
    /// Amount that could still be used before memory is short.
    pub left: u64,
    /// The fastest growth, per second.
    pub growth: u64,
}

/// When the kernel is made to flush a cgroup's statistics for a look: page cache that they still show may have become
/// something else.
#[derive(Clone, Copy, Debug, Default)]
pub struct FlushDeadline {
    /// Time of the last flush, and [`FlushInputs::left`] then.
    flushed: Option<(u64, u64)>,
}

impl FlushDeadline {
    /// Whether it is due at `now` (nanoseconds): what is free does not suffice for the threshold by itself, and the
    /// fastest growth could have used up since the last time what was left then.
    pub fn is_due(&mut self, now: u64, inputs: FlushInputs) -> bool {
        let FlushInputs {
            free,
            threshold,
            left,
            growth,
        } = inputs;
        if free >= threshold.saturating_mul(2) {
            self.forget();
            return false;
        }
        let is_due = self.flushed.is_none_or(|(since, left)| {
            let lasts = sample_interval(left, growth).as_nanos();
            u128::from(now.saturating_sub(since)) >= lasts
        });
        if is_due {
            self.flushed = Some((now, left));
        }
        is_due
    }

    /// The statistics were flushed at `now` without a sample: the next flush is due after [`FLOOR`].
    pub fn was_flushed(&mut self, now: u64) {
        if self.flushed.is_some() {
            self.flushed = Some((now, 0));
        }
    }

    /// Forgets the last flush.
    pub fn forget(&mut self) {
        self.flushed = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn far_is_slow_near_is_sharp() {
        const GIB: u64 = 1 << 30;
        assert_eq!(sample_interval(0, 8 * GIB), FLOOR);
        assert_eq!(sample_interval(GIB, 8 * GIB), Duration::from_millis(125));
        assert_eq!(sample_interval(u64::MAX, 8 * GIB), CEILING);
        assert_eq!(sample_interval(1, 0), CEILING);
    }

    proptest::proptest! {
        /// Whatever the distance, growth at full speed cannot use it up before the next look, but for the floor.
        #[test]
        fn nothing_slips_through(distance: u64, growth in 1_u64..1 << 40) {
            let interval = sample_interval(distance, growth);
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
                distance = distance.saturating_sub(grown(nearness.sample_interval(distance), speed));
            }
        }
    }
}
