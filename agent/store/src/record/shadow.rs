//! What shadow mode is compared with: what it would have written on the Node, and what the kubelet did.

use serde::{Deserialize, Serialize};

/// The API server has shown that the kubelet has evicted a pod of this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KubeletEviction {
    /// Time at which the eviction was seen, as RFC 3339.
    pub time: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The pod's UID.
    pub uid: String,
    /// `status.message`: why, in the kubelet's words.
    pub message: String,
}

impl KubeletEviction {
    /// The pod, as `namespace/name`.
    pub fn pod(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// Conditions that the Node would have had from then on, had the agent not been in shadow mode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ShadowNode {
    /// Names the moment.
    pub id: String,
    /// Time of the change, as RFC 3339.
    pub time: String,
    /// The conditions' types, without `Evictd`; none where they would have gone.
    pub conditions: Vec<String>,
    /// Why, for people.
    pub message: String,
}
