//! A watch that goes on for ever, whatever the server does: pauses that grow and are never the same on two nodes, a token
//! that is read again, a list that is asked for again.

pub mod namespaces;
mod paced;
pub mod pods;
pub mod policies;
pub mod tenants;

use std::{sync::Arc, time::Duration};

use backon::{BackoffBuilder as _, ExponentialBuilder};
use futures::{StreamExt as _, stream::BoxStream};
use kube::{
    Api, Client, Resource,
    runtime::{
        utils::Backoff as _,
        watcher::{self, DefaultBackoff, Event},
    },
};
use serde::de::DeserializeOwned;

use self::paced::Watches;
use super::client::ApiClient;

/// A list that does not come in this time is asked for again.
const LIST_DEADLINE: Duration = Duration::from_secs(30);
/// First and longest pause after a refusal that only an operator can change; by chance up to twice as much.
const RARELY: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(600));

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

/// How often in a row the server must say that it does not know a resource before that is believed: one that is starting
/// may say so by mistake.
const ABSENCES: u32 = 2;

/// Counts the answers in a row by which the server does not know a resource.
#[derive(Default)]
struct Absences(u32);

impl Absences {
    /// The first such answer.
    fn begin(&mut self) {
        self.0 = 1;
    }

    /// One more; true when it is to be believed, once.
    fn again(&mut self) -> bool {
        self.0 += 1;
        self.0 == ABSENCES
    }
}

/// What listens to a watch.
pub trait WatchHandler {
    /// What is watched.
    type Object;

    /// Whether 403 and 404 are asked again rarely: nothing is lost that cannot wait for an operator.
    const RARE_RETRY: bool;

    /// Opens the watch anew.
    fn open(&self, client: Client) -> Events<Self::Object>;

    /// Takes an event of the watch.
    fn apply(&mut self, event: Event<Self::Object>);

    /// The watch has stopped. Called once for each kind of trouble until it works again.
    fn failed(&mut self, failure: WatchFailure, error: &watcher::Error);

    /// The same trouble as before.
    fn still_failing(&mut self, _failure: WatchFailure) {}

    /// It works again.
    fn recovered(&mut self);
}

/// What a watch brings.
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
    watcher::watcher(api, config).boxed()
}

/// Keeps a listener up to date for ever. Errors are logged once until it works again, counted, and followed by a pause.
pub async fn run_watcher<L: WatchHandler>(connection: &ApiClient, mut listener: L) {
    let rarely = || {
        ExponentialBuilder::default()
            .with_min_delay(RARELY.0)
            .with_max_delay(RARELY.1)
            .with_jitter()
            .without_max_times()
            .build()
    };
    let (mut backoff, mut patience) = (DefaultBackoff::default(), rarely());
    let watches = Watches::new(Arc::clone(&connection.counters));
    let mut ill = None;
    loop {
        let opened = connection.generation();
        let mut events = listener.open(watches.paced(connection.client()));
        let mut listed = false;
        loop {
            let next = if listed {
                events.next().await
            } else {
                // A server that takes the connection and says nothing would be waited for without end.
                match tokio::time::timeout(LIST_DEADLINE, events.next()).await {
                    Ok(next) => next,
                    Err(_) => {
                        connection.counters.watch_errors.add();
                        break;
                    }
                }
            };
            match next {
                Some(Ok(event)) => {
                    if matches!(event, Event::Init) {
                        listed = false;
                    } else if matches!(event, Event::InitDone) {
                        listed = true;
                    }
                    if !matches!(event, Event::Init) && ill.take().is_some() {
                        listener.recovered();
                        backoff.reset();
                        patience = rarely();
                    }
                    listener.apply(event);
                }
                Some(Err(error)) => {
                    let failure = match code(&error) {
                        403 => WatchFailure::Forbidden,
                        404 => WatchFailure::Absent,
                        _ => WatchFailure::Passing,
                    };
                    // What is not installed is not broken.
                    if !(L::RARE_RETRY && failure == WatchFailure::Absent) {
                        connection.counters.watch_errors.add();
                    }
                    if failure == WatchFailure::Forbidden {
                        connection.counters.forbidden.add();
                    }
                    if ill.replace(failure) == Some(failure) {
                        listener.still_failing(failure);
                    } else {
                        listener.failed(failure, &error);
                    }
                    let again = needs_new_start(&error);
                    if code(&error) == 0 {
                        connection.renew().await;
                    }
                    if code(&error) == 401 {
                        connection.reload().await;
                    }
                    let pause = if L::RARE_RETRY && failure != WatchFailure::Passing {
                        patience.next()
                    } else {
                        backoff.next()
                    };
                    // Neither ever ends; the default stands in for the type's sake.
                    tokio::time::sleep(pause.unwrap_or(LIST_DEADLINE)).await;
                    // Another watch may have seen to it.
                    if again || connection.generation() != opened {
                        break;
                    }
                }
                None => break,
            }
        }
    }
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
