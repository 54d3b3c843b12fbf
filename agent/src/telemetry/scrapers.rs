//! Which clients may read the metrics: bearer tokens, and what the API server says of each.
//!
//! The thread that serves waits for nothing: a token that is not known is handed to the async loop, and its request is
//! answered when the review has come. A token that was allowed is answered from memory while it is reviewed anew:
//! neither tokens that anyone can make up nor an API server that does not answer take the metrics from a scraper that
//! may read them.

use std::{
    collections::HashMap,
    io,
    os::fd::BorrowedFd,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use evictd_kube::{
    client::ApiClient,
    scraper_access::{ScraperAccess, review},
};
use evictd_sys::{eventfd::EventFd, mutex::locked};
use tokio::sync::mpsc;

use super::http::Answer;

/// Tokens that wait for their first review; a request beyond is answered with "try again".
const WAITING: usize = 8;
/// Tokens that are remembered: so many that are allowed, and as many others. The oldest makes room for a new one of its
/// kind.
const REMEMBERED: usize = 64;
/// A token that is allowed is reviewed anew when it comes after so long.
const RENEWED_AFTER: Duration = Duration::from_secs(30);
/// Time for which a token stays allowed when its review does not come. A denial holds at once.
const ALLOWED_FOR: Duration = Duration::from_secs(300);
/// A right that is given works after so long.
const DENIED_FOR: Duration = Duration::from_secs(10);
/// A review that never comes is asked for again after so long.
const REVIEW_TIME: Duration = Duration::from_secs(60);
/// Between two reviews: so many a second are the most that anyone can make the agent ask for.
const PAUSE: Duration = Duration::from_millis(100);

/// State of a token that is not allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TokenState {
    /// The token's review is under way.
    Asked,
    /// The API server knows the token, and its user may not.
    Forbidden,
    /// The API server does not know the token.
    Unauthenticated,
    /// The API server cannot be asked.
    Unanswered,
}

/// A token that the API server has allowed.
#[derive(Clone, Copy, Debug)]
struct Allowed {
    /// Time at which the API server has allowed the token last.
    at: Instant,
    /// Time at which the token is to be asked about again.
    renew: Instant,
}

/// Tokens, and what is known of them.
#[derive(Default)]
struct Tokens {
    allowed: HashMap<String, Allowed>,
    /// Each with the moment until which it holds.
    others: HashMap<String, (TokenState, Instant)>,
}

/// Tokens on their way to their review.
struct Queues {
    /// Queue of tokens that were never allowed.
    first: mpsc::Sender<String>,
    /// Queue of tokens that were allowed: they do not wait behind others.
    renewals: mpsc::Sender<String>,
}

impl Queues {
    fn new() -> (Self, Asked) {
        let (first, unknown) = mpsc::channel(WAITING);
        let (renewals, allowed) = mpsc::channel(REMEMBERED);
        (Self { first, renewals }, Asked { allowed, unknown })
    }
}

/// Queues from which tokens are taken for their review.
struct Asked {
    allowed: mpsc::Receiver<String>,
    unknown: mpsc::Receiver<String>,
}

impl Asked {
    /// The next token; `None` when no more will come.
    async fn next(&mut self) -> Option<String> {
        tokio::select! {
            biased;
            Some(token) = self.allowed.recv() => Some(token),
            Some(token) = self.unknown.recv() => Some(token),
            else => None,
        }
    }
}

impl Tokens {
    /// Whether the bearer of a token may read the metrics; `None` while that is not known.
    fn check(&mut self, token: &str, now: Instant, queues: &Queues) -> Option<Result<(), Answer>> {
        let was_allowed = self.allowed.get_mut(token);
        let queue = match &was_allowed {
            Some(_) => &queues.renewals,
            None => &queues.first,
        };
        if let Some(allowed) = was_allowed.filter(|allowed| now < allowed.at + ALLOWED_FOR) {
            if now >= allowed.renew && queue.try_send(token.to_owned()).is_ok() {
                allowed.renew = now + REVIEW_TIME;
            }
            return Some(Ok(()));
        }
        let known = self.others.get(token).filter(|(_, until)| now < *until);
        match known.map(|(known, _)| *known) {
            Some(TokenState::Forbidden) => {
                let reason = "the token's user may not get /metrics\n";
                Some(Err(Answer::plain("403 Forbidden", reason)))
            }
            Some(TokenState::Unauthenticated) => Some(Err(unauthenticated())),
            Some(TokenState::Unanswered) => Some(Err(busy("the API server cannot be asked\n"))),
            Some(TokenState::Asked) => None,
            None => match queue.try_send(token.to_owned()) {
                Ok(()) => {
                    self.remember(token, TokenState::Asked, now + REVIEW_TIME);
                    None
                }
                Err(_) => Some(Err(busy("too many tokens are being reviewed\n"))),
            },
        }
    }

    /// A review has come, or has failed.
    fn reviewed(&mut self, token: &str, now: Instant, access: Option<ScraperAccess>) {
        let known = match access {
            Some(ScraperAccess::Allowed) => {
                self.others.remove(token);
                make_room(&mut self.allowed, token, |allowed| allowed.at);
                let renew = now + RENEWED_AFTER;
                let allowed = Allowed { at: now, renew };
                self.allowed.insert(token.to_owned(), allowed);
                return;
            }
            Some(ScraperAccess::Forbidden) => TokenState::Forbidden,
            Some(ScraperAccess::Unauthenticated) => TokenState::Unauthenticated,
            None => TokenState::Unanswered,
        };
        match self.allowed.get_mut(token) {
            // It may be allowed still.
            Some(allowed) if known == TokenState::Unanswered => allowed.renew = now + DENIED_FOR,
            _ => drop(self.allowed.remove(token)),
        }
        self.remember(token, known, now + DENIED_FOR);
    }

    fn remember(&mut self, token: &str, known: TokenState, until: Instant) {
        make_room(&mut self.others, token, |(_, until)| *until);
        self.others.insert(token.to_owned(), (known, until));
    }
}

/// Forgets the entry of the earliest moment where a new token would be one too many.
fn make_room<T>(entries: &mut HashMap<String, T>, token: &str, moment: impl Fn(&T) -> Instant) {
    if entries.len() >= REMEMBERED && !entries.contains_key(token) {
        let oldest = entries.iter().min_by_key(|(_, entry)| moment(entry));
        if let Some(oldest) = oldest.map(|(token, _)| token.clone()) {
            entries.remove(&oldest);
        }
    }
}

/// Decides which clients may read the metrics.
pub(super) struct Scrapers {
    shared: Arc<Shared>,
    queues: Queues,
}

struct Shared {
    tokens: Mutex<Tokens>,
    /// Readable when a review has come.
    ready: EventFd,
}

impl Scrapers {
    /// Reviews tokens on the caller's async loop from now on.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn start(connection: Arc<ApiClient>) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            tokens: Mutex::default(),
            ready: EventFd::new()?,
        });
        let (queues, asked) = Queues::new();
        tokio::spawn(run(connection, Arc::clone(&shared), asked));
        Ok(Self { shared, queues })
    }

    /// Whether the bearer of what an `Authorization` header says may read the metrics: the refusal, if there is one;
    /// `None` while that is not known.
    pub fn check(&self, authorization: &str) -> Option<Result<(), Answer>> {
        let Some(token) = bearer(authorization) else {
            return Some(Err(unauthenticated()));
        };
        let mut tokens = locked(&self.shared.tokens);
        tokens.check(token, Instant::now(), &self.queues)
    }

    /// Readable when a review has come.
    pub fn ready_fd(&self) -> BorrowedFd<'_> {
        self.shared.ready.fd()
    }

    /// Takes in that reviews have come.
    pub fn clear_ready(&self) {
        self.shared.ready.clear();
    }
}

fn unauthenticated() -> Answer {
    Answer::plain("401 Unauthorized", "needs a bearer token\n")
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

async fn run(connection: Arc<ApiClient>, shared: Arc<Shared>, mut asked: Asked) {
    // Anyone may send tokens, and each is reviewed: an outage is one line.
    let mut is_logged = false;
    while let Some(token) = asked.next().await {
        let access = review(&connection, &token).await;
        match &access {
            Ok(_) => is_logged = false,
            Err(error) if !std::mem::replace(&mut is_logged, true) => {
                tracing::warn!(%error, "the tokens of scrapers cannot be reviewed");
            }
            Err(error) => tracing::debug!(%error, "the token of a scraper cannot be reviewed"),
        }
        let now = Instant::now();
        locked(&shared.tokens).reviewed(&token, now, access.ok());
        shared.ready.notify();
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

    const SECOND: Duration = Duration::from_secs(1);

    fn status(answer: Option<Result<(), Answer>>) -> &'static str {
        match answer {
            None => "waits",
            Some(Ok(())) => "200",
            Some(Err(answer)) => answer.status.split(' ').next().unwrap_or_default(),
        }
    }

    /// A scraper that was allowed at this moment.
    fn allowed() -> (Tokens, Instant) {
        let (mut tokens, start) = (Tokens::default(), Instant::now());
        tokens.reviewed("prometheus", start, Some(ScraperAccess::Allowed));
        (tokens, start)
    }

    // R48
    #[test]
    fn tokens_that_are_made_up_take_nothing_from_a_scraper() {
        let (mut tokens, start) = allowed();
        let (queues, mut asked) = Queues::new();
        for n in 0..500_u32 {
            let now = start + SECOND * n / 250;
            let answer = status(tokens.check(&n.to_string(), now, &queues));
            assert!(["waits", "503"].contains(&answer), "{answer}");
            // Some of them are reviewed meanwhile.
            if n % 25 == 0
                && let Ok(token) = asked.unknown.try_recv()
            {
                tokens.reviewed(&token, now, Some(ScraperAccess::Unauthenticated));
            }
        }
        assert!(tokens.others.len() <= REMEMBERED);
        let later = start + 61 * SECOND;
        assert_eq!(status(tokens.check("prometheus", later, &queues)), "200");
        assert_eq!(asked.allowed.try_recv().as_deref(), Ok("prometheus"));
        // Once, however often it comes.
        assert_eq!(status(tokens.check("prometheus", later, &queues)), "200");
        assert!(asked.allowed.try_recv().is_err());
    }

    #[test]
    fn a_scraper_outlives_an_outage_of_the_api_server() {
        let (mut tokens, start) = allowed();
        let (queues, mut asked) = Queues::new();
        for seconds in (0..300).step_by(15) {
            let now = start + SECOND * seconds;
            assert_eq!(status(tokens.check("prometheus", now, &queues)), "200");
            if let Ok(token) = asked.allowed.try_recv() {
                tokens.reviewed(&token, now, None);
            }
        }
        let now = start + 299 * SECOND;
        assert_eq!(status(tokens.check("unknown", now, &queues)), "waits");
        tokens.reviewed("unknown", now, None);
        assert_eq!(status(tokens.check("unknown", now, &queues)), "503");
        let end = start + ALLOWED_FOR;
        assert_eq!(status(tokens.check("prometheus", end, &queues)), "waits");
        tokens.reviewed("prometheus", end, None);
        assert_eq!(status(tokens.check("prometheus", end, &queues)), "503");
        // It is still asked about before tokens that were never allowed.
        drop(asked.allowed.try_recv());
        let later = end + DENIED_FOR;
        assert_eq!(status(tokens.check("prometheus", later, &queues)), "waits");
        assert_eq!(asked.allowed.try_recv().as_deref(), Ok("prometheus"));
        tokens.reviewed("prometheus", later, Some(ScraperAccess::Allowed));
        assert_eq!(status(tokens.check("prometheus", later, &queues)), "200");
    }

    #[test]
    fn a_denial_holds_at_once() {
        let (mut tokens, start) = allowed();
        let (queues, _asked) = Queues::new();
        let now = start + SECOND;
        for (access, expected) in [
            (ScraperAccess::Forbidden, "403"),
            (ScraperAccess::Unauthenticated, "401"),
        ] {
            tokens.reviewed("prometheus", start, Some(ScraperAccess::Allowed));
            tokens.reviewed("prometheus", now, Some(access));
            assert_eq!(status(tokens.check("prometheus", now, &queues)), expected);
        }
    }

    #[test]
    fn no_more_tokens_are_remembered_than_there_is_room_for() {
        let (mut tokens, start) = allowed();
        for n in 0..200_u32 {
            let (now, token) = (start + SECOND * (n + 1), n.to_string());
            tokens.remember(&token, TokenState::Asked, now);
            tokens.reviewed(&format!("new {n}"), now, Some(ScraperAccess::Allowed));
        }
        assert_eq!(tokens.others.len(), REMEMBERED);
        assert_eq!(tokens.allowed.len(), REMEMBERED);
        assert!(tokens.others.contains_key("199") && !tokens.others.contains_key("0"));
        assert!(!tokens.allowed.contains_key("prometheus"));
    }
}
