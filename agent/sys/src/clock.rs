//! The clocks: the monotonic one, on which all is decided, and jumps of the wall clock, whose times are in Events and
//! in the journal; and the boot in which they count.

use std::time::{Duration, SystemTime};

use rustix::time::{ClockId, clock_gettime};

/// A wall clock that differs by more from CLOCK_BOOTTIME between two looks has been set.
const JUMP: Duration = Duration::from_secs(2);

/// Readings of both clocks at the last look.
#[derive(Clone, Copy, Debug)]
pub struct ClockJump {
    /// Nanoseconds of CLOCK_BOOTTIME: the machine may sleep between two looks.
    boottime: u64,
    wall: SystemTime,
}

impl ClockJump {
    /// The first look.
    pub fn new(boottime: u64, wall: SystemTime) -> Self {
        Self { boottime, wall }
    }

    /// The next look: by how much the wall clock was set since the last one, forwards or backwards; `None` if it was
    /// not.
    pub fn jump(&mut self, boottime: u64, wall: SystemTime) -> Option<Duration> {
        let elapsed = Duration::from_nanos(boottime.saturating_sub(self.boottime));
        let expected = self.wall + elapsed;
        *self = Self { boottime, wall };
        let off = match wall.duration_since(expected) {
            Ok(ahead) => ahead,
            Err(behind) => behind.duration(),
        };
        (off > JUMP).then_some(off)
    }
}

/// Reads the ID of this boot; an empty text where the kernel does not say.
pub fn boot_id() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    boot.trim().to_owned()
}

/// Sleeps for `pause` unless it is zero, and returns the time afterwards, in nanoseconds of CLOCK_MONOTONIC.
pub fn sleep_then_now(pause: Duration) -> u64 {
    if !pause.is_zero() {
        std::thread::sleep(pause);
    }
    monotonic_ns()
}

/// Now, in nanoseconds of CLOCK_MONOTONIC: the clock of `bpf_ktime_get_ns`.
pub fn monotonic_ns() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// Now, in nanoseconds of CLOCK_BOOTTIME: the monotonic clock with the time that the machine has slept.
pub fn boottime_ns() -> u64 {
    nanoseconds(ClockId::Boottime)
}

/// Nanoseconds for which the calling thread has had a CPU.
fn thread_cpu_ns() -> u64 {
    nanoseconds(ClockId::ThreadCPUTime)
}

/// A moment of a thread: what it did not work since, it waited or stood still.
#[derive(Clone, Copy, Debug)]
pub struct WorkMark {
    /// Nanoseconds of CLOCK_MONOTONIC.
    time: u64,
    cpu: u64,
}

impl WorkMark {
    /// The moment `time`, which is now or was just before, of the calling thread.
    pub fn at(time: u64) -> Self {
        Self {
            time,
            cpu: thread_cpu_ns(),
        }
    }

    /// Nanoseconds until `now` in which the calling thread, which has made the mark, did not work. It works for `most` at
    /// once: what is beyond that is a pause of the whole machine, which the kernel charges to the thread that has the CPU.
    pub fn idle_until(self, now: u64, most: Duration) -> u64 {
        let worked = thread_cpu_ns().saturating_sub(self.cpu);
        let worked = worked.min(u64::try_from(most.as_nanos()).unwrap_or(u64::MAX));
        now.saturating_sub(self.time).saturating_sub(worked)
    }
}

fn nanoseconds(clock: ClockId) -> u64 {
    let t = clock_gettime(clock);
    // Both fields are positive on these clocks.
    t.tv_sec.unsigned_abs() * 1_000_000_000 + t.tv_nsec.unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_no_pause() {
        let mark = WorkMark::at(monotonic_ns());
        while thread_cpu_ns() - mark.cpu < 20_000_000 {
            std::hint::spin_loop();
        }
        let worked = monotonic_ns();
        let (least, most) = (Duration::from_millis(5), Duration::from_secs(1));
        assert!(mark.idle_until(worked, most) <= worked - mark.time - 20_000_000);
        assert!(mark.idle_until(worked, least) >= 15_000_000);
        std::thread::sleep(Duration::from_millis(20));
        assert!(mark.idle_until(monotonic_ns(), most) >= 20_000_000);
    }

    #[test]
    fn a_clock_that_was_set_is_noticed_once_in_both_directions() {
        let seconds = Duration::from_secs;
        let noon = SystemTime::UNIX_EPOCH + seconds(1_000_000);
        let after = |count: u64| count * 1_000_000_000;
        let mut clock = ClockJump::new(0, noon);
        // A minute later, and a second off: it was slewed, not set.
        assert_eq!(clock.jump(after(60), noon + seconds(61)), None);
        let hour = seconds(3600);
        let later = noon + seconds(71) + hour;
        assert_eq!(clock.jump(after(70), later), Some(hour));
        assert_eq!(clock.jump(after(80), later + seconds(10)), None);
        // Back to before the first look, as after a battery has failed.
        let back = SystemTime::UNIX_EPOCH;
        let off = later + seconds(20);
        let off = off.duration_since(back).unwrap();
        assert_eq!(clock.jump(after(90), back), Some(off));
    }
}
