//! Who may read the metrics: bearer tokens, and what the API server says of each.
//!
//! The thread that serves waits for nothing: a token that is not known is handed to the async loop, and its request is answered
//! when the review has come.

use std::{
    collections::HashMap,
    io,
    os::fd::BorrowedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use evictd_kube::{
    client::ApiClient,
    scraper_access::{ScraperAccess, review},
};
use evictd_sys::eventfd::EventFd;
use tokio::sync::mpsc;

use super::http::Answer;

/// Tokens that wait for their review; a request beyond is told to come again.
const WAITING: usize = 8;
/// Tokens that are remembered. The oldest answer makes room for a new one.
const REMEMBERED: usize = 64;
/// A right that is taken away works for so long.
const ALLOWED_FOR: Duration = Duration::from_secs(60);
/// A right that is given works after so long.
const DENIED_FOR: Duration = Duration::from_secs(10);
/// Between two reviews: so many a second are the most that anyone can make the agent ask for.
const PAUSE: Duration = Duration::from_millis(100);

/// What is known of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// Its review is under way.
    Asked,
    /// The API server has said so.
    Said(ScraperAccess),
    /// The API server cannot be asked.
    Unanswered,
}

/// What was found out, until when it holds.
type Tokens = HashMap<String, (Known, Instant)>;

/// Decides who may read the metrics.
pub(super) struct Scrapers {
    shared: Arc<Shared>,
    queue: mpsc::Sender<String>,
}

struct Shared {
    tokens: Mutex<Tokens>,
    /// Readable when a review has come.
    news: EventFd,
}

impl Scrapers {
    /// Reviews tokens on the caller's async loop from now on.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn start(connection: Arc<ApiClient>) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            tokens: Mutex::default(),
            news: EventFd::new()?,
        });
        let (queue, asked) = mpsc::channel(WAITING);
        tokio::spawn(run(connection, Arc::clone(&shared), asked));
        Ok(Self { shared, queue })
    }

    /// Whether the bearer of what an `Authorization` header says may read the metrics: the refusal, if there is one; `None` while
    /// that is not known.
    pub fn check(&self, authorization: &str) -> Option<Result<(), Answer>> {
        let unauthenticated = Answer::plain("401 Unauthorized", "needs a bearer token\n");
        let Some(token) = bearer(authorization) else {
            return Some(Err(unauthenticated));
        };
        let now = Instant::now();
        let mut tokens = self.shared.locked();
        let known = tokens.get(token).filter(|(_, until)| now < *until);
        match known.map(|(known, _)| *known) {
            Some(Known::Said(ScraperAccess::Allowed)) => Some(Ok(())),
            Some(Known::Said(ScraperAccess::Forbidden)) => {
                let reason = "the token's user may not get /metrics\n";
                Some(Err(Answer::plain("403 Forbidden", reason)))
            }
            Some(Known::Said(ScraperAccess::Unauthenticated)) => Some(Err(unauthenticated)),
            Some(Known::Unanswered) => Some(Err(busy("the API server cannot be asked\n"))),
            Some(Known::Asked) => None,
            None => match self.queue.try_send(token.to_owned()) {
                Ok(()) => {
                    // A review that never comes is asked for again.
                    remember(&mut tokens, token, Known::Asked, now + ALLOWED_FOR);
                    None
                }
                Err(_) => Some(Err(busy("too many tokens are being reviewed\n"))),
            },
        }
    }

    /// Readable when a review has come.
    pub fn news(&self) -> BorrowedFd<'_> {
        self.shared.news.fd()
    }

    /// Takes in that reviews have come.
    pub fn take_news(&self) {
        self.shared.news.clear();
    }
}

fn busy(reason: &'static str) -> Answer {
    Answer::plain("503 Service Unavailable", reason)
}

/// The token of a header `Bearer TOKEN`.
fn bearer(authorization: &str) -> Option<&str> {
    let (scheme, token) = authorization.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

fn remember(tokens: &mut Tokens, token: &str, known: Known, until: Instant) {
    if tokens.len() >= REMEMBERED && !tokens.contains_key(token) {
        let oldest = tokens.iter().min_by_key(|(_, (_, until))| *until);
        if let Some(oldest) = oldest.map(|(token, _)| token.clone()) {
            tokens.remove(&oldest);
        }
    }
    tokens.insert(token.to_owned(), (known, until));
}

impl Shared {
    fn locked(&self) -> MutexGuard<'_, Tokens> {
        // Nothing can panic while it is held.
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn run(connection: Arc<ApiClient>, shared: Arc<Shared>, mut asked: mpsc::Receiver<String>) {
    while let Some(token) = asked.recv().await {
        let (known, lasts) = match review(&connection, &token).await {
            Ok(ScraperAccess::Allowed) => (Known::Said(ScraperAccess::Allowed), ALLOWED_FOR),
            Ok(refused) => (Known::Said(refused), DENIED_FOR),
            Err(error) => {
                tracing::warn!(%error, "the token of a scraper cannot be reviewed");
                (Known::Unanswered, DENIED_FOR)
            }
        };
        let until = Instant::now() + lasts;
        remember(&mut shared.locked(), &token, known, until);
        shared.news.notify();
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_a_bearers() {
        assert_eq!(bearer("Bearer abc"), Some("abc"));
        assert_eq!(bearer("bearer  abc "), Some("abc"));
        for header in ["", "Bearer", "Bearer  ", "Basic abc", "abc"] {
            assert_eq!(bearer(header), None, "{header}");
        }
    }

    #[test]
    fn no_more_tokens_are_remembered_than_there_is_room_for() {
        let (mut tokens, now) = (Tokens::new(), Instant::now());
        let until = |seconds| now + Duration::from_secs(seconds);
        for n in 0..200 {
            remember(&mut tokens, &n.to_string(), Known::Asked, until(n));
        }
        assert_eq!(tokens.len(), REMEMBERED);
        assert!(tokens.contains_key("199") && !tokens.contains_key("0"));
        let said = Known::Said(ScraperAccess::Allowed);
        remember(&mut tokens, "199", said, until(0));
        assert_eq!((tokens.len(), tokens["199"].0), (REMEMBERED, said));
    }
}
