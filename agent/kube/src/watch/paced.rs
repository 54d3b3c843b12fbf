//! A pause between watches that end as soon as they are open. kube's watcher opens a watch that has ended anew at once;
//! a server or a proxy that closes each of them would be asked without end.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use evictd_sys::mutex::locked;
use kube::{
    Client,
    client::Body,
    runtime::{utils::Backoff as _, watcher::DefaultBackoff},
};
use tokio::{sync::Notify, time::Instant};
use tower::service_fn;

use crate::counters::Counters;

/// A watch that lasts less has failed: the server ends it after minutes. client-go has one second for this
/// (`reflector.go`, "very short watch").
const SHORT: Duration = Duration::from_secs(5);

/// The watches of one handler, one after the other.
#[derive(Clone)]
pub struct Watches {
    state: Arc<Mutex<State>>,
    opened: Arc<Notify>,
    counters: Arc<Counters>,
}

#[derive(Default)]
struct State {
    opened: Option<Instant>,
    /// The same of a watch that has not ended, as far as the next one has not begun.
    open: Option<Instant>,
    backoff: DefaultBackoff,
}

impl Watches {
    /// None was opened yet.
    pub fn new(counters: Arc<Counters>) -> Self {
        Self {
            state: Arc::default(),
            opened: Arc::default(),
            counters,
        }
    }

    /// A client whose watches are opened after a pause where the one before was short, which counts as an error.
    pub fn paced(&self, client: Client) -> Client {
        let (watches, namespace) = (self.clone(), client.default_namespace().to_owned());
        let send = move |request: http::Request<Body>| {
            let (watches, client) = (watches.clone(), client.clone());
            async move {
                let query = request.uri().query().unwrap_or_default();
                let is_watch = query.split('&').any(|part| part == "watch=true");
                if is_watch {
                    locked(&watches.state).open = None;
                    watches.pause().await;
                }
                let answer = client.send(request).await?;
                if is_watch && answer.status().is_success() {
                    watches.note_opened();
                }
                Ok::<_, kube::Error>(answer)
            }
        };
        Client::new(service_fn(send), namespace)
    }

    fn note_opened(&self) {
        let mut state = locked(&self.state);
        (state.opened, state.open) = (Some(Instant::now()), Some(Instant::now()));
        self.opened.notify_one();
    }

    /// Ends when a watch that was opened after `failed` has lasted: without objects no event tells.
    pub async fn lasts_since(&self, failed: Instant) {
        loop {
            let open = locked(&self.state).open.filter(|at| *at > failed);
            match open {
                Some(at) if at.elapsed() >= SHORT => return,
                Some(at) => tokio::time::sleep_until(at + SHORT).await,
                None => self.opened.notified().await,
            }
        }
    }

    /// The last watch is ended from here: however short it was, it has not failed.
    pub fn given_up(&self) {
        locked(&self.state).opened = None;
    }

    async fn pause(&self) {
        if let Some(pause) = self.next_pause(Instant::now()) {
            self.counters.watch_errors.add();
            tokio::time::sleep(pause).await;
        }
    }

    fn next_pause(&self, now: Instant) -> Option<Duration> {
        let mut state = locked(&self.state);
        let is_short = state.opened.is_some_and(|opened| now - opened < SHORT);
        if !is_short {
            state.backoff.reset();
            return None;
        }
        state.backoff.next()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    /// One that was open before the error tells nothing, and one that has just been opened does not either.
    #[tokio::test]
    async fn a_watch_works_again_once_one_has_lasted_since_the_error() {
        let watches = Watches::new(Arc::default());
        watches.note_opened();
        let failed = Instant::now();
        let works_within = |time| timeout(time, watches.lasts_since(failed));
        assert!(works_within(Duration::from_millis(50)).await.is_err());
        watches.note_opened();
        locked(&watches.state).open = None;
        assert!(
            works_within(SHORT + SHORT / 4).await.is_err(),
            "it has ended"
        );
        watches.note_opened();
        assert!(works_within(SHORT / 2).await.is_err());
        assert!(works_within(SHORT).await.is_ok());
    }
}
