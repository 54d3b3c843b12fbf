//! `PodEvictionPolicy`: what the owners of a namespace ask for their own pods. It can make pods go earlier, and ask to
//! spare them for some time after their creation; the configuration bounds that time. It cannot spare pods in any other
//! way, and does not touch pods of other namespaces.

use std::time::Duration;

use evictd_config::ConfigError;
use evictd_engine::Pod;
use serde_json::{Value, json};

use crate::{
    Selector,
    model::{API_VERSION, open},
};

/// `kind` of a namespace's policy.
pub const TENANT_KIND: &str = "PodEvictionPolicy";
/// Lowest order number.
const LOWEST: i16 = -1000;

/// A policy of one namespace about its own pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodEvictionPolicy {
    /// `metadata.namespace`: the policy is about pods of this namespace only.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// `spec.selector`: over the pod's labels; without it all pods of the namespace.
    pub pods: Selector,
    /// Request of the policy.
    pub request: TenantRequest,
}

/// Requests that the policies of a namespace make for a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TenantRequest {
    /// `spec.order`: added to the order number of other policies. It is never above 0, so that the pod can only go
    /// earlier.
    pub order: i16,
    /// `spec.grace`: how long after its creation the pod asks to be spared.
    pub grace: Duration,
}

impl TenantRequest {
    /// Combines both requests: the earlier order, the longer grace.
    pub fn and(self, other: Self) -> Self {
        Self {
            order: self.order.min(other.order),
            grace: self.grace.max(other.grace),
        }
    }

    /// Adds the request's order number to that of other policies.
    pub fn apply(self, order: i16) -> i16 {
        order.saturating_add(self.order).max(LOWEST)
    }

    /// Whether the pod is still spared at `now`, if the configuration grants `most` at most. `created` and `now` are
    /// seconds since 1970; the node's clock may be behind, and the pod is `known_for` as long at least. A pod whose
    /// creation is not known is not spared.
    pub fn spares(
        self,
        created: Option<i64>,
        now: i64,
        known_for: Duration,
        most: Duration,
    ) -> bool {
        let age = created.map(|created| u64::try_from(now.saturating_sub(created)).unwrap_or(0));
        let age = age.map(|seconds| Duration::from_secs(seconds).max(known_for));
        age.is_some_and(|age| age < self.grace.min(most))
    }
}

impl PodEvictionPolicy {
    /// Reads a policy as the API server has it.
    ///
    /// # Errors
    /// The first mistake, with its field.
    pub fn read(document: Value) -> Result<Self, ConfigError> {
        let (mut fields, mut metadata) = open(document, TENANT_KIND)?;
        let (namespace, name) = (
            metadata.required_text("namespace")?,
            metadata.required_text("name")?,
        );
        let mut spec = fields.required_object("spec")?;
        fields.deny_unknown_fields()?;
        let order = spec.int32("order")?.unwrap_or(0);
        let earlier = i16::try_from(order)
            .ok()
            .filter(|order| (LOWEST..=0).contains(order));
        let policy = Self {
            namespace,
            name,
            pods: Selector::take(&mut spec, "selector")?,
            request: TenantRequest {
                order: earlier.ok_or_else(|| {
                    let reason = format!(
                        "must lie between {LOWEST} and 0: a tenant's pods can go earlier, not later"
                    );
                    ConfigError::value("spec.order", &order.into(), reason)
                })?,
                grace: spec.duration("grace")?.unwrap_or_default(),
            },
        };
        spec.deny_unknown_fields()?;
        Ok(policy)
    }

    /// The policy as a document, for [`Self::read`].
    pub fn to_document(&self) -> Value {
        json!({
            "apiVersion": API_VERSION,
            "kind": TENANT_KIND,
            "metadata": {"namespace": self.namespace, "name": self.name},
            "spec": {
                "selector": {"matchExpressions": self.pods.to_json()},
                "order": self.request.order,
                "grace": format!("{}ms", self.request.grace.as_millis()),
            },
        })
    }

    /// Whether the policy is about this pod.
    pub fn is_about(&self, pod: &Pod) -> bool {
        self.namespace == pod.namespace && self.pods.matches(&pod.labels)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(spec: Value) -> Result<PodEvictionPolicy, String> {
        let document = json!({
            "apiVersion": API_VERSION,
            "kind": TENANT_KIND,
            "metadata": {"namespace": "shop", "name": "p", "uid": "u"},
            "spec": spec,
        });
        PodEvictionPolicy::read(document).map_err(|e| e.to_string())
    }

    #[test]
    fn it_can_only_ask_for_less() {
        let policy = read(json!({
            "selector": {"matchLabels": {"app": "batch"}}, "order": -100, "grace": "10m",
        }))
        .expect("a policy");
        assert_eq!(
            PodEvictionPolicy::read(policy.to_document()).expect("the same"),
            policy
        );
        let mut pod = Pod {
            namespace: "shop".into(),
            ..Pod::default()
        };
        pod.labels.insert("app".into(), "batch".into());
        assert!(policy.is_about(&pod));
        pod.namespace = "other".into();
        assert!(!policy.is_about(&pod), "another namespace's");
        for (spec, expected) in [
            (
                json!({"order": 1}),
                "spec.order: 1: must lie between -1000 and 0",
            ),
            (json!({"evict": "Never"}), "spec.evict: unknown field"),
            (json!({"gates": []}), "spec.gates: unknown field"),
            (
                json!({"grace": "5"}),
                "spec.grace: \"5\": a unit is missing",
            ),
        ] {
            let error = read(spec).expect_err(expected);
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn a_grace_is_as_long_as_the_cluster_grants() {
        let request = |order, seconds| TenantRequest {
            order,
            grace: Duration::from_secs(seconds),
        };
        let most = Duration::from_secs(300);
        let asked = request(-5, 600).and(request(-100, 60));
        assert_eq!((asked.order, asked.grace.as_secs()), (-100, 600));
        assert_eq!((asked.apply(20), asked.apply(-950)), (-80, -1000));
        let spares = |created, now, known_for, most| {
            asked.spares(created, now, Duration::from_secs(known_for), most)
        };
        assert!(spares(Some(1000), 1299, 50, most));
        assert!(!spares(Some(1000), 1300, 50, most));
        assert!(
            !spares(Some(1000), 1100, 50, Duration::ZERO),
            "none is granted"
        );
        assert!(!spares(None, 1100, 50, most));
        // The node's clock is behind that of the API server.
        assert!(spares(Some(1000), 400, 299, most));
        assert!(!spares(Some(1000), 400, 300, most));
    }
}
