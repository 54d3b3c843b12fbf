//! One watch, limited to this node, from the API server's cache.
//!
//! The list names `resourceVersion=0`, which the server answers from memory without asking etcd; changes then come
//! through one watch with bookmarks, so that it can go on where it stopped. A list that is older than what is known
//! already does no harm: it is joined with cgroups that exist, by UID.

use std::{
    borrow::Cow,
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::StreamExt as _;
use k8s_openapi::{api::core::v1, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Api, Resource,
    runtime::{
        utils::Backoff as _,
        watcher::{self, DefaultBackoff, Event, watcher},
    },
};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use tokio::sync::Notify;

use super::{client::Connection, roster::Roster};
use crate::{
    engine::Pod,
    pods::{JsonError, spec},
};

/// A list that does not come in this time is asked for again.
const LIST_DEADLINE: Duration = Duration::from_secs(30);

/// The roster, and the bell that rings when it has changed.
#[derive(Debug, Default)]
pub struct Shared {
    roster: Mutex<Roster>,
    /// Rings when the roster has changed.
    pub changed: Notify,
    /// The same for the reporter, which waits for the names of pods that only their cgroup told of.
    pub changed_for_reports: Notify,
}

impl Shared {
    /// Looks at the roster or changes it.
    pub fn with<T>(&self, f: impl FnOnce(&mut Roster) -> T) -> T {
        // A panic while it was held has ended the agent already.
        f(&mut self.roster.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A pod as it comes: what the engine needs of it, or why that cannot be read.
#[derive(Clone, Debug)]
pub struct WatchedPod {
    metadata: ObjectMeta,
    pod: Result<Pod, JsonError>,
    is_over: bool,
}

impl<'de> Deserialize<'de> for WatchedPod {
    /// Never fails on a pod: one that cannot be read must not hide the others.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let text = |field: &str| value["metadata"][field].as_str().map(str::to_owned);
        Ok(Self {
            metadata: ObjectMeta {
                name: text("name"),
                namespace: text("namespace"),
                resource_version: text("resourceVersion"),
                ..ObjectMeta::default()
            },
            is_over: matches!(
                value["status"]["phase"].as_str(),
                Some("Succeeded" | "Failed")
            ),
            pod: spec::read_pod("pod", &value),
        })
    }
}

/// As [`v1::Pod`].
impl Resource for WatchedPod {
    type DynamicType = ();
    type Scope = <v1::Pod as Resource>::Scope;

    fn kind(dt: &()) -> Cow<'_, str> {
        v1::Pod::kind(dt)
    }
    fn group(dt: &()) -> Cow<'_, str> {
        v1::Pod::group(dt)
    }
    fn version(dt: &()) -> Cow<'_, str> {
        v1::Pod::version(dt)
    }
    fn plural(dt: &()) -> Cow<'_, str> {
        v1::Pod::plural(dt)
    }
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// Keeps the roster up to date for ever. Errors are logged once until it works again, counted, and followed by a pause
/// that grows and is never the same on two nodes.
pub async fn run(connection: Arc<Connection>, node: String, shared: Arc<Shared>) {
    let mut backoff = DefaultBackoff::default();
    let mut ill = false;
    loop {
        let api: Api<WatchedPod> = Api::all(connection.client());
        let mut config = watcher::Config::default()
            .fields(&format!("spec.nodeName={node}"))
            .any_semantic();
        // With a limit kube leaves out resourceVersion=0, and the list would go through to etcd.
        config.page_size = None;
        let mut events = pin!(watcher(api, config));
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
                        connection.counters.lists.add();
                    } else if matches!(event, Event::InitDone) {
                        listed = true;
                    }
                    if !matches!(event, Event::Init) && std::mem::take(&mut ill) {
                        tracing::info!("the watch works again");
                        backoff.reset();
                    }
                    take(&connection, &shared, event);
                }
                Some(Err(error)) => {
                    connection.counters.watch_errors.add();
                    if !std::mem::replace(&mut ill, true) {
                        tracing::warn!(%error, "the watch of this node's pods has stopped: the cgroups tell who runs here");
                    }
                    let again = needs_new_start(&error);
                    if code(&error) == 401 {
                        connection.reload().await;
                    }
                    // The backoff never ends; the default stands in for the type's sake.
                    tokio::time::sleep(backoff.next().unwrap_or(LIST_DEADLINE)).await;
                    if again {
                        break;
                    }
                }
                None => break,
            }
        }
    }
}

/// A new token needs a new client. A 410 instead of a watch would be asked for again for ever (inside the stream the
/// watcher lists anew by itself).
fn needs_new_start(error: &watcher::Error) -> bool {
    code(error) == 401
        || (matches!(error, watcher::Error::WatchStartFailed(_)) && code(error) == 410)
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

fn take(connection: &Connection, shared: &Shared, event: Event<WatchedPod>) {
    match event {
        Event::Init => shared.with(Roster::begin),
        Event::InitDone => shared.with(Roster::end),
        Event::InitApply(pod) => return put(connection, shared, pod),
        Event::Apply(pod) => put(connection, shared, pod),
        Event::Delete(pod) => {
            if let Ok(pod) = pod.pod {
                shared.with(|roster| roster.remove(&pod));
            }
        }
    }
    shared.changed.notify_one();
    // Rings only for who waits at this moment: the reporter does not need to know what has changed while it worked.
    shared.changed_for_reports.notify_waiters();
}

fn put(connection: &Connection, shared: &Shared, watched: WatchedPod) {
    let counters = &connection.counters;
    let name = || watched.metadata.name.clone().unwrap_or_default();
    match watched.pod {
        Err(ref error) => {
            if counters.pods_unreadable.add_first() {
                tracing::warn!(pod = name(), %error, "a pod cannot be read and is left out");
            }
        }
        // Its containers have ended: there is nothing left to evict.
        Ok(pod) if watched.is_over => shared.with(|roster| roster.remove(&pod)),
        Ok(pod) => {
            let full_name = pod.to_string();
            let oddities = shared.with(|roster| roster.put(pod));
            if oddities.no_uid && counters.pods_without_uid.add_first() {
                tracing::warn!(pod = full_name, "a pod without UID is left out");
            }
            if oddities.mirror && counters.mirror_pods.add_first() {
                tracing::info!(
                    pod = full_name,
                    "static pods are here; they are not evicted"
                );
            }
            if oddities.terminating && counters.terminating_pods.add_first() {
                tracing::info!(
                    pod = full_name,
                    "pods that are being deleted already are candidates as long as they hold memory"
                );
            }
        }
    }
}
