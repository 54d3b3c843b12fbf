//! Waiting for what the kernel tells in its own time.

use crate::prelude::*;

/// How long something that will happen may take, on a machine that is emulated while others compile.
pub const SOON: Duration = Duration::from_secs(60);

/// Held by a test that no other such test of its process may run beside.
pub fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock()
}

/// Looks again and again until there is something to see, or patience is over.
pub fn wait_for<T>(timeout: Duration, look: impl FnMut() -> Option<T>) -> Option<T> {
    look_every(Duration::from_micros(200), timeout, look)
}

/// Waits for a condition that costs more to look at; returns whether it holds in time.
pub fn until(timeout: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let look = || condition().then_some(());
    look_every(Duration::from_millis(5), timeout, look).is_some()
}

/// Waits until so long has passed since a moment of the monotonic clock.
pub fn sleep_from(moment: u64, time: Duration) {
    let passed = Duration::from_nanos(monotonic_ns().saturating_sub(moment));
    std::thread::sleep(time.saturating_sub(passed));
}

fn look_every<T>(
    pause: Duration,
    timeout: Duration,
    mut look: impl FnMut() -> Option<T>,
) -> Option<T> {
    let end = Instant::now() + timeout;
    loop {
        if let Some(seen) = look() {
            return Some(seen);
        }
        if Instant::now() > end {
            return None;
        }
        std::thread::sleep(pause);
    }
}
