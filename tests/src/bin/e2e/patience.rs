//! Waiting for what a cluster does in its own time.

use std::time::{Duration, Instant};

const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Looks again and again until what is seen is enough, or the time is over; what was seen last.
pub async fn look_until<T>(
    timeout: Duration,
    is_enough: impl Fn(&T) -> bool,
    look: impl AsyncFn() -> T,
) -> T {
    let start = Instant::now();
    loop {
        let seen = look().await;
        if is_enough(&seen) || start.elapsed() > timeout {
            return seen;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Whether an object is gone, or cannot be looked for.
pub fn is_gone<T, E>(found: &Result<Option<T>, E>) -> bool {
    !matches!(found, Ok(Some(_)))
}
