//! Delays between attempts: each about twice the one before, up to the longest.

use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};

/// Delays without end.
#[derive(Debug)]
pub(crate) struct Backoff {
    delays: ExponentialBackoff,
    longest: Duration,
}

impl Backoff {
    /// With the first and the longest delay; to each some of itself is added by chance.
    pub(crate) fn new((first, longest): (Duration, Duration)) -> Self {
        let delays = ExponentialBuilder::default()
            .with_min_delay(first)
            .with_max_delay(longest)
            .with_jitter()
            .without_max_times()
            .build();
        Self { delays, longest }
    }

    pub(crate) fn next_delay(&mut self) -> Duration {
        // They never end; the longest stands in for the type's sake.
        self.delays.next().unwrap_or(self.longest)
    }
}
