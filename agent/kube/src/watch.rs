//! A watch that goes on for ever, whatever the server does: pauses that grow and are never the same on two nodes, a
//! token that is read again, a list that is asked for again.

pub mod namespaces;
mod paced;
pub mod pods;
pub mod policies;
pub mod tenants;

use std::{ops::RangeInclusive, sync::Arc, time::Duration};

use futures::{StreamExt as _, stream::BoxStream};
use kube::{
    Api, Client, Resource,
    runtime::{
        utils::Backoff as _,
        watcher::{self, DefaultBackoff, Event},
    },
};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, error::Elapsed};

use self::paced::Watches;
use super::{backoff::Backoff, client::ApiClient};

/// A list that does not come in this time is asked for again, with twice the time up to the longest.
const LIST_DEADLINE: Duration = Duration::from_secs(30);
const LONGEST_LIST_DEADLINE: Duration = Duration::from_secs(120);
/// First and longest delay after a refusal that only an operator can change; by chance up to twice as much.
const RARE_DELAYS: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(600));

/// Why a watch does not bring anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchFailure {
    /// 403: the agent has no right to it.
    Forbidden,
    /// 404: the server has no such resource.
    Absent,
    /// Anything that passes.
    Passing,
}

/// How often in a row the server must say that it does not know a resource before that is believed: one that is
/// starting may say so by mistake.
const ABSENCES: u32 = 2;

/// What takes the events of a watch.
pub trait WatchHandler {
    /// Kind of object that is watched.
    type Object;

    /// Whether 403 and 404 are asked again rarely: nothing is lost that cannot wait for an operator.
    const RARE_RETRY: bool;

    /// Opens the watch anew.
    fn open(&self, client: Client) -> Events<Self::Object>;

    /// Takes an event of the watch.
    fn apply(&mut self, event: Event<Self::Object>);

    /// The watch has stopped. Called once for each kind of trouble until it works again.
    fn failed(&mut self, failure: WatchFailure, error: &watcher::Error);

    /// Takes note that the server has no such resource: it has said so often enough.
    fn absent(&mut self) {}

    /// Takes note that the watch works again.
    fn recovered(&mut self);

    /// Whether there is something that only a new list brings.
    fn needs_list(&self) -> bool {
        false
    }
}

/// Lives of a watch, in seconds: each is opened with one of these, and ends before the connection is taken for dead
/// (`READ_TIMEOUT` in client.rs).
pub const WATCH_SECONDS: RangeInclusive<u32> = 200..=290;

/// Stream of the events of a watch.
pub type Events<K> = BoxStream<'static, watcher::Result<Event<K>>>;

/// Follows the objects that a field selector selects: a list from the API server's cache, and watches with bookmarks.
pub fn follow<K>(api: Api<K>, fields: Option<&str>) -> Events<K>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let mut config = watcher::Config::default().any_semantic();
    config.field_selector = fields.map(str::to_owned);
    // With a limit kube leaves out resourceVersion=0, and the list would go through to etcd.
    config.page_size = None;
    // What an API server's restart has opened at once on all nodes does not end at once.
    config.timeout = Some(fastrand::u32(WATCH_SECONDS));
    watcher::watcher(api, config).boxed()
}

/// Keeps a handler up to date for ever. Errors are logged once until it works again, counted, and followed by a pause.
pub async fn run_watcher<L: WatchHandler>(client: &ApiClient, handler: L) {
    let watches = Watches::new(Arc::clone(&client.counters));
    let mut watcher = Watcher {
        client,
        handler,
        backoff: DefaultBackoff::default(),
        rare_backoff: Backoff::new(RARE_DELAYS),
        lists: DefaultBackoff::default(),
        failure: None,
        repeats: 0,
        failed: Instant::now(),
    };
    let mut deadline = LIST_DEADLINE;
    loop {
        let opened = client.generation();
        let mut events = watcher.handler.open(watches.paced(client.client()));
        let mut is_listed = false;
        let mut list_at = None;
        loop {
            let next = tokio::select! {
                next = next_event(&mut events, (!is_listed).then_some(deadline)) => next,
                () = watches.lasts_since(watcher.failed), if watcher.failure.is_some() => {
                    watcher.recover();
                    continue;
                }
                () = tokio::time::sleep_until(list_at.unwrap_or_else(Instant::now)), if list_at.is_some() => {
                    watches.given_up();
                    break;
                }
            };
            let Some(next) = next else {
                break;
            };
            match next {
                Ok(event) => {
                    is_listed = match event {
                        Event::Init => false,
                        Event::InitDone => true,
                        _ => is_listed,
                    };
                    if is_listed {
                        deadline = LIST_DEADLINE;
                    }
                    watcher.apply(event);
                    if !(is_listed && watcher.handler.needs_list()) {
                        list_at = None;
                    } else if list_at.is_none() {
                        list_at = watcher.lists.next().map(|pause| Instant::now() + pause);
                    }
                }
                Err(error) => {
                    watcher.handle_error(&error).await;
                    if is_unanswered(&error) {
                        deadline = (2 * deadline).min(LONGEST_LIST_DEADLINE);
                        break;
                    }
                    // Another watch may have seen to it.
                    if needs_new_start(&error) || client.generation() != opened {
                        break;
                    }
                }
            }
        }
    }
}

/// One watch, over all the times that it was opened.
struct Watcher<'a, L> {
    client: &'a ApiClient,
    handler: L,
    /// Pauses after what passes.
    backoff: DefaultBackoff,
    /// Pauses after what only an operator can change.
    rare_backoff: Backoff,
    /// Pauses before a list that the handler needs: what changes all the time must not have all nodes list without end.
    lists: DefaultBackoff,
    /// Why it does not work.
    failure: Option<WatchFailure>,
    /// How often in a row it has failed for that reason.
    repeats: u32,
    /// Time of the last error.
    failed: Instant,
}

impl<L: WatchHandler> Watcher<'_, L> {
    fn apply(&mut self, event: Event<L::Object>) {
        if !matches!(event, Event::Init) {
            self.recover();
        }
        self.handler.apply(event);
    }

    fn recover(&mut self) {
        if self.failure.take().is_some() {
            self.handler.recovered();
            self.backoff.reset();
            self.rare_backoff = Backoff::new(RARE_DELAYS);
        }
    }

    /// Tells of it, renews what has expired, and waits.
    async fn handle_error(&mut self, error: &watcher::Error) {
        let failure = match code(error) {
            403 => WatchFailure::Forbidden,
            404 => WatchFailure::Absent,
            _ => WatchFailure::Passing,
        };
        self.failed = Instant::now();
        let counters = &self.client.counters;
        // What is not installed is not broken.
        if !(L::RARE_RETRY && failure == WatchFailure::Absent) {
            counters.watch_errors.add();
        }
        if failure == WatchFailure::Forbidden {
            counters.forbidden.add();
        }
        if self.failure.replace(failure) == Some(failure) {
            self.repeats += 1;
        } else {
            self.repeats = 1;
            self.handler.failed(failure, error);
        }
        if failure == WatchFailure::Absent && self.repeats == ABSENCES {
            self.handler.absent();
        }
        match code(error) {
            0 => self.client.renew().await,
            401 => self.client.reload().await,
            _ => {}
        }
        let delay = if L::RARE_RETRY && failure != WatchFailure::Passing {
            self.rare_backoff.next_delay()
        } else {
            // It never ends; the other time stands in for the type's sake.
            self.backoff.next().unwrap_or(LIST_DEADLINE)
        };
        tokio::time::sleep(delay).await;
    }
}

/// The next event; `None` when the watch must be opened anew. A server that takes the connection and says nothing would be
/// waited for without end: that is an error once a `deadline` is over.
async fn next_event<K>(
    events: &mut Events<K>,
    deadline: Option<Duration>,
) -> Option<watcher::Result<Event<K>>> {
    let Some(deadline) = deadline else {
        return events.next().await;
    };
    let next = tokio::time::timeout(deadline, events.next()).await;
    next.unwrap_or_else(|elapsed| {
        let unanswered = kube::Error::Service(elapsed.into());
        Some(Err(watcher::Error::InitialListFailed(unanswered)))
    })
}

/// Whether a list was not answered in time ([`next_event`]).
fn is_unanswered(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::InitialListFailed(kube::Error::Service(reason)) if reason.is::<Elapsed>())
}

/// A new token needs a new client. A 410 instead of a watch would be asked for again for ever (inside the stream the
/// watcher lists anew by itself), and so would a watch of what is no longer there.
fn needs_new_start(error: &watcher::Error) -> bool {
    code(error) == 401
        || (matches!(error, watcher::Error::WatchStartFailed(_))
            && matches!(code(error), 404 | 410))
}

fn code(error: &watcher::Error) -> u16 {
    use watcher::Error::{InitialListFailed, WatchError, WatchFailed, WatchStartFailed};
    match error {
        InitialListFailed(kube::Error::Api(status))
        | WatchStartFailed(kube::Error::Api(status))
        | WatchFailed(kube::Error::Api(status)) => status.code,
        WatchError(status) => status.code,
        _ => 0,
    }
}
