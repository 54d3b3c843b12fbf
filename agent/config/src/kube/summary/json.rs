//! The fields of a summary that are read.

use serde::{Deserialize, Deserializer, de};

use crate::kube::decode::null_default;

#[derive(Deserialize)]
pub(super) struct SummaryJson {
    #[serde(default, deserialize_with = "null_default")]
    pub(super) node: Node,
    #[serde(default, deserialize_with = "null_default")]
    pub(super) pods: Vec<PodStats>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Node {
    pub(super) memory: Option<Memory>,
    pub(super) fs: Option<Fs>,
    pub(super) runtime: Option<Runtime>,
    pub(super) rlimit: Option<Rlimit>,
    #[serde(deserialize_with = "null_default")]
    pub(super) system_containers: Vec<SystemContainer>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Runtime {
    pub(super) image_fs: Option<Fs>,
    pub(super) container_fs: Option<Fs>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct SystemContainer {
    #[serde(deserialize_with = "null_default")]
    pub(super) name: String,
    pub(super) memory: Option<Memory>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Memory {
    #[serde(deserialize_with = "time")]
    pub(super) time: Option<i64>,
    pub(super) available_bytes: Option<u64>,
    pub(super) working_set_bytes: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Fs {
    #[serde(deserialize_with = "time")]
    pub(super) time: Option<i64>,
    pub(super) available_bytes: Option<u64>,
    pub(super) capacity_bytes: Option<u64>,
    pub(super) inodes_free: Option<u64>,
    pub(super) inodes: Option<u64>,
    pub(super) used_bytes: Option<u64>,
    pub(super) inodes_used: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Rlimit {
    #[serde(deserialize_with = "time")]
    pub(super) time: Option<i64>,
    pub(super) maxpid: Option<i64>,
    pub(super) curproc: Option<i64>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PodStats {
    #[serde(deserialize_with = "null_default")]
    pub(super) pod_ref: PodRef,
    pub(super) memory: Option<Memory>,
    #[serde(deserialize_with = "null_default")]
    pub(super) containers: Vec<ContainerStats>,
    #[serde(deserialize_with = "null_default")]
    pub(super) volume: Vec<VolumeStats>,
    #[serde(rename = "ephemeral-storage")]
    pub(super) ephemeral_storage: Option<Fs>,
    #[serde(rename = "process_stats", deserialize_with = "null_default")]
    pub(super) process_stats: ProcessStats,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct PodRef {
    #[serde(deserialize_with = "null_default")]
    pub(super) uid: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct ContainerStats {
    #[serde(deserialize_with = "null_default")]
    pub(super) name: String,
    pub(super) memory: Option<Memory>,
    pub(super) rootfs: Option<Fs>,
    pub(super) logs: Option<Fs>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct VolumeStats {
    #[serde(deserialize_with = "null_default")]
    pub(super) name: String,
    #[serde(flatten)]
    pub(super) fs: Fs,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct ProcessStats {
    pub(super) process_count: Option<u64>,
}

/// Decodes an RFC 3339 time into nanoseconds since 1970.
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
