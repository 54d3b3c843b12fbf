//! Deadline sampling: when to look again.

pub mod pod_readings;

use std::time::Duration;

/// Shortest interval: below it looking costs more than it tells.
pub const MIN_INTERVAL: Duration = Duration::from_millis(1);
/// Longest interval: inactive_file and capacity change without any hook firing.
pub const MAX_INTERVAL: Duration = Duration::from_secs(1);

/// The time in which the fastest growth could use up `distance` bytes, within [`MIN_INTERVAL`] and [`MAX_INTERVAL`].
pub fn sample_interval(distance: u64, growth_per_second: u64) -> Duration {
    let micros = u128::from(distance) * 1_000_000 / u128::from(growth_per_second.max(1));
    let interval = Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX));
    interval.clamp(MIN_INTERVAL, MAX_INTERVAL)
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
const MIN_HOOKED_INTERVAL: Duration = Duration::from_millis(10);

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
        (ScopeState::Calm, Notification::AtCrossing) => far.max(MIN_HOOKED_INTERVAL),
        (ScopeState::Calm, Notification::Late) => far,
        // By the growth that is seen, half of the way at a time: the fastest one would ask for a look every millisecond
        // of a scope that stays close to its threshold.
        (ScopeState::Calm, Notification::Hidden(seen)) => {
            far.max(sample_interval(distance / 2, seen).min(MIN_HOOKED_INTERVAL))
        }
        (ScopeState::Calm, Notification::OnceNear) => until_near(distance, growth),
    }
}

/// Longest time that attaching a hook takes: the kernel patches its code on every CPU.
const ATTACHING: Duration = Duration::from_millis(30);

/// Bytes from the threshold at which a hook must be attached that costs something per page: the fastest `growth` per second
/// cannot reach the threshold before the hook is there.
fn near_distance(growth: u64) -> u64 {
    let micros = (ATTACHING + MIN_INTERVAL).as_micros();
    u64::try_from(u128::from(growth) * micros / 1_000_000).unwrap_or(u64::MAX)
}

/// Whether that hook should be attached. It goes away only at twice the distance, or it would flap.
pub fn wants_hook(growth: u64, distance: u64, is_attached: bool) -> bool {
    let times = if is_attached { 2 } else { 1 };
    distance < near_distance(growth).saturating_mul(times)
}

/// When to look again while it is away: before the fastest growth has come near.
fn until_near(distance: u64, growth: u64) -> Duration {
    sample_interval(distance.saturating_sub(near_distance(growth)), growth)
}

/// When to look at a disk again that no hook counts: as [`sample_interval`] says, but a disk may stay close to its
/// threshold for days, and once that is met it is looked at every [`PRESSED`].
pub fn of_files(distance: u64, growth: u64) -> Duration {
    sample_interval(distance, growth).max(NEAR_FILES)
}

/// The shortest interval between looks at a disk.
const NEAR_FILES: Duration = Duration::from_millis(20);
/// Interval between looks while the threshold of process ids is met: what was done about it shows after a while only,
/// and PIDs come back faster than files.
pub const PRESSED_PIDS: Duration = Duration::from_millis(20);
/// Interval between looks while a threshold of disk bytes or inodes is met.
pub const PRESSED: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn far_is_slow_near_is_sharp() {
        const GIB: u64 = 1 << 30;
        assert_eq!(sample_interval(0, 8 * GIB), MIN_INTERVAL);
        assert_eq!(sample_interval(GIB, 8 * GIB), Duration::from_millis(125));
        assert_eq!(sample_interval(u64::MAX, 8 * GIB), MAX_INTERVAL);
        assert_eq!(sample_interval(1, 0), MAX_INTERVAL);
        assert_eq!(of_files(0, 8 * GIB), NEAR_FILES);
        assert_eq!(of_files(GIB, 8 * GIB), Duration::from_millis(125));
    }

    proptest::proptest! {
        /// Whatever the distance, growth at full speed cannot use it up before the next look, unless that is due after the
        /// shortest interval.
        #[test]
        fn nothing_slips_through(distance: u64, growth in 1_u64..1 << 40) {
            let interval = sample_interval(distance, growth);
            let grown = u128::from(growth) * interval.as_micros() / 1_000_000;
            proptest::prop_assert!(grown <= u128::from(distance) || interval == MIN_INTERVAL);
            proptest::prop_assert!((MIN_INTERVAL..=MAX_INTERVAL).contains(&interval));
        }

        /// Growth at any speed up to the fastest, looked at when it is due: the hook is attached before the distance
        /// is used up, and the time to attach it is counted in.
        #[test]
        fn the_hook_is_there_before_the_threshold(
            growth in 1_u64 << 20..1 << 37,
            start in 0_u64..1 << 42,
            speeds in proptest::collection::vec(0.0..=1.0_f64, 1..200),
        ) {
            let grown = |time: Duration, speed: f64| (growth as f64 * speed * time.as_secs_f64()) as u64;
            let mut distance = start + near_distance(growth);
            for speed in speeds {
                if wants_hook(growth, distance, false) {
                    // Even if attaching takes its longest time at full speed; a byte is lost to rounding.
                    proptest::prop_assert!(distance + 1 >= grown(ATTACHING, 1.0));
                    break;
                }
                distance = distance.saturating_sub(grown(until_near(distance, growth), speed));
            }
        }
    }
}
