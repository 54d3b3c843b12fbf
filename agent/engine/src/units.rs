//! Numbers and times in the units of decisions: bytes and nanoseconds.

use std::time::Duration;

/// A millisecond, in nanoseconds.
pub const MS: u64 = 1_000_000;
/// A second, in nanoseconds.
pub const SECOND: u64 = 1000 * MS;

/// A duration in nanoseconds, as far as they fit.
pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// An amount or a time as an int64, which the kubelet's numbers are: beyond 2^63 all are the same.
pub fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// `amount * by / over`, at most the largest number there is.
pub fn scaled(amount: u64, by: u64, over: u64) -> u64 {
    let exact = u128::from(amount) * u128::from(by) / u128::from(over.max(1));
    u64::try_from(exact).unwrap_or(u64::MAX)
}

/// Moves the start of a time by so many nanoseconds until `now` that do not count, at most to `now`.
pub fn shift_by_gap(since: &mut u64, late: u64, now: u64) {
    *since = since.saturating_add(late).min(now).max(*since);
}

/// The same on the planner's clock.
pub(crate) fn shift_by_gap_signed(since: &mut i64, late: i64, now: i64) {
    *since = since.saturating_add(late).min(now).max(*since);
}

/// Whether a number is 0, for fields that are left out of a file then.
pub fn is_zero(number: &u64) -> bool {
    *number == 0
}
