//! From the kubelet's `/stats/summary` to what the engine needs of it.

use std::collections::HashMap;

use serde::{Deserialize, Deserializer, de};
use serde_json::Value;

use super::json::{JsonError, null_default, read};
use crate::engine::{
    ContainerUsage, FsUsage, Observation, Observations, PodUsage, Signal, VolumeUsage,
};

/// The system container that holds all pods: its memory is the allocatable one.
const PODS_CONTAINER: &str = "pods";

/// A summary: what the node has left, and what its pods use.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// What the node has left of everything.
    pub observations: Observations,
    /// What the pods use, by UID. Of two entries for one pod the later counts.
    pub pods: HashMap<String, PodUsage>,
}

impl Summary {
    /// The node's memory in bytes, if the summary says so.
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
    read::<SummaryJson>(root, document).map(Summary::from)
}

#[derive(Deserialize)]
struct SummaryJson {
    #[serde(default, deserialize_with = "null_default")]
    node: Node,
    #[serde(default, deserialize_with = "null_default")]
    pods: Vec<PodStats>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Node {
    memory: Option<Memory>,
    fs: Option<Fs>,
    runtime: Option<Runtime>,
    rlimit: Option<Rlimit>,
    #[serde(deserialize_with = "null_default")]
    system_containers: Vec<SystemContainer>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Runtime {
    image_fs: Option<Fs>,
    container_fs: Option<Fs>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct SystemContainer {
    #[serde(deserialize_with = "null_default")]
    name: String,
    memory: Option<Memory>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Memory {
    #[serde(deserialize_with = "time")]
    time: Option<i64>,
    available_bytes: Option<u64>,
    working_set_bytes: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Fs {
    #[serde(deserialize_with = "time")]
    time: Option<i64>,
    available_bytes: Option<u64>,
    capacity_bytes: Option<u64>,
    inodes_free: Option<u64>,
    inodes: Option<u64>,
    used_bytes: Option<u64>,
    inodes_used: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Rlimit {
    #[serde(deserialize_with = "time")]
    time: Option<i64>,
    maxpid: Option<i64>,
    curproc: Option<i64>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodStats {
    #[serde(deserialize_with = "null_default")]
    pod_ref: PodRef,
    memory: Option<Memory>,
    #[serde(deserialize_with = "null_default")]
    containers: Vec<ContainerStats>,
    #[serde(deserialize_with = "null_default")]
    volume: Vec<VolumeStats>,
    #[serde(rename = "ephemeral-storage")]
    ephemeral_storage: Option<Fs>,
    #[serde(rename = "process_stats", deserialize_with = "null_default")]
    process_stats: ProcessStats,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PodRef {
    #[serde(deserialize_with = "null_default")]
    uid: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ContainerStats {
    #[serde(deserialize_with = "null_default")]
    name: String,
    memory: Option<Memory>,
    rootfs: Option<Fs>,
    logs: Option<Fs>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct VolumeStats {
    #[serde(deserialize_with = "null_default")]
    name: String,
    #[serde(flatten)]
    fs: Fs,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ProcessStats {
    process_count: Option<u64>,
}

/// RFC 3339, as nanoseconds since 1970.
fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
    let Some(text) = Option::<String>::deserialize(deserializer)? else {
        return Ok(None);
    };
    let time: jiff::Timestamp = text
        .parse()
        .map_err(|_| de::Error::custom(format!("{text:?}: is not a time")))?;
    i64::try_from(time.as_nanosecond())
        .map(Some)
        .map_err(|_| de::Error::custom(format!("{text:?}: is out of range")))
}

/// A counter as the kubelet's int64 holds it, except that what does not fit is cut.
fn signed(counter: u64) -> i64 {
    i64::try_from(counter).unwrap_or(i64::MAX)
}

impl Memory {
    /// Available, and what that and the working set make together (R2).
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
    /// The observations of everything that is there in full (`makeSignalObservations`).
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
            processes: pod.process_stats.process_count,
            ephemeral_storage: pod.ephemeral_storage.and_then(|fs| fs.used_bytes),
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
mod tests {
    use serde_json::json;

    use super::*;

    fn summary(document: &Value) -> Summary {
        read_summary("summary", document).expect("a summary")
    }

    #[test]
    fn what_is_there_in_full_is_observed() {
        // R1, R2
        let summary = summary(&json!({"node": {
            "memory": {"time": "1970-01-01T00:00:10Z", "availableBytes": 30, "workingSetBytes": 70},
            "systemContainers": [
                {"name": "kubelet", "memory": {"availableBytes": 1, "workingSetBytes": 1}},
                {"name": "pods", "startTime": null, "memory": {"availableBytes": 10, "workingSetBytes": 40}},
            ],
            "fs": {"availableBytes": 5, "capacityBytes": 50, "inodesFree": 6, "inodes": null},
            "runtime": {"imageFs": {"inodesFree": 7, "inodes": 70}, "containerFs": null},
            "rlimit": {"time": null, "maxpid": 100, "curproc": 130},
        }}));
        let seen = |signal| {
            summary
                .observations
                .get(signal)
                .map(|o| (o.available, o.capacity, o.time))
        };
        assert_eq!(
            seen(Signal::MemoryAvailable),
            Some((30, 100, Some(10_000_000_000)))
        );
        assert_eq!(
            seen(Signal::AllocatableMemoryAvailable),
            Some((10, 50, None))
        );
        assert_eq!(seen(Signal::NodeFsAvailable), Some((5, 50, None)));
        assert_eq!(seen(Signal::NodeFsInodesFree), None);
        assert_eq!(seen(Signal::ImageFsAvailable), None);
        assert_eq!(seen(Signal::ImageFsInodesFree), Some((7, 70, None)));
        assert_eq!(seen(Signal::ContainerFsAvailable), None);
        assert_eq!(seen(Signal::PidAvailable), Some((-30, 100, None)));
        assert_eq!(summary.memory_capacity(), Some(100));
    }

    #[test]
    fn missing_numbers_and_nulls_are_no_mistake() {
        let summary = summary(&json!({"node": null, "pods": [
            {"podRef": {"uid": "a"}, "memory": null, "containers": null, "volume": null, "process_stats": null,
             "ephemeral-storage": {"usedBytes": 9}},
            {"podRef": {"uid": "b"}, "memory": {"time": null, "workingSetBytes": 3}, "unknown": {},
             "containers": [{"name": "c", "memory": {}, "rootfs": {"usedBytes": 1, "inodesUsed": 2}, "logs": null}],
             "volume": [{"name": "v", "time": null, "usedBytes": 4}], "process_stats": {"process_count": 5}},
        ]}));
        assert_eq!(summary.observations, Observations::default());
        assert_eq!(
            summary.pods["a"],
            PodUsage {
                ephemeral_storage: Some(9),
                ..PodUsage::default()
            }
        );
        let b = &summary.pods["b"];
        assert_eq!((b.memory_working_set, b.processes), (Some(3), Some(5)));
        assert_eq!(
            b.containers[0].rootfs,
            FsUsage {
                bytes: Some(1),
                inodes: Some(2)
            }
        );
        assert_eq!(
            b.volumes[0],
            VolumeUsage {
                name: "v".into(),
                fs: FsUsage {
                    bytes: Some(4),
                    inodes: None
                }
            }
        );
        let error = read_summary(
            "summary",
            &json!({"pods": [{"memory": {"workingSetBytes": "3"}}]}),
        );
        assert_eq!(
            error.map_err(|e| e.to_string()),
            Err(
                "summary.pods[0].memory.workingSetBytes: invalid type: string \"3\", expected u64"
                    .to_owned()
            )
        );
        assert!(read_summary("summary", &json!({"node": {"memory": {"time": "now"}}})).is_err());
    }
}
