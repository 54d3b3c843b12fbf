//! A list and then one watch after the other, as a stream: as kube's own `watcher`, with one difference. That one opens a watch anew
//! inside the stream when it ends, at once and without an item. Where a server or a proxy closes each watch as soon as it is open, requests
//! would follow each other without a pause. Here such an end is an error, which is counted and followed by a pause.

use std::{collections::VecDeque, fmt::Debug, io, time::Duration};

use futures::{
    StreamExt as _,
    stream::{self, BoxStream},
};
use kube::{
    Api, Resource,
    api::{ListParams, WatchEvent, WatchParams},
    runtime::watcher::{Error, Event},
};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout};

/// What a watch brings: an event, or `None` where it is open and nothing has changed.
pub type Events<K> = BoxStream<'static, Result<Option<Event<K>>, Error>>;

/// A watch that ends sooner, without a line, has failed: the server ends it after minutes. client-go has one second for this
/// (`reflector.go`, "very short watch").
const SHORT: Duration = Duration::from_secs(5);
/// How long the server is asked to keep a watch open, in seconds.
const WATCH_SECONDS: u32 = 290;
/// A watch that is silent for so long has outlived that: its connection is dead.
const LONGEST_SILENCE: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 5);

/// Follows the objects that a field selector selects, from the API server's cache.
pub fn follow<K>(api: Api<K>, fields: Option<&str>) -> Events<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let source = Source {
        api,
        fields: fields.map(str::to_owned),
    };
    let steps = stream::unfold((source, State::New), |(source, mut state)| async move {
        loop {
            let (item, next) = source.step(state).await;
            state = next;
            if let Some(item) = item {
                return Some((item, (source, state)));
            }
        }
    });
    Box::pin(steps)
}

/// What comes next.
enum State<K> {
    New,
    List,
    Listed {
        objects: VecDeque<K>,
        version: String,
    },
    Open {
        version: String,
    },
    Watching(Watching<K>),
}

struct Watching<K> {
    /// Where the next watch goes on.
    version: String,
    lines: BoxStream<'static, kube::Result<WatchEvent<K>>>,
    opened: Instant,
    is_silent: bool,
}

type Step<K> = (Option<Result<Option<Event<K>>, Error>>, State<K>);

struct Source<K> {
    api: Api<K>,
    fields: Option<String>,
}

impl<K> Source<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    async fn step(&self, state: State<K>) -> Step<K> {
        match state {
            State::New => (Some(Ok(Some(Event::Init))), State::List),
            State::List => match self.list().await {
                Ok(listed) => (None, listed),
                Err(error) => (Some(Err(error)), State::New),
            },
            State::Listed {
                mut objects,
                version,
            } => match objects.pop_front() {
                Some(object) => (
                    Some(Ok(Some(Event::InitApply(object)))),
                    State::Listed { objects, version },
                ),
                None => (Some(Ok(Some(Event::InitDone))), State::Open { version }),
            },
            State::Open { version } => match self.open(&version).await {
                Ok(lines) => {
                    let watching = Watching {
                        version,
                        lines,
                        opened: Instant::now(),
                        is_silent: true,
                    };
                    (None, State::Watching(watching))
                }
                Err(error) => (
                    Some(Err(Error::WatchStartFailed(error))),
                    State::Open { version },
                ),
            },
            State::Watching(watching) => watching.step().await,
        }
    }

    async fn list(&self) -> Result<State<K>, Error> {
        let mut wanted = ListParams {
            field_selector: self.fields.clone(),
            // Without a limit, with which the list would go through to etcd.
            ..ListParams::default().match_any()
        };
        let mut objects = VecDeque::new();
        loop {
            let page = self.api.list(&wanted).await;
            let page = page.map_err(Error::InitialListFailed)?;
            objects.extend(page.items);
            let rest = page.metadata.continue_.filter(|token| !token.is_empty());
            if let Some(token) = rest {
                // The token names the version.
                wanted.resource_version = None;
                wanted.version_match = None;
                wanted.continue_token = Some(token);
                continue;
            }
            let version = page.metadata.resource_version.unwrap_or_default();
            return match version.is_empty() {
                true => Err(Error::NoResourceVersion),
                false => Ok(State::Listed { objects, version }),
            };
        }
    }

    async fn open(
        &self,
        version: &str,
    ) -> kube::Result<BoxStream<'static, kube::Result<WatchEvent<K>>>> {
        let mut wanted = WatchParams::default().timeout(WATCH_SECONDS);
        wanted.field_selector.clone_from(&self.fields);
        Ok(self.api.watch(&wanted, version).await?.boxed())
    }
}

impl<K: Resource> Watching<K> {
    async fn step(mut self) -> Step<K> {
        let line = timeout(LONGEST_SILENCE, self.lines.next()).await;
        let Some(line) = line.unwrap_or(None) else {
            return self.end();
        };
        self.is_silent = false;
        let (is_gone, object) = match line {
            Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) => (false, object),
            Ok(WatchEvent::Deleted(object)) => (true, object),
            Ok(WatchEvent::Bookmark(mark)) => {
                self.version = mark.metadata.resource_version;
                return (Some(Ok(None)), State::Watching(self));
            }
            Ok(WatchEvent::Error(status)) => {
                // The server does not know any more what was at this version.
                let next = match status.code {
                    410 => State::New,
                    _ => State::Watching(self),
                };
                return (Some(Err(Error::WatchError(status))), next);
            }
            Err(error) => return (Some(Err(Error::WatchFailed(error))), State::Watching(self)),
        };
        match object.meta().resource_version.clone() {
            Some(version) if !version.is_empty() => self.version = version,
            _ => return (Some(Err(Error::NoResourceVersion)), State::New),
        }
        let event = match is_gone {
            true => Event::Delete(object),
            false => Event::Apply(object),
        };
        (Some(Ok(Some(event))), State::Watching(self))
    }

    fn end(self) -> Step<K> {
        let lasted = self.opened.elapsed();
        let next = State::Open {
            version: self.version,
        };
        if !self.is_silent {
            return (None, next);
        }
        if lasted >= SHORT {
            return (Some(Ok(None)), next);
        }
        let reason = format!("it has ended after {lasted:?} without a line");
        let error = kube::Error::Service(io::Error::other(reason).into());
        (Some(Err(Error::WatchFailed(error))), next)
    }
}
