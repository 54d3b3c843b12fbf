//! Makes the engine's observations and usages from the kubelet's `/stats/summary`.

use std::collections::HashMap;

use evictd_engine::{
    ContainerUsage, FsUsage, Observation, Observations, PodUsage, Signal, VolumeUsage,
    units::signed,
};
use serde_json::Value;

use crate::kube::decode::{JsonError, read};
use json::{ContainerStats, Fs, Memory, Node, PodStats, SummaryJson};

mod json;

/// The system container of all pods; `allocatableMemory.available` is its memory.
const PODS_CONTAINER: &str = "pods";

/// The state of the node and its pods in a summary.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// Observations of what the node has available, by signal.
    pub observations: Observations,
    /// The usage of each pod, by UID. Of two entries for one pod the later one counts.
    pub pods: HashMap<String, PodUsage>,
}

impl Summary {
    /// The size of the node's memory in bytes, if the summary has it.
    pub fn memory_capacity(&self) -> Option<u64> {
        let memory = self.observations.get(Signal::MemoryAvailable)?;
        u64::try_from(memory.capacity).ok()
    }
}

/// Reads a summary; `node` and everything in it may be missing.
///
/// # Errors
///
/// A document of another form, a field of a wrong type.
pub fn read_summary(root: &str, document: &Value) -> Result<Summary, JsonError> {
    // Another document must not pass for a summary without numbers. Serde would also decode an array.
    match document.as_object() {
        None => return Err(JsonError::new(root, "must be a map of fields")),
        Some(fields) if fields.contains_key("items") => {
            return Err(JsonError::new(
                root,
                "is a list of objects: a summary has `node` and `pods`",
            ));
        }
        Some(_) => {}
    }
    read::<SummaryJson>(root, document).map(Summary::from)
}

impl Memory {
    /// The available memory, and the capacity: available plus working set.
    fn observation(&self) -> Option<Observation> {
        let (available, working_set) = (self.available_bytes?, self.working_set_bytes?);
        let capacity = signed(available.saturating_add(working_set));
        Some(Observation {
            available: signed(available),
            capacity,
            time: self.time,
        })
    }
}

impl Fs {
    fn bytes(&self) -> Option<Observation> {
        let (available, capacity) = (signed(self.available_bytes?), signed(self.capacity_bytes?));
        Some(Observation {
            available,
            capacity,
            time: self.time,
        })
    }

    fn inodes(&self) -> Option<Observation> {
        let (available, capacity) = (signed(self.inodes_free?), signed(self.inodes?));
        Some(Observation {
            available,
            capacity,
            time: self.time,
        })
    }
}

impl Node {
    /// The observations of all signals whose numbers are complete (`makeSignalObservations`).
    fn observations(&self) -> Observations {
        let memory = |memory: Option<&Memory>| memory.and_then(Memory::observation);
        let pods = self
            .system_containers
            .iter()
            .find(|container| container.name == PODS_CONTAINER);
        let image_fs = self
            .runtime
            .as_ref()
            .and_then(|runtime| runtime.image_fs.as_ref());
        let container_fs = self
            .runtime
            .as_ref()
            .and_then(|runtime| runtime.container_fs.as_ref());
        let pids = self.rlimit.as_ref().and_then(|limit| {
            let (capacity, used) = (limit.maxpid?, limit.curproc?);
            Some(Observation {
                available: capacity.saturating_sub(used),
                capacity,
                time: limit.time,
            })
        });
        let mut observations = Observations::default();
        for (signal, observation) in [
            (Signal::MemoryAvailable, memory(self.memory.as_ref())),
            (
                Signal::AllocatableMemoryAvailable,
                memory(pods.and_then(|pods| pods.memory.as_ref())),
            ),
            (
                Signal::NodeFsAvailable,
                self.fs.as_ref().and_then(Fs::bytes),
            ),
            (
                Signal::NodeFsInodesFree,
                self.fs.as_ref().and_then(Fs::inodes),
            ),
            (Signal::ImageFsAvailable, image_fs.and_then(Fs::bytes)),
            (Signal::ImageFsInodesFree, image_fs.and_then(Fs::inodes)),
            (
                Signal::ContainerFsAvailable,
                container_fs.and_then(Fs::bytes),
            ),
            (
                Signal::ContainerFsInodesFree,
                container_fs.and_then(Fs::inodes),
            ),
            (Signal::PidAvailable, pids),
        ] {
            if let Some(observation) = observation {
                observations.set(signal, observation);
            }
        }
        observations
    }
}

impl From<SummaryJson> for Summary {
    fn from(json: SummaryJson) -> Self {
        let pods = json
            .pods
            .into_iter()
            .map(|mut pod| (std::mem::take(&mut pod.pod_ref.uid), pod.into()));
        Self {
            observations: json.node.observations(),
            pods: pods.collect(),
        }
    }
}

impl From<PodStats> for PodUsage {
    fn from(pod: PodStats) -> Self {
        Self {
            memory_working_set: pod.memory.and_then(|memory| memory.working_set_bytes),
            // The summary does not say, nor when files were walked.
            memory_shared: 0,
            processes: pod.process_stats.process_count,
            ephemeral_storage: pod.ephemeral_storage.and_then(|fs| fs.used_bytes),
            walk_began: None,
            is_uncertain: false,
            counts_inodes: false,
            containers: pod
                .containers
                .into_iter()
                .map(ContainerUsage::from)
                .collect(),
            volumes: pod
                .volume
                .into_iter()
                .map(|v| VolumeUsage {
                    name: v.name,
                    fs: (&v.fs).into(),
                })
                .collect(),
        }
    }
}

impl From<ContainerStats> for ContainerUsage {
    fn from(container: ContainerStats) -> Self {
        Self {
            name: container.name,
            memory_working_set: container.memory.and_then(|memory| memory.working_set_bytes),
            rootfs: container
                .rootfs
                .as_ref()
                .map(FsUsage::from)
                .unwrap_or_default(),
            logs: container
                .logs
                .as_ref()
                .map(FsUsage::from)
                .unwrap_or_default(),
        }
    }
}

impl From<&Fs> for FsUsage {
    fn from(fs: &Fs) -> Self {
        Self {
            bytes: fs.used_bytes,
            inodes: fs.inodes_used,
        }
    }
}

#[cfg(test)]
mod tests;
