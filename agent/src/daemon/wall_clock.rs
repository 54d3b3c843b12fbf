//! Times of records: moments of CLOCK_MONOTONIC by the wall clock, however late the main thread comes to them.

use std::time::Duration;

use evictd_sys::clock::monotonic_ns;

/// The wall clock's time of a moment, in nanoseconds of CLOCK_MONOTONIC.
pub fn wall_clock(at: u64) -> String {
    let ago = Duration::from_nanos(monotonic_ns().saturating_sub(at));
    let now = jiff::Timestamp::now();
    now.checked_sub(ago).unwrap_or(now).to_string()
}
