//! Waiting for what the kernel tells in its own time.

use std::time::{Duration, Instant};

/// Looks again and again until there is something to see, or patience is over.
pub fn wait_for<T>(patience: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + patience;
    loop {
        if let Some(seen) = look() {
            return Some(seen);
        }
        if Instant::now() > end {
            return None;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}
