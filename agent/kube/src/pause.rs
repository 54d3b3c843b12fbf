//! Pauses in the API server: an annotation of the own Node, and a ConfigMap for all agents.
//!
//! Each is a watch of one object by its name. While a watch is broken the last known value holds: a paused node does
//! not go on because the API server is away, and one that was not paused does not stop.

use std::sync::Arc;

use evictd_config::ConfigMapName;
use evictd_policy::{PAUSED, PauseSource, PauseState};
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::{
    Api, Client,
    core::PartialObjectMeta,
    runtime::watcher::{self, Event},
};
use tokio::sync::watch as channel;

use super::client::ApiClient;
use crate::watch::{Events, WatchFailure, WatchHandler, follow, run_watcher};

/// Name of the entry of the ConfigMap.
const ENTRY: &str = "paused";

/// Follows the annotation of a Node for ever. `settled` becomes true when the server has answered.
pub async fn of_node(
    client: Arc<ApiClient>,
    node: String,
    pauses: Arc<PauseState>,
    settled: channel::Sender<bool>,
) {
    let open = Box::new(move |client| -> Events<_> {
        let fields = format!("metadata.name={node}");
        // Of a Node the metadata is the smallest part.
        let api = Api::<PartialObjectMeta<Node>>::all(client);
        follow(api, Some(&fields))
    });
    let value = |node: &PartialObjectMeta<Node>| {
        let annotations = node.metadata.annotations.as_ref();
        annotations.and_then(|a| a.get(PAUSED)).cloned()
    };
    let watch = PauseWatch::new(PauseSource::Node, pauses, settled, open, value);
    run_watcher(&client, watch).await;
}

/// Follows a ConfigMap for ever. `settled` becomes true when the server has answered.
pub async fn of_config_map(
    client: Arc<ApiClient>,
    map: ConfigMapName,
    pauses: Arc<PauseState>,
    settled: channel::Sender<bool>,
) {
    let open = Box::new(move |client| -> Events<_> {
        let fields = format!("metadata.name={}", map.name);
        let api = Api::<ConfigMap>::namespaced(client, &map.namespace);
        follow(api, Some(&fields))
    });
    let value = |map: &ConfigMap| map.data.as_ref().and_then(|d| d.get(ENTRY)).cloned();
    let watch = PauseWatch::new(PauseSource::ConfigMap, pauses, settled, open, value);
    run_watcher(&client, watch).await;
}

struct PauseWatch<K> {
    source: PauseSource,
    pauses: Arc<PauseState>,
    settled: channel::Sender<bool>,
    open: Box<dyn Fn(Client) -> Events<K> + Send>,
    value: fn(&K) -> Option<String>,
    /// Value that an unfinished list has brought so far.
    incoming: Option<String>,
}

impl<K> PauseWatch<K> {
    fn new(
        source: PauseSource,
        pauses: Arc<PauseState>,
        settled: channel::Sender<bool>,
        open: Box<dyn Fn(Client) -> Events<K> + Send>,
        value: fn(&K) -> Option<String>,
    ) -> Self {
        Self {
            source,
            pauses,
            settled,
            open,
            value,
            incoming: None,
        }
    }

    fn set(&self, value: Option<&str>) {
        let paused = match value {
            Some("true") => true,
            None | Some("false") => false,
            Some(value) => {
                let source = self.source.as_str();
                tracing::warn!(
                    source,
                    value,
                    "the pause value is neither true nor false: it pauses nothing"
                );
                false
            }
        };
        self.pauses.set(self.source, paused);
    }
}

impl<K> WatchHandler for PauseWatch<K> {
    type Object = K;

    const RARE_RETRY: bool = true;

    fn open(&self, client: Client) -> Events<K> {
        (self.open)(client)
    }

    fn apply(&mut self, event: Event<K>) {
        match event {
            Event::Init => self.incoming = None,
            Event::InitApply(object) => self.incoming = (self.value)(&object),
            Event::InitDone => {
                let value = self.incoming.take();
                self.set(value.as_deref());
                self.settled.send_replace(true);
            }
            Event::Apply(object) => self.set((self.value)(&object).as_deref()),
            Event::Delete(_) => self.set(None),
        }
    }

    fn failed(&mut self, failure: WatchFailure, error: &watcher::Error) {
        if failure != WatchFailure::Passing {
            self.settled.send_replace(true);
        }
        let source = self.source.as_str();
        tracing::warn!(source, %error, "the pause watch failed: the last known value stays in force");
    }

    fn recovered(&mut self) {
        tracing::info!(source = self.source.as_str(), "the pause watch works again");
    }
}
