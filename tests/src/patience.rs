//! Waiting for what the kernel tells in its own time.

use std::time::{Duration, Instant};

/// Looks again and again until there is something to see, or patience is over.
pub fn wait_for<T>(patience: Duration, look: impl FnMut() -> Option<T>) -> Option<T> {
    look_every(Duration::from_micros(200), patience, look)
}

/// The same for what costs more to look at: whether the condition holds in time.
pub fn until(patience: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let look = || condition().then_some(());
    look_every(Duration::from_millis(5), patience, look).is_some()
}

fn look_every<T>(
    pause: Duration,
    patience: Duration,
    mut look: impl FnMut() -> Option<T>,
) -> Option<T> {
    let end = Instant::now() + patience;
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
