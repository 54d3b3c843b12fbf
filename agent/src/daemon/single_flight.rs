//! A disk that does not answer takes one thread, not one more at each attempt.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

/// Jobs of which at most one runs.
#[derive(Debug, Default)]
pub(super) struct SingleFlight(Arc<AtomicBool>);

/// Belongs to the job that runs. The next one may begin when it is dropped: after the job, or because no thread has
/// taken the job.
#[derive(Debug)]
pub(super) struct FlightToken(Arc<AtomicBool>);

impl SingleFlight {
    /// `None` while the last job runs.
    pub fn begin(&self) -> Option<FlightToken> {
        let was_running = self.0.swap(true, Ordering::Acquire);
        (!was_running).then(|| FlightToken(Arc::clone(&self.0)))
    }
}

impl Drop for FlightToken {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_one_begins_when_the_last_one_is_dropped() {
        let jobs = SingleFlight::default();
        let first = jobs.begin();
        assert!(first.is_some() && jobs.begin().is_none());
        drop(first);
        assert!(jobs.begin().is_some(), "and is dropped itself");
        assert!(jobs.begin().is_some());
    }
}
