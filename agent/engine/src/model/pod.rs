//! What the engine knows of a pod: plain numbers, computed once from its specification.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

use crate::{
    QosClass,
    model::{qos::oom_score_adj, quantity::Quantity, settings::Mode},
};

/// Priority from which on a pod is critical (`scheduling.SystemCriticalPriority`): `system-cluster-critical` has
/// exactly this one, `system-node-critical` 1000 more.
pub const SYSTEM_CRITICAL_PRIORITY: i32 = 2_000_000_000;

/// The priority of the class `system-node-critical`, the highest there is.
pub const SYSTEM_NODE_CRITICAL_PRIORITY: i32 = SYSTEM_CRITICAL_PRIORITY + 1000;

/// A pod as the engine sees it.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Pod {
    /// `metadata.uid`; usage is found by it.
    pub uid: String,
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// `metadata.labels`.
    pub labels: BTreeMap<String, String>,
    /// `metadata.annotations`.
    pub annotations: BTreeMap<String, String>,
    /// The controller that owns the pod.
    pub owner: Option<Owner>,
    /// `metadata.creationTimestamp`, in seconds since 1970.
    pub created: Option<i64>,
    /// `status.phase`; empty if it is not known.
    pub phase: String,
    /// `status.conditions`: the status of each by its type.
    pub conditions: BTreeMap<String, String>,
    /// `status.podIP`; empty as long as it has none.
    pub ip: String,
    /// `spec.priority`; zero if it has none.
    pub priority: i32,
    /// Whether the priority is not known yet: only a cgroup tells of the pod, which therefore goes after all others.
    pub priority_unknown: bool,
    /// The QoS class.
    pub qos: QosClass,
    /// The memory request of the whole pod with its overhead, in bytes, fractions cut.
    pub memory_request: u64,
    /// The ephemeral-storage request of the whole pod with its overhead, in bytes, fractions cut.
    pub storage_request: u64,
    /// The ephemeral-storage limit of the whole pod: the sum over the containers that have one.
    pub storage_limit: Option<Quantity>,
    /// `spec.resources.requests.memory`, if resources are set for the pod as a whole.
    pub pod_level_memory_request: Option<Quantity>,
    /// The containers, then the init containers.
    pub containers: Vec<Container>,
    /// The names of the containers by the ids that the container runtime has given them (`status.containerStatuses`).
    #[serde(skip)]
    pub container_names: BTreeMap<String, String>,
    /// The volumes that lie on the node's disk.
    pub volumes: Vec<Volume>,
    /// Whether a file on the node defines the pod.
    pub is_static: bool,
    /// Whether the pod only shows a static pod to the API server.
    pub is_mirror: bool,
    /// `spec.terminationGracePeriodSeconds`.
    pub termination_grace_period_seconds: Option<i64>,
    /// Whether the pod is already being deleted.
    pub is_deleting: bool,
    /// Whether the pod may be over once it has no processes: its `restartPolicy` is not Always, and no container of it
    /// waits to be started.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub may_complete: bool,
    /// What the policies say about the order at this moment (`policy`); zero where no policy says anything.
    #[serde(skip)]
    pub order: i16,
    /// Whether the policies spare the pod at this moment.
    #[serde(skip)]
    pub is_denied: bool,
    /// Whether the pod may be over: its last process has ended a moment ago, while something is short. Its files are there
    /// still.
    #[serde(skip)]
    pub may_be_over: bool,
}

/// The controller that owns a pod and replaces it.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Owner {
    /// Kind of the owner, such as `DaemonSet`.
    pub kind: String,
    /// Name of the owner, in the pod's namespace.
    pub name: String,
    /// UID of the owner.
    pub uid: String,
}

/// A container of a pod.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Container {
    /// Name within the pod.
    pub name: String,
    /// List of the pod in which the container stands.
    pub kind: ContainerKind,
    /// Whether it is an init container with `restartPolicy: Always`, which runs beside the regular ones.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub restartable: bool,
    /// Memory request of the container; zero if it has none.
    pub memory_request: Quantity,
    /// Ephemeral-storage request of the container; zero if it has none.
    pub storage_request: Quantity,
    /// Ephemeral-storage limit of the container, if it has one.
    pub storage_limit: Option<Quantity>,
}

impl Container {
    /// Whether it stands in `spec.initContainers`.
    pub fn is_init(&self) -> bool {
        self.kind == ContainerKind::Init
    }
}

/// List of a pod in which a container stands.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub enum ContainerKind {
    /// `spec.containers`.
    Regular,
    /// `spec.initContainers`.
    #[serde(alias = "Sidecar")]
    Init,
}

/// A volume of a pod.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Volume {
    /// Name within the pod.
    pub name: String,
    /// Whether what is in it counts as the pod's use of the local disk (`localVolumeNames`).
    pub is_local: bool,
    /// Set for an emptyDir.
    pub empty_dir: Option<EmptyDir>,
}

/// An emptyDir volume.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EmptyDir {
    /// `sizeLimit`.
    pub size_limit: Option<Quantity>,
}

impl Pod {
    /// The least of the limits on local storage that the pod sets for itself and that are enforced, in bytes.
    pub fn least_storage_limit(&self) -> Option<u64> {
        let of_volumes = self
            .volumes
            .iter()
            .filter(|v| v.is_local)
            .filter_map(|v| v.empty_dir.as_ref()?.size_limit.as_ref());
        let of_containers = self
            .containers
            .iter()
            .filter(|c| !c.is_init())
            .filter_map(|c| c.storage_limit.as_ref());
        let limits = of_volumes.chain(of_containers).chain(&self.storage_limit);
        limits
            .filter(|limit| limit.sign() > 0)
            .map(Quantity::floor)
            .min()
    }

    /// The oom_score_adj that the kubelet gives the pod's containers on a node of this capacity, in bytes.
    pub fn oom_score_adj(&self, capacity: u64) -> i32 {
        let is_critical = self.is_node_critical();
        oom_score_adj(self.qos, is_critical, self.memory_request, capacity)
    }

    /// Whether the kubelet refuses to evict the pod, whatever the pressure: static and mirror pods, and pods of
    /// critical priority (`kubelet/types.IsCriticalPod`).
    pub fn is_critical(&self) -> bool {
        self.is_static || self.is_mirror || self.has_critical_priority()
    }

    /// Whether a mode of the engine refuses to evict the pod, for whatever reason: the `evictd` mode judges static pods
    /// by their priority, as the documentation says, where their end brings anything; the kubelet never evicts any. As
    /// long as a static pod's priority is not known it stays: control planes run as such.
    pub fn is_protected(&self, mode: Mode) -> bool {
        match mode {
            Mode::Kubelet => self.is_critical(),
            Mode::Evictd => {
                self.has_critical_priority() || (self.is_static && self.priority_unknown)
            }
        }
    }

    /// Whether the API server can end the pod. Of a static pod it has the mirror alone: when that is deleted the
    /// kubelet makes another one, and the static pod goes on.
    pub fn ends_by_api(&self) -> bool {
        !(self.is_static || self.is_mirror)
    }

    /// Whether the API server can be asked to end the pod: one that is known by its cgroup only has no name to ask for.
    pub fn can_be_deleted(&self) -> bool {
        !self.namespace.is_empty() && self.ends_by_api()
    }

    /// Whether its containers have ended for good.
    pub fn is_over(&self) -> bool {
        matches!(&*self.phase, "Succeeded" | "Failed")
    }

    /// The container that uses all that the pod does, if no other one can run by now: ordinary init containers have
    /// ended in a pod that is initialized. The specification lists no ephemeral containers, of which the status tells.
    pub fn only_container(&self) -> Option<&Container> {
        let is_initialized = self
            .conditions
            .get("Initialized")
            .is_some_and(|is| is == "True");
        let may_run = |c: &&Container| !(is_initialized && c.is_init() && !c.restartable);
        let is_ephemeral = |name: &String| self.containers.iter().all(|c| c.name != *name);
        if self.container_names.values().any(is_ephemeral) {
            return None;
        }
        let mut running = self.containers.iter().filter(may_run);
        running.next().filter(|_| running.next().is_none())
    }

    /// Whether the priority alone makes the pod critical.
    pub fn has_critical_priority(&self) -> bool {
        self.priority >= SYSTEM_CRITICAL_PRIORITY
    }

    /// Whether the node cannot do without the pod: the OOM killer spares it like a Guaranteed one.
    pub fn is_node_critical(&self) -> bool {
        self.priority >= SYSTEM_NODE_CRITICAL_PRIORITY
    }
}

/// `namespace/name`.
impl fmt::Display for Pod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_init_container_that_has_ended_uses_nothing() {
        use ContainerKind::{Init, Regular};
        let container = |(kind, restartable)| Container {
            name: format!("{kind:?}"),
            kind,
            restartable,
            memory_request: Quantity::default(),
            storage_request: Quantity::default(),
            storage_limit: None,
        };
        let (regular, init, sidecar) = ((Regular, false), (Init, false), (Init, true));
        let only = |kinds: &[(ContainerKind, bool)], initialized: Option<&str>| {
            let status = initialized.map(|status| ("Initialized".to_owned(), status.to_owned()));
            let pod = Pod {
                containers: kinds.iter().copied().map(container).collect(),
                conditions: status.into_iter().collect(),
                ..Pod::default()
            };
            pod.only_container().map(|c| c.kind)
        };
        assert_eq!(only(&[regular], None), Some(Regular));
        assert_eq!(only(&[regular, init, init], Some("True")), Some(Regular));
        for status in [Some("False"), None] {
            assert_eq!(only(&[regular, init], status), None);
        }
        assert_eq!(only(&[regular, sidecar], Some("True")), None);
        assert_eq!(only(&[regular, regular], Some("True")), None);
        assert_eq!(only(&[], None), None);
        let debugged = Pod {
            containers: vec![container(regular)],
            container_names: [("c0ffee".to_owned(), "debugger".to_owned())].into(),
            ..Pod::default()
        };
        assert_eq!(debugged.only_container(), None);
    }
}
