//! A policy as it comes, good or not: its document is read by the policy store, which has a word on each version.

use std::{borrow::Cow, fmt::Debug, marker::PhantomData};

use evictd_policy::{API_VERSION, KIND, TENANT_KIND};
use k8s_openapi::{
    ClusterResourceScope, NamespaceResourceScope, apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::Resource;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// API group of policies.
pub const GROUP: &str = "evictd.io";
/// Version of the group.
pub const VERSION: &str = "v1alpha1";

/// A kind of policies.
pub trait PolicyKind: Clone + Debug + Send + 'static {
    /// Scope of the resource: of the cluster, or of a namespace.
    type Scope;
    /// `kind`.
    const KIND: &'static str;
    /// Name of the resource.
    const PLURAL: &'static str;
}

/// Policies of the cluster.
#[derive(Clone, Debug)]
pub struct ClusterPolicies;

impl PolicyKind for ClusterPolicies {
    type Scope = ClusterResourceScope;
    const KIND: &'static str = KIND;
    const PLURAL: &'static str = "evictionpolicies";
}

/// Policies of namespaces about their own pods.
#[derive(Clone, Debug)]
pub struct TenantPolicies;

impl PolicyKind for TenantPolicies {
    type Scope = NamespaceResourceScope;
    const KIND: &'static str = TENANT_KIND;
    const PLURAL: &'static str = "podevictionpolicies";
}

/// An object of such a kind.
#[derive(Clone, Debug)]
pub struct WatchedDocument<K> {
    metadata: ObjectMeta,
    /// All of it but annotations and managed fields, which may be far larger than the rest.
    pub document: Value,
    kind: PhantomData<K>,
}

impl<'de, K: PolicyKind> Deserialize<'de> for WatchedDocument<K> {
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
        if let Some(Value::Object(metadata)) = document.get_mut("metadata") {
            metadata.retain(|field, _| !["annotations", "managedFields"].contains(&&**field));
        }
        // The items of a list have neither.
        if let Some(fields) = document.as_object_mut() {
            for (field, value) in [("apiVersion", API_VERSION), ("kind", K::KIND)] {
                fields.entry(field).or_insert_with(|| value.into());
            }
        }
        Ok(Self {
            metadata,
            document,
            kind: PhantomData,
        })
    }
}

impl<K: PolicyKind> Resource for WatchedDocument<K> {
    type DynamicType = ();
    type Scope = K::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        K::KIND.into()
    }
    fn group((): &()) -> Cow<'_, str> {
        GROUP.into()
    }
    fn version((): &()) -> Cow<'_, str> {
        VERSION.into()
    }
    fn plural((): &()) -> Cow<'_, str> {
        K::PLURAL.into()
    }
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
