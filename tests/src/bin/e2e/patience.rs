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

/// Whether an object is gone. What cannot be looked for may be there: the API server may be short of memory too.
pub fn is_gone<T, E>(found: &Result<Option<T>, E>) -> bool {
    matches!(found, Ok(None))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_looked_for_is_not_gone() {
        assert!(is_gone(&Ok::<_, ()>(None::<()>)));
        assert!(!is_gone(&Ok::<_, ()>(Some(()))));
        assert!(!is_gone(&Err::<Option<()>, _>(())));
    }
}
