//! Looks at files, and reads them, on a thread that may wait for their disk: on the main thread a disk that does not
//! answer would stop everything.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

use super::single_flight::{FlightToken, SingleFlight};

/// One look after the other; while one does not come back, or what it has found is not taken, none is begun.
#[derive(Debug)]
pub(super) struct BackgroundRead<T> {
    looks: SingleFlight,
    found: Arc<Mutex<Option<(T, FlightToken)>>>,
    looked: Arc<Notify>,
}

impl<T> BackgroundRead<T> {
    /// Looks that notify when they have come back.
    pub fn new(looked: Arc<Notify>) -> Self {
        Self {
            looks: SingleFlight::default(),
            found: Arc::default(),
            looked,
        }
    }

    /// Ends when a look has come back. Can be dropped at any time without losing it.
    pub async fn finished(&self) {
        self.looked.notified().await;
    }

    /// Takes what the last look has found, once.
    pub fn take(&self) -> Option<T> {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.take().map(|(found, _)| found)
    }
}

impl<T: Send + 'static> BackgroundRead<T> {
    /// Begins the next look, unless the last one is not over. Whether it has begun.
    pub fn begin(&self, look: impl FnOnce() -> T + Send + 'static) -> bool {
        let Some(running) = self.looks.begin() else {
            return false;
        };
        let (found, looked) = (Arc::clone(&self.found), Arc::clone(&self.looked));
        tokio::task::spawn_blocking(move || {
            let new = look();
            *found.lock().unwrap_or_else(PoisonError::into_inner) = Some((new, running));
            looked.notify_one();
        });
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn a_look_that_does_not_come_back_holds_up_none() {
        let looks = BackgroundRead::new(Arc::default());
        let (go_on, hangs) = mpsc::channel::<()>();
        assert!(looks.begin(move || {
            // An error: it goes on.
            let _ = hangs.recv();
            1
        }));
        assert!(!looks.begin(|| 2));
        assert_eq!(looks.take(), None);
        drop(go_on);
        looks.finished().await;
        assert!(!looks.begin(|| 2), "the first is not taken");
        assert_eq!(looks.take(), Some(1));
        assert_eq!(looks.take(), None);
        assert!(looks.begin(|| 3));
        looks.finished().await;
        assert_eq!(looks.take(), Some(3));
    }
}
