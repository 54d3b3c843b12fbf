//! Work that may wait for a disk, away from the main thread. Of each kind one job runs at a time: a disk that does not
//! answer takes one thread, not one more at each attempt.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

use evictd_sys::mutex::locked;
use tokio::sync::Notify;

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

/// Reads on a thread that may wait for the disk. While a read has not come back, or its result is not taken, the next
/// one does not begin.
#[derive(Debug)]
pub(super) struct BackgroundRead<T> {
    reads: SingleFlight,
    found: Arc<Mutex<Option<(T, FlightToken)>>>,
    finished: Arc<Notify>,
}

impl<T> BackgroundRead<T> {
    /// Reads that notify when they have come back.
    pub fn new(finished: Arc<Notify>) -> Self {
        Self {
            reads: SingleFlight::default(),
            found: Arc::default(),
            finished,
        }
    }

    /// Ends when a read has come back. The future can be dropped at any time without losing it.
    pub async fn finished(&self) {
        self.finished.notified().await;
    }

    /// Takes the result of the last read, once.
    pub fn take(&self) -> Option<T> {
        let mut found = locked(&self.found);
        found.take().map(|(found, _)| found)
    }
}

impl<T: Send + 'static> BackgroundRead<T> {
    /// Begins the next read, unless the last one is not over. Returns whether it has begun.
    pub fn begin(&self, read: impl FnOnce() -> T + Send + 'static) -> bool {
        let Some(running) = self.reads.begin() else {
            return false;
        };
        let (found, finished) = (Arc::clone(&self.found), Arc::clone(&self.finished));
        tokio::task::spawn_blocking(move || {
            let new = read();
            *locked(&found) = Some((new, running));
            finished.notify_one();
        });
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

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

    #[tokio::test]
    async fn a_read_that_does_not_come_back_holds_up_none() {
        let reads = BackgroundRead::new(Arc::default());
        let (go_on, hangs) = mpsc::channel::<()>();
        assert!(reads.begin(move || {
            // An error: it goes on.
            let _ = hangs.recv();
            1
        }));
        assert!(!reads.begin(|| 2));
        assert_eq!(reads.take(), None);
        drop(go_on);
        reads.finished().await;
        assert!(!reads.begin(|| 2), "the first is not taken");
        assert_eq!(reads.take(), Some(1));
        assert_eq!(reads.take(), None);
        assert!(reads.begin(|| 3));
        reads.finished().await;
        assert_eq!(reads.take(), Some(3));
    }
}
