//! Looks at files on a thread that may wait for their disk: on the main thread a disk that does not answer would stop everything.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use tokio::sync::Notify;

/// One look after the other; while one does not come back, none is begun.
#[derive(Debug)]
pub(super) struct FileLook<T>(Arc<Shared<T>>);

#[derive(Debug)]
struct Shared<T> {
    found: Mutex<Option<T>>,
    is_under_way: AtomicBool,
    looked: Arc<Notify>,
}

impl<T> FileLook<T> {
    /// Looks that notify when they have come back.
    pub fn new(looked: Arc<Notify>) -> Self {
        Self(Arc::new(Shared {
            found: Mutex::new(None),
            is_under_way: AtomicBool::new(false),
            looked,
        }))
    }

    /// Ends when a look has come back. Can be dropped at any time without losing it.
    pub async fn looked(&self) {
        self.0.looked.notified().await;
    }

    /// What the last look has found, once.
    pub fn take(&self) -> Option<T> {
        self.0.lock().take()
    }
}

impl<T: Send + 'static> FileLook<T> {
    /// Begins the next look, unless the last one has not come back.
    pub fn begin(&self, look: impl FnOnce() -> T + Send + 'static) {
        if self.0.is_under_way.swap(true, Ordering::Relaxed) {
            return;
        }
        let shared = Arc::clone(&self.0);
        tokio::task::spawn_blocking(move || {
            let found = look();
            *shared.lock() = Some(found);
            shared.is_under_way.store(false, Ordering::Relaxed);
            shared.looked.notify_one();
        });
    }
}

impl<T> Shared<T> {
    fn lock(&self) -> std::sync::MutexGuard<'_, Option<T>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn a_look_that_does_not_come_back_holds_up_none() {
        let looks = FileLook::new(Arc::default());
        let (go_on, hangs) = mpsc::channel::<()>();
        looks.begin(move || {
            // An error: it goes on.
            let _ = hangs.recv();
            1
        });
        looks.begin(|| 2);
        assert_eq!(looks.take(), None);
        drop(go_on);
        looks.looked().await;
        assert_eq!(looks.take(), Some(1), "none was begun meanwhile");
        assert_eq!(looks.take(), None);
        looks.begin(|| 3);
        looks.looked().await;
        assert_eq!(looks.take(), Some(3));
    }
}
