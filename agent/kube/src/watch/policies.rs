//! The policies of the API server: one watch of all of them, since there are few and they hold for every node.

use std::{sync::Arc, time::Duration};

use evictd_policy::PolicyStore;
use kube::{
    Api, Client,
    runtime::watcher::{self, Event},
};
use serde_json::Value;
use tokio::sync::watch as channel;

use crate::{
    client::ApiClient,
    policy_document::{ClusterPolicies, GROUP, WatchedDocument},
    policy_status::StatusWriter,
    watch::{Events, WatchFailure, WatchHandler, follow, run_watcher},
};

type Watched = WatchedDocument<ClusterPolicies>;

/// How often it is looked whether a policy has got its first pod here. Nothing is done while nothing has changed.
const FIRST_POD_INTERVAL: Duration = Duration::from_secs(2);

/// Keeps the policy store up to date for ever, and has the status of each policy written. `settled` becomes true when
/// the server has answered.
pub async fn run(
    client: Arc<ApiClient>,
    policies: Arc<PolicyStore>,
    writer: Arc<StatusWriter>,
    settled: channel::Sender<bool>,
) {
    let handler = Policies {
        policies: Arc::clone(&policies),
        writer: Arc::clone(&writer),
        settled,
        incoming: Vec::new(),
    };
    let looking = async {
        loop {
            tokio::time::sleep(FIRST_POD_INTERVAL).await;
            if policies.look_for_pods() {
                writer.consider(&policies.statuses());
            }
        }
    };
    tokio::select! {
        () = run_watcher(&client, handler) => {}
        () = looking => {}
    }
}

struct Policies {
    policies: Arc<PolicyStore>,
    writer: Arc<StatusWriter>,
    settled: channel::Sender<bool>,
    /// Policies that an unfinished list has brought so far.
    incoming: Vec<Value>,
}

impl WatchHandler for Policies {
    type Object = Watched;

    const RARE_RETRY: bool = true;

    fn open(&self, client: Client) -> Events<Watched> {
        follow(Api::all(client), None)
    }

    fn apply(&mut self, event: Event<Watched>) {
        match event {
            Event::Init => self.incoming.clear(),
            Event::InitApply(policy) => self.incoming.push(policy.document),
            Event::InitDone => {
                let mut documents = std::mem::take(&mut self.incoming);
                // Every agent leaves out the same ones if there are too many.
                documents.sort_by(|a, b| name(a).cmp(name(b)));
                let statuses = self.policies.replace(&documents);
                self.writer.retain(|known| {
                    documents
                        .binary_search_by(|document| name(document).cmp(known))
                        .is_ok()
                });
                let kept = |document: &&Value| {
                    let name = name(document);
                    statuses
                        .binary_search_by(|v| v.name.as_str().cmp(name))
                        .is_ok()
                };
                let kept = documents.iter().filter(kept);
                kept.for_each(|document| self.writer.see(document));
                self.writer.consider(&statuses);
                self.settled.send_replace(true);
            }
            Event::Apply(policy) => {
                if self.policies.put(&policy.document).is_some() {
                    self.writer.see(&policy.document);
                }
                // One that comes may contradict others that were there.
                self.writer.consider(&self.policies.statuses());
            }
            Event::Delete(policy) => {
                let gone = name(&policy.document);
                tracing::info!(policy = gone, "a policy is gone");
                self.policies.remove(gone);
                self.writer.retain(|known| known != gone);
                self.writer.consider(&self.policies.statuses());
            }
        }
    }

    fn failed(&mut self, failure: WatchFailure, error: &watcher::Error) {
        match failure {
            WatchFailure::Absent => tracing::info!(
                "the API server has no evictionpolicies.{GROUP} (deploy/crds): policies come from files alone"
            ),
            WatchFailure::Forbidden => tracing::error!(
                %error,
                "a right is missing: list and watch evictionpolicies.{GROUP}; the policies known stay in force"
            ),
            WatchFailure::Passing => {
                tracing::warn!(%error, "the watch of policies has stopped: those known stay in force");
                return;
            }
        }
        self.settled.send_replace(true);
    }

    fn absent(&mut self) {
        self.policies.replace(&[]);
    }

    fn recovered(&mut self) {
        tracing::info!("the watch of policies works again");
    }

    fn needs_list(&self) -> bool {
        self.policies.needs_list()
    }
}

fn name(document: &Value) -> &str {
    document["metadata"]["name"].as_str().unwrap_or_default()
}
