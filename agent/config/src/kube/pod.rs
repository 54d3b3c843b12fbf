//! Makes the engine's pod from a `v1.Pod`. Requests are computed as by the kubelet 1.36.

use std::collections::BTreeMap;

use evictd_engine::{
    ComputeResources, Container, ContainerKind, EmptyDir, Owner, Pod, QosClass, Volume,
};
use serde_json::Value;

pub use self::document::PodDocument;
use crate::kube::decode::{JsonError, read, unix_seconds};
use json::{ContainerJson, ContainerStatusJson, OwnerReference, PodJson, Spec, Status, VolumeJson};

mod allocation;
mod document;
mod json;
mod resources;

/// Annotation with the source from which the kubelet has the pod. Every source but `api` makes it a static pod.
const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
/// Annotation of a mirror pod, which stands for a static pod in the API server.
const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";

const MEMORY: &str = "memory";
const CPU: &str = "cpu";
const EPHEMERAL_STORAGE: &str = "ephemeral-storage";

/// Reads a v1.PodList, or an array of pods.
///
/// # Errors
///
/// A document of another form, a field of a wrong type, a quantity that is none.
pub fn read_pods(document: &Value) -> Result<Vec<Pod>, JsonError> {
    match document {
        Value::Array(items) => read_items("pods", items),
        Value::Object(list) => match list.get("items") {
            Some(Value::Array(items)) => read_items("items", items),
            Some(Value::Null) => Ok(Vec::new()),
            _ => Err(JsonError::new("items", "must be a list of pods")),
        },
        _ => Err(JsonError::new(
            "pods",
            "must be a PodList or a list of pods",
        )),
    }
}

fn read_items(root: &str, items: &[Value]) -> Result<Vec<Pod>, JsonError> {
    items
        .iter()
        .enumerate()
        .map(|(i, item)| read_pod(&format!("{root}[{i}]"), item))
        .collect()
}

/// Reads one v1.Pod; `root` is its name in errors.
///
/// # Errors
///
/// A field of a wrong type, a quantity that is none.
pub fn read_pod(root: &str, pod: &Value) -> Result<Pod, JsonError> {
    read::<PodJson>(root, pod).map(Pod::from)
}

impl From<PodJson> for Pod {
    fn from(json: PodJson) -> Self {
        let PodJson {
            metadata,
            mut spec,
            status,
        } = json;
        let qos = qos_class(&spec, &status);
        let allocated_memory = spec.take_allocation(&status);
        let may_complete = may_complete(&spec, &status);
        let annotation = |name: &str| metadata.annotations.get(name);
        let is_static = annotation(CONFIG_SOURCE).is_some_and(|source| source != "api");
        let is_mirror = annotation(CONFIG_MIRROR).is_some();
        // The kubelet makes the Node the owner of its static pods' mirrors (`CreateMirrorPod`): they have nothing in common.
        let owner = metadata
            .owner_references
            .into_iter()
            .find(|owner| owner.controller == Some(true) && owner.kind != "Node");
        let pod_level = spec
            .resources
            .as_ref()
            .filter(|resources| resources.are_set_for_pod());
        Self {
            uid: metadata.uid,
            namespace: metadata.namespace,
            name: metadata.name,
            owner: owner.map(
                |OwnerReference {
                     kind, name, uid, ..
                 }| Owner { kind, name, uid },
            ),
            created: metadata
                .creation_timestamp
                .as_deref()
                .and_then(unix_seconds),
            phase: status.phase,
            conditions: status
                .conditions
                .into_iter()
                .map(|condition| (condition.kind, condition.status))
                .collect(),
            ip: status.pod_ip,
            priority: spec.priority.unwrap_or(0),
            priority_unknown: false,
            qos,
            memory_request: allocated_memory.unwrap_or_else(|| spec.request(MEMORY).floor()),
            storage_request: spec.request(EPHEMERAL_STORAGE).floor(),
            storage_limit: spec.limit(EPHEMERAL_STORAGE),
            pod_level_memory_request: pod_level
                .and_then(|resources| resources.requests.get(MEMORY).cloned()),
            volumes: spec.volumes.iter().map(Volume::from).collect(),
            is_static,
            is_mirror,
            termination_grace_period_seconds: spec.termination_grace_period_seconds,
            is_deleting: metadata.deletion_timestamp.is_some(),
            may_complete,
            containers: containers(spec.containers, spec.init_containers),
            container_names: container_names([
                status.container_statuses,
                status.init_container_statuses,
                status.ephemeral_container_statuses,
            ]),
            labels: metadata.labels,
            annotations: metadata.annotations,
            order: 0,
            is_denied: false,
            may_be_over: false,
        }
    }
}

/// Whether the pod may be over once it has no processes. Behind an init container that has failed the others say that they
/// wait, and are never started; behind one that has not they may wait for an image.
fn may_complete(spec: &Spec, status: &Status) -> bool {
    let statuses = [&status.container_statuses, &status.init_container_statuses];
    let mut waiting = statuses
        .into_iter()
        .flatten()
        .filter_map(|s| s.state.waiting.as_ref());
    let terminated = |s: &ContainerStatusJson| s.state.terminated.as_ref().map(|t| t.exit_code);
    let mut ends = status.init_container_statuses.iter().filter_map(terminated);
    let has_failed = ends.any(|exit_code| exit_code != 0);
    matches!(spec.restart_policy.as_deref(), Some("Never" | "OnFailure"))
        && waiting.all(|waiting| has_failed && waiting.reason == "PodInitializing")
}

fn containers(regular: Vec<ContainerJson>, init: Vec<ContainerJson>) -> Vec<Container> {
    let container = |is_init| {
        move |mut container: ContainerJson| Container {
            kind: match is_init {
                false => ContainerKind::Regular,
                true => ContainerKind::Init,
            },
            restartable: is_init && container.is_restartable(),
            name: container.name,
            memory_request: container
                .resources
                .requests
                .remove(MEMORY)
                .unwrap_or_default(),
            storage_request: container
                .resources
                .requests
                .remove(EPHEMERAL_STORAGE)
                .unwrap_or_default(),
            storage_limit: container.resources.limits.remove(EPHEMERAL_STORAGE),
        }
    };
    let regular = regular.into_iter().map(container(false));
    regular
        .chain(init.into_iter().map(container(true)))
        .collect()
}

fn container_names(lists: [Vec<ContainerStatusJson>; 3]) -> BTreeMap<String, String> {
    let named = |status: ContainerStatusJson| {
        let (_, id) = status.container_id.split_once("://")?;
        Some((id.to_owned(), status.name))
    };
    lists.into_iter().flatten().filter_map(named).collect()
}

/// The QoS class in the status, else the one that follows from the specification (`GetPodQOS`).
fn qos_class(spec: &Spec, status: &Status) -> QosClass {
    let known = [
        QosClass::BestEffort,
        QosClass::Burstable,
        QosClass::Guaranteed,
    ];
    if let Some(class) = known
        .into_iter()
        .find(|class| class.as_str() == status.qos_class)
    {
        return class;
    }
    let resources: Vec<ComputeResources> = match &spec.resources {
        Some(resources) => vec![resources.compute()],
        None => spec
            .containers
            .iter()
            .chain(&spec.init_containers)
            .map(|c| c.resources.compute())
            .collect(),
    };
    QosClass::of(&resources)
}

/// hostPath counts as local, and so do emptyDirs on disk, configMaps and git repositories (`localVolumeNames`).
impl From<&VolumeJson> for Volume {
    fn from(volume: &VolumeJson) -> Self {
        let on_disk = volume
            .empty_dir
            .as_ref()
            .is_some_and(|dir| dir.medium.is_empty());
        Self {
            name: volume.name.clone(),
            is_local: volume.host_path.is_some()
                || volume.git_repo.is_some()
                || volume.config_map.is_some()
                || on_disk,
            empty_dir: volume.empty_dir.as_ref().map(|dir| EmptyDir {
                size_limit: dir.size_limit.clone(),
            }),
        }
    }
}

#[cfg(test)]
mod tests;
