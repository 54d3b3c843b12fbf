//! From a `v1.Pod` to what the engine needs of it. What a pod requests is computed as the kubelet 1.36 does.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::json::{JsonError, null_default, read};
use crate::{
    config::Quantity,
    engine::{ComputeResources, Container, ContainerKind, EmptyDir, Owner, Pod, QosClass, Volume},
};

/// Says where the kubelet got the pod from: everything but `api` makes it a static one.
const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
/// Marks the pod that shows a static pod to the API server.
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

/// Reads one v1.Pod; `root` is what it is called in errors.
///
/// # Errors
///
/// A field of a wrong type, a quantity that is none.
pub fn read_pod(root: &str, pod: &Value) -> Result<Pod, JsonError> {
    read::<PodJson>(root, pod).map(Pod::from)
}

type ResourceList = BTreeMap<String, Quantity>;

#[derive(Deserialize)]
struct PodJson {
    #[serde(default, deserialize_with = "null_default")]
    metadata: Metadata,
    #[serde(default, deserialize_with = "null_default")]
    spec: Spec,
    #[serde(default, deserialize_with = "null_default")]
    status: Status,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    #[serde(deserialize_with = "null_default")]
    uid: String,
    #[serde(deserialize_with = "null_default")]
    namespace: String,
    #[serde(deserialize_with = "null_default")]
    name: String,
    #[serde(deserialize_with = "null_default")]
    labels: BTreeMap<String, String>,
    #[serde(deserialize_with = "null_default")]
    annotations: BTreeMap<String, String>,
    #[serde(deserialize_with = "null_default")]
    owner_references: Vec<OwnerReference>,
    deletion_timestamp: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct OwnerReference {
    #[serde(deserialize_with = "null_default")]
    kind: String,
    #[serde(deserialize_with = "null_default")]
    name: String,
    #[serde(deserialize_with = "null_default")]
    uid: String,
    controller: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    priority: Option<i32>,
    termination_grace_period_seconds: Option<i64>,
    #[serde(deserialize_with = "null_default")]
    containers: Vec<ContainerJson>,
    #[serde(deserialize_with = "null_default")]
    init_containers: Vec<ContainerJson>,
    #[serde(deserialize_with = "null_default")]
    volumes: Vec<VolumeJson>,
    resources: Option<Requirements>,
    #[serde(deserialize_with = "null_default")]
    overhead: ResourceList,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    #[serde(deserialize_with = "null_default")]
    qos_class: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ContainerJson {
    #[serde(deserialize_with = "null_default")]
    name: String,
    #[serde(deserialize_with = "null_default")]
    resources: Requirements,
    restart_policy: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Requirements {
    #[serde(deserialize_with = "null_default")]
    requests: ResourceList,
    #[serde(deserialize_with = "null_default")]
    limits: ResourceList,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct VolumeJson {
    #[serde(deserialize_with = "null_default")]
    name: String,
    host_path: Option<Value>,
    git_repo: Option<Value>,
    config_map: Option<Value>,
    empty_dir: Option<EmptyDirJson>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct EmptyDirJson {
    #[serde(deserialize_with = "null_default")]
    medium: String,
    size_limit: Option<Quantity>,
}

impl From<PodJson> for Pod {
    fn from(json: PodJson) -> Self {
        let PodJson {
            metadata,
            spec,
            status,
        } = json;
        let qos = qos_class(&spec, &status);
        let annotation = |name: &str| metadata.annotations.get(name);
        let is_static = annotation(CONFIG_SOURCE).is_some_and(|source| source != "api");
        let is_mirror = annotation(CONFIG_MIRROR).is_some();
        let owner = metadata
            .owner_references
            .into_iter()
            .find(|owner| owner.controller == Some(true));
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
            priority: spec.priority.unwrap_or(0),
            qos,
            memory_request: spec.request(MEMORY).floor(),
            memory_limit: spec.memory_limit(),
            storage_request: spec.request(EPHEMERAL_STORAGE).floor(),
            storage_limit: spec.limit(EPHEMERAL_STORAGE),
            pod_level_memory_request: pod_level
                .and_then(|resources| resources.requests.get(MEMORY).cloned()),
            volumes: spec.volumes.iter().map(Volume::from).collect(),
            is_static,
            is_mirror,
            termination_grace_period_seconds: spec.termination_grace_period_seconds,
            is_deleting: metadata.deletion_timestamp.is_some(),
            containers: containers(spec.containers, spec.init_containers),
            labels: metadata.labels,
            annotations: metadata.annotations,
        }
    }
}

fn containers(regular: Vec<ContainerJson>, init: Vec<ContainerJson>) -> Vec<Container> {
    let container = |kind| {
        move |mut container: ContainerJson| Container {
            name: container.name,
            kind,
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
    let regular = regular.into_iter().map(container(ContainerKind::Regular));
    regular
        .chain(init.into_iter().map(container(ContainerKind::Init)))
        .collect()
}

/// The class in the status, else what the specification makes of it (`GetPodQOS`).
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

impl Spec {
    /// What the whole pod requests of a resource (`GetResourceRequestQuantity`): where resources are set for the pod
    /// as a whole, those alone; else what its containers add up to. The overhead is added to what is not zero.
    fn request(&self, resource: &str) -> Quantity {
        let mut request = match &self.resources {
            Some(pod) if pod.are_set_for_pod() => {
                let supported = is_pod_level(resource);
                pod.requests
                    .get(resource)
                    .filter(|_| supported)
                    .cloned()
                    .unwrap_or_default()
            }
            _ => self
                .aggregate(|r| r.requests.get(resource))
                .unwrap_or_default(),
        };
        if !request.is_zero()
            && let Some(overhead) = self.overhead.get(resource)
        {
            request.add(overhead);
        }
        request
    }

    /// The limit of the whole pod (`PodLimits`); `None` if no container has one. Containers without a limit count as
    /// if they used nothing: that is how the kubelet sees it.
    fn limit(&self, resource: &str) -> Option<Quantity> {
        let pod_level = self
            .resources
            .as_ref()
            .filter(|r| r.are_set_for_pod() && is_pod_level(resource));
        let mut limit = match pod_level.and_then(|pod| pod.limits.get(resource)) {
            Some(limit) => limit.clone(),
            None => self.aggregate(|r| r.limits.get(resource))?,
        };
        if !limit.is_zero()
            && let Some(overhead) = self.overhead.get(resource)
        {
            limit.add(overhead);
        }
        Some(limit)
    }

    /// The memory that the pod cannot exceed; `None` if there is no such limit.
    fn memory_limit(&self) -> Option<u64> {
        let pod_has = self
            .resources
            .as_ref()
            .is_some_and(|r| r.limits.contains_key(MEMORY));
        let running = self
            .containers
            .iter()
            .chain(self.init_containers.iter().filter(|c| c.is_restartable()));
        let bounded = pod_has
            || running
                .clone()
                .all(|c| c.resources.limits.contains_key(MEMORY));
        self.limit(MEMORY)
            .filter(|limit| bounded && limit.sign() > 0)
            .map(|limit| limit.floor())
    }

    /// The most that the pod's containers need at any time (KEP-753): the sum of those that run side by side, or what
    /// an init container needs beside the restartable ones started before it, whichever is more.
    fn aggregate<'a>(
        &'a self,
        get: impl Fn(&'a Requirements) -> Option<&'a Quantity>,
    ) -> Option<Quantity> {
        let mut running = None;
        for container in &self.containers {
            add(&mut running, get(&container.resources));
        }
        let mut restartable = None;
        let mut starting: Option<Quantity> = None;
        for container in &self.init_containers {
            let own = get(&container.resources);
            let needed = if container.is_restartable() {
                add(&mut running, own);
                add(&mut restartable, own);
                restartable.clone()
            } else {
                let mut needed = own.cloned();
                add(&mut needed, restartable.as_ref());
                needed
            };
            starting = larger(starting, needed);
        }
        larger(running, starting)
    }
}

fn add(sum: &mut Option<Quantity>, more: Option<&Quantity>) {
    match (sum.as_mut(), more) {
        (Some(sum), Some(more)) => sum.add(more),
        (None, Some(more)) => *sum = Some(more.clone()),
        (_, None) => {}
    }
}

fn larger(first: Option<Quantity>, second: Option<Quantity>) -> Option<Quantity> {
    match (first, second) {
        (Some(first), Some(second)) => Some(if second > first { second } else { first }),
        (first, second) => first.or(second),
    }
}

/// Whether a resource can be set for a pod as a whole (`IsSupportedPodLevelResource`).
fn is_pod_level(resource: &str) -> bool {
    matches!(resource, CPU | MEMORY) || resource.starts_with("hugepages-")
}

impl ContainerJson {
    /// A sidecar: an init container that goes on running.
    fn is_restartable(&self) -> bool {
        self.restart_policy.as_deref() == Some("Always")
    }
}

impl Requirements {
    /// Whether these, given for a pod, replace those of its containers (`IsPodLevelResourcesSet`).
    fn are_set_for_pod(&self) -> bool {
        self.requests
            .keys()
            .chain(self.limits.keys())
            .any(|name| is_pod_level(name))
    }

    fn compute(&self) -> ComputeResources {
        let get = |list: &ResourceList, name| list.get(name).cloned().unwrap_or_default();
        ComputeResources {
            cpu_request: get(&self.requests, CPU),
            cpu_limit: get(&self.limits, CPU),
            memory_request: get(&self.requests, MEMORY),
            memory_limit: get(&self.limits, MEMORY),
        }
    }
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
