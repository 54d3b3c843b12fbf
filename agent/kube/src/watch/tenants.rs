//! The policies of namespaces about their own pods: watched where the configuration wants them.

use std::sync::Arc;

use evictd_policy::PolicyStore;
use kube::{
    Api, Client,
    runtime::watcher::{self, Event},
};
use serde_json::Value;
use tokio::sync::watch as channel;

use crate::{
    client::ApiClient,
    policy_document::{GROUP, PolicyKind as _, TenantPolicies, WatchedDocument},
    watch::{Events, WatchFailure, WatchHandler, follow, run_watcher},
};

type Watched = WatchedDocument<TenantPolicies>;

/// Keeps the policies up to date for ever. `settled` becomes true when the server has answered.
pub async fn run(
    client: Arc<ApiClient>,
    policies: Arc<PolicyStore>,
    settled: channel::Sender<bool>,
) {
    let handler = Handler {
        policies,
        settled,
        incoming: Vec::new(),
    };
    run_watcher(&client, handler).await;
}

struct Handler {
    policies: Arc<PolicyStore>,
    settled: channel::Sender<bool>,
    /// Policies that an unfinished list has brought so far.
    incoming: Vec<Value>,
}

impl WatchHandler for Handler {
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
                let documents = std::mem::take(&mut self.incoming);
                self.policies.replace_tenants(&documents);
                self.settled.send_replace(true);
            }
            Event::Apply(policy) => self.policies.put_tenant(&policy.document),
            Event::Delete(policy) => self.policies.remove_tenant(&policy.document),
        }
    }

    fn failed(&mut self, failure: WatchFailure, error: &watcher::Error) {
        if failure == WatchFailure::Absent {
            tracing::info!(
                "the API server has no {}.{GROUP} (deploy/crds)",
                TenantPolicies::PLURAL
            );
        } else {
            tracing::warn!(%error, "the watch of tenants' policies has stopped: those known stay in force");
        }
        if failure != WatchFailure::Passing {
            self.settled.send_replace(true);
        }
    }

    fn absent(&mut self) {
        self.policies.replace_tenants(&[]);
    }

    fn recovered(&mut self) {
        tracing::info!("the watch of tenants' policies works again");
    }

    fn needs_list(&self) -> bool {
        self.policies.tenants_need_list()
    }
}
