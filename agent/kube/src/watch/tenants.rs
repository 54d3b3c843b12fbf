//! The policies of namespaces about their own pods: watched where the configuration wants them.

use std::{borrow::Cow, sync::Arc};

use evictd_policy::{API_VERSION, PolicyStore, TENANT_KIND};
use k8s_openapi::{NamespaceResourceScope, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Api, Client, Resource,
    runtime::watcher::{self, Event},
};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use tokio::sync::watch as channel;

use crate::{
    client::ApiClient,
    policy_status::{GROUP, VERSION},
    watch::{Absences, Events, WatchFailure, WatchHandler, follow, run_watcher},
};

/// Name of the resource.
pub const TENANT_PLURAL: &str = "podevictionpolicies";

/// A policy as it comes, good or not.
#[derive(Clone, Debug)]
pub struct WatchedTenantPolicy {
    metadata: ObjectMeta,
    document: Value,
}

impl<'de> Deserialize<'de> for WatchedTenantPolicy {
    /// Never fails on an object: one that cannot be read must not hide the others.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut document = Value::deserialize(deserializer)?;
        let text = |field: &str| document["metadata"][field].as_str().map(str::to_owned);
        let metadata = ObjectMeta {
            name: text("name"),
            namespace: text("namespace"),
            resource_version: text("resourceVersion"),
            ..ObjectMeta::default()
        };
        // The items of a list have neither.
        if let Some(fields) = document.as_object_mut() {
            for (field, value) in [("apiVersion", API_VERSION), ("kind", TENANT_KIND)] {
                fields.entry(field).or_insert_with(|| value.into());
            }
        }
        Ok(Self { metadata, document })
    }
}

impl Resource for WatchedTenantPolicy {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        TENANT_KIND.into()
    }
    fn group((): &()) -> Cow<'_, str> {
        GROUP.into()
    }
    fn version((): &()) -> Cow<'_, str> {
        VERSION.into()
    }
    fn plural((): &()) -> Cow<'_, str> {
        TENANT_PLURAL.into()
    }
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// Keeps the policies up to date for ever. `settled` becomes true when the server has answered.
pub async fn run(
    connection: Arc<ApiClient>,
    policies: Arc<PolicyStore>,
    settled: channel::Sender<bool>,
) {
    let listener = TenantPolicies {
        policies,
        settled,
        incoming: Vec::new(),
        absences: Absences::default(),
    };
    run_watcher(&connection, listener).await;
}

struct TenantPolicies {
    policies: Arc<PolicyStore>,
    settled: channel::Sender<bool>,
    /// What a list has brought so far that is not at its end.
    incoming: Vec<Value>,
    absences: Absences,
}

impl WatchHandler for TenantPolicies {
    type Object = WatchedTenantPolicy;

    const RARE_RETRY: bool = true;

    fn open(&self, client: Client) -> Events<WatchedTenantPolicy> {
        follow(Api::all(client), None)
    }

    fn apply(&mut self, event: Event<WatchedTenantPolicy>) {
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
            tracing::info!("the API server has no {TENANT_PLURAL}.{GROUP} (deploy/crds)");
            self.absences.begin();
        } else {
            tracing::warn!(%error, "the watch of tenants' policies has stopped: those known stay in force");
        }
        if failure != WatchFailure::Passing {
            self.settled.send_replace(true);
        }
    }

    fn still_failing(&mut self, failure: WatchFailure) {
        if failure == WatchFailure::Absent && self.absences.again() {
            self.policies.replace_tenants(&[]);
        }
    }

    fn recovered(&mut self) {
        tracing::info!("the watch of tenants' policies works again");
    }
}
