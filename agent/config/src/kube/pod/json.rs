//! The fields of a `v1.Pod` that are read.

use std::collections::BTreeMap;

use evictd_engine::model::quantity::Quantity;
use serde::Deserialize;
use serde_json::Value;

use crate::kube::decode::null_default;

pub(super) type ResourceList = BTreeMap<String, Quantity>;

#[derive(Deserialize)]
pub(super) struct PodJson {
    #[serde(default, deserialize_with = "null_default")]
    pub(super) metadata: Metadata,
    #[serde(default, deserialize_with = "null_default")]
    pub(super) spec: Spec,
    #[serde(default, deserialize_with = "null_default")]
    pub(super) status: Status,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Metadata {
    #[serde(deserialize_with = "null_default")]
    pub(super) uid: String,
    #[serde(deserialize_with = "null_default")]
    pub(super) namespace: String,
    #[serde(deserialize_with = "null_default")]
    pub(super) name: String,
    #[serde(deserialize_with = "null_default")]
    pub(super) labels: BTreeMap<String, String>,
    #[serde(deserialize_with = "null_default")]
    pub(super) annotations: BTreeMap<String, String>,
    #[serde(deserialize_with = "null_default")]
    pub(super) owner_references: Vec<OwnerReference>,
    pub(super) creation_timestamp: Option<String>,
    pub(super) deletion_timestamp: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct OwnerReference {
    #[serde(deserialize_with = "null_default")]
    pub(super) kind: String,
    #[serde(deserialize_with = "null_default")]
    pub(super) name: String,
    #[serde(deserialize_with = "null_default")]
    pub(super) uid: String,
    pub(super) controller: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Spec {
    pub(super) priority: Option<i32>,
    pub(super) termination_grace_period_seconds: Option<i64>,
    pub(super) restart_policy: Option<String>,
    #[serde(deserialize_with = "null_default")]
    pub(super) containers: Vec<ContainerJson>,
    #[serde(deserialize_with = "null_default")]
    pub(super) init_containers: Vec<ContainerJson>,
    #[serde(deserialize_with = "null_default")]
    pub(super) volumes: Vec<VolumeJson>,
    pub(super) resources: Option<Requirements>,
    #[serde(deserialize_with = "null_default")]
    pub(super) overhead: ResourceList,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Status {
    #[serde(deserialize_with = "null_default")]
    pub(super) qos_class: String,
    #[serde(deserialize_with = "null_default")]
    pub(super) phase: String,
    #[serde(rename = "podIP", deserialize_with = "null_default")]
    pub(super) pod_ip: String,
    #[serde(deserialize_with = "null_default")]
    pub(super) conditions: Vec<ConditionJson>,
    #[serde(deserialize_with = "null_default")]
    pub(super) container_statuses: Vec<ContainerStatusJson>,
    #[serde(deserialize_with = "null_default")]
    pub(super) init_container_statuses: Vec<ContainerStatusJson>,
    #[serde(deserialize_with = "null_default")]
    pub(super) ephemeral_container_statuses: Vec<ContainerStatusJson>,
    /// Resources that the kubelet has allocated to the whole pod, with its overhead (Kubernetes 1.36).
    pub(super) allocated_resources: Option<ResourceList>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ContainerStatusJson {
    #[serde(deserialize_with = "null_default")]
    pub(super) name: String,
    /// The runtime's name, `://`, and its id of the container; empty before that is made.
    #[serde(rename = "containerID", deserialize_with = "null_default")]
    pub(super) container_id: String,
    #[serde(deserialize_with = "null_default")]
    pub(super) state: ContainerStateJson,
    /// The requests that the kubelet has allocated; left out where there are none.
    pub(super) allocated_resources: Option<ResourceList>,
    /// Resources that are in force; kubelets that do not resize pods in place leave them out.
    pub(super) resources: Option<Requirements>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct ContainerStateJson {
    /// Set while the container waits to be started.
    pub(super) waiting: Option<WaitingJson>,
    /// Set when it has ended.
    pub(super) terminated: Option<TerminatedJson>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct TerminatedJson {
    pub(super) exit_code: i32,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct WaitingJson {
    #[serde(deserialize_with = "null_default")]
    pub(super) reason: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct ConditionJson {
    #[serde(rename = "type", deserialize_with = "null_default")]
    pub(super) kind: String,
    #[serde(deserialize_with = "null_default")]
    pub(super) status: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ContainerJson {
    #[serde(deserialize_with = "null_default")]
    pub(super) name: String,
    #[serde(deserialize_with = "null_default")]
    pub(super) resources: Requirements,
    pub(super) restart_policy: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Requirements {
    #[serde(deserialize_with = "null_default")]
    pub(super) requests: ResourceList,
    #[serde(deserialize_with = "null_default")]
    pub(super) limits: ResourceList,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct VolumeJson {
    #[serde(deserialize_with = "null_default")]
    pub(super) name: String,
    pub(super) host_path: Option<Value>,
    pub(super) git_repo: Option<Value>,
    pub(super) config_map: Option<Value>,
    pub(super) empty_dir: Option<EmptyDirJson>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct EmptyDirJson {
    #[serde(deserialize_with = "null_default")]
    pub(super) medium: String,
    pub(super) size_limit: Option<Quantity>,
}
