//! The programs in the kernel against the files that show the same numbers.

mod cgroups;
mod charges;
mod facts;
mod inodes;
mod kill;
mod memory;
mod mitigation;
mod oom;
mod overhead;
mod pids;
mod statistics;
mod wakeups;

use evictd_node::trigger::counter::{CountDirection, CountTrigger};
use evictd_tests::prelude::*;

/// A trigger of a counter at so much that is left.
fn limit(available: i64, direction: CountDirection) -> Option<CountTrigger> {
    Some(CountTrigger {
        available,
        direction,
    })
}

/// Read file, read map, read file: whether at some moment the map lies between, but for `slack`.
fn lies_between(
    slack: i64,
    file: impl Fn() -> i64,
    map: impl Fn() -> Option<i64>,
) -> Result<(), String> {
    let mut off = Vec::new();
    let agrees = || {
        let (before, counted, after) = (file(), map().expect("a count"), file());
        off.push(counted - after);
        (before.min(after) - slack..=before.max(after) + slack).contains(&counted)
    };
    if until(Duration::from_secs(10), agrees) {
        return Ok(());
    }
    let (least, most) = (off.iter().min(), off.iter().max());
    let looks = off.len();
    Err(format!(
        "the count is off by {least:?} to {most:?} in {looks} looks"
    ))
}
