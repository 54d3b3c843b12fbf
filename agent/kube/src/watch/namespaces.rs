//! Labels of namespaces, for the policies that ask for them: watched only while there is one, of their metadata only,
//! and of that only the labels that are asked for.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use evictd_policy::{Labels, Namespaces, PolicyEvaluator};
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client, ResourceExt as _,
    core::PartialObjectMeta,
    runtime::watcher::{self, Event},
};
use tokio::sync::watch as channel;

use crate::{
    client::ApiClient,
    watch::{Events, WatchFailure, WatchHandler, follow, run_watcher},
};

/// The labels that are known of every namespace, or that cannot be.
pub type Settled = Option<BTreeSet<String>>;

/// Keeps the labels up to date for ever, and says in `settled` which they are.
pub async fn run(
    client: Arc<ApiClient>,
    evaluator: Arc<PolicyEvaluator>,
    settled: channel::Sender<Settled>,
) {
    let mut keys = evaluator.namespace_keys();
    loop {
        let changed = async {
            loop {
                evaluator.replaced().await;
                let now = evaluator.namespace_keys();
                if now != keys {
                    break now;
                }
            }
        };
        let watched = async {
            if keys.is_empty() {
                evaluator.set_namespaces(nothing_known());
                settled.send_replace(Some(BTreeSet::new()));
                std::future::pending::<()>().await;
            }
            let handler = NamespaceWatch {
                evaluator: Arc::clone(&evaluator),
                settled: settled.clone(),
                keys: keys.clone(),
                known: evaluator.namespaces().labels,
                incoming: BTreeMap::new(),
            };
            run_watcher(&client, handler).await;
        };
        keys = tokio::select! {
            keys = changed => keys,
            // Never ends.
            () = watched => return,
        };
        tracing::info!(
            ?keys,
            "policies ask for other labels of namespaces than before"
        );
    }
}

/// The API server knows labels of which this agent has not heard.
pub(crate) fn nothing_known() -> Namespaces {
    Namespaces {
        labels: BTreeMap::new(),
        keys: Some(BTreeSet::new()),
    }
}

struct NamespaceWatch {
    evaluator: Arc<PolicyEvaluator>,
    settled: channel::Sender<Settled>,
    keys: BTreeSet<String>,
    known: BTreeMap<String, Labels>,
    /// Namespaces that an unfinished list has brought so far.
    incoming: BTreeMap<String, Labels>,
}

impl NamespaceWatch {
    fn settle(&self) {
        self.settled.send_replace(Some(self.keys.clone()));
    }

    fn tell(&self) {
        self.evaluator.set_namespaces(Namespaces {
            labels: self.known.clone(),
            keys: Some(self.keys.clone()),
        });
    }

    fn labels(&self, namespace: PartialObjectMeta<Namespace>) -> Option<(String, Labels)> {
        let mut labels = namespace.metadata.labels.unwrap_or_default();
        labels.retain(|key, _| self.keys.contains(key));
        Some((namespace.metadata.name?, labels))
    }
}

impl WatchHandler for NamespaceWatch {
    type Object = PartialObjectMeta<Namespace>;

    const RARE_RETRY: bool = true;

    fn open(&self, client: Client) -> Events<Self::Object> {
        follow(Api::all(client), None)
    }

    fn apply(&mut self, event: Event<Self::Object>) {
        match event {
            Event::Init => self.incoming.clear(),
            Event::InitApply(namespace) => {
                let labels = self.labels(namespace);
                self.incoming.extend(labels);
            }
            Event::InitDone => {
                self.known = std::mem::take(&mut self.incoming);
                self.tell();
                self.settle();
            }
            Event::Apply(namespace) => {
                let labels = self.labels(namespace);
                self.known.extend(labels);
                self.tell();
            }
            Event::Delete(namespace) => {
                self.known.remove(&namespace.name_any());
                self.tell();
            }
        }
    }

    fn failed(&mut self, failure: WatchFailure, error: &watcher::Error) {
        tracing::warn!(%error, "labels of namespaces cannot be seen now: those known hold");
        if failure != WatchFailure::Passing {
            self.settle();
        }
    }

    fn recovered(&mut self) {
        tracing::info!("the watch of namespaces works again");
    }
}
