//! When processes were started, and what they may do.

use evictd_engine::units::SECOND;
use evictd_sys::{
    clock::{boottime_ns, monotonic_ns},
    fs::read_lossy,
};
use rustix::param::clock_ticks_per_second;

/// Fields of `/proc/PID/stat` between the command's closing parenthesis and `starttime`.
const BEFORE_START: usize = 19;

/// When a process was started, in nanoseconds of CLOCK_MONOTONIC, rounded down to the kernel's tick (10 ms); below zero
/// where the machine slept meanwhile. `None` for a process that is gone or not to be seen.
pub fn started(pid: i32) -> Option<i64> {
    let stat = read_lossy(format!("/proc/{pid}/stat")).ok()?;
    let slept = boottime_ns().saturating_sub(monotonic_ns());
    Some(start_of(&stat, clock_ticks_per_second())?.saturating_sub_unsigned(slept))
}

/// `starttime` out of a `stat`, in nanoseconds of CLOCK_BOOTTIME.
fn start_of(stat: &str, ticks_per_second: u64) -> Option<i64> {
    // A command may have spaces and parentheses in its name.
    let (_, rest) = stat.rsplit_once(')')?;
    let ticks: u64 = rest.split_whitespace().nth(BEFORE_START)?.parse().ok()?;
    i64::try_from(ticks.saturating_mul(SECOND / ticks_per_second)).ok()
}

/// The effective capabilities out of a `status`, a bit for each (`CapEff`, proc_pid_status(5)).
pub fn effective_capabilities(status: &str) -> Option<u64> {
    let hexadecimal = status.lines().find_map(|l| l.strip_prefix("CapEff:"))?;
    u64::from_str_radix(hexadecimal.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_is_found_behind_any_name() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 1 2 3";
        assert_eq!(start_of(stat, 100), Some(47_110_000_000));
        assert_eq!(start_of("7 (a) S 1", 100), None);
    }

    #[test]
    fn effective_capabilities_are_a_bit_each() {
        let status = "CapPrm:\t000001ffffffffff\nCapEff:\t0000000000800002\nCapBnd:\t0\n";
        assert_eq!(effective_capabilities(status), Some(1 << 23 | 1 << 1));
        assert_eq!(effective_capabilities("CapEff:\tnone\n"), None);
        assert_eq!(effective_capabilities(""), None);
    }

    #[test]
    fn this_process_was_started_before_now() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let start = started(pid).unwrap();
        let now = i64::try_from(monotonic_ns()).unwrap();
        let day = 86_400 * SECOND.cast_signed();
        assert!(start < now && now - start < day, "{start} {now}");
        assert_eq!(started(i32::MAX), None);
    }
}
