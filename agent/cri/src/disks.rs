//! What the runtime says of disks: what containers use of them, and where they are.

use std::{collections::HashSet, path::PathBuf};

use evictd_engine::{FsUsage, node_reclaim::LayerUsage};

use super::messages::{
    Container, ContainerAttributes, ContainerState, ContainerStats, FilesystemUsage,
    ImageFsInfoResponse,
};

/// The label in which the kubelet writes the UID of a container's pod; of a static pod the hash of its file.
const POD_UID: &str = "io.kubernetes.pod.uid";

/// Directories on the runtime's filesystems.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeDisks {
    /// Directory on the filesystem of the images; `None` where the runtime tells none.
    pub images: Option<PathBuf>,
    /// Directory on the filesystem of the writable layers, where the runtime tells it from that of the images.
    pub containers: Option<PathBuf>,
}

impl From<&ImageFsInfoResponse> for RuntimeDisks {
    fn from(info: &ImageFsInfoResponse) -> Self {
        let first = |all: &[FilesystemUsage]| {
            let id = all.first()?.fs_id.as_ref()?;
            Some(PathBuf::from(&id.mountpoint)).filter(|path| path.is_absolute())
        };
        Self {
            images: first(&info.image_filesystems),
            containers: first(&info.container_filesystems),
        }
    }
}

/// The writable layers, by pod. A runtime that does not know what one uses leaves the number out. Where containers of a pod run
/// those that have ended do not count, as for the kubelet (`removeTerminatedContainers`); of one name the youngest does.
pub(crate) fn layers(stats: &[ContainerStats], containers: &[Container]) -> LayerUsage {
    let has_not_ended = |c: &&Container| c.state() != ContainerState::Exited;
    let alive = containers.iter().filter(has_not_ended);
    let alive: HashSet<&str> = alive.map(|c| &*c.id).collect();
    let uid_of = |of: &ContainerAttributes| of.labels.get(POD_UID).cloned();
    let all = stats.iter().filter_map(|stats| stats.attributes.as_ref());
    let running = all.filter(|of| alive.contains(&*of.id)).filter_map(uid_of);
    let running: HashSet<String> = running.collect();
    let attempt = |stats: &&ContainerStats| {
        let attributes = stats.attributes.as_ref();
        attributes
            .and_then(|a| a.metadata.as_ref())
            .map(|m| m.attempt)
    };
    let mut youngest_first: Vec<_> = stats.iter().collect();
    youngest_first.sort_by_key(|stats| std::cmp::Reverse(attempt(stats)));
    let mut layers = LayerUsage::new();
    for stats in youngest_first {
        let attributes = stats.attributes.as_ref();
        let uid = attributes.and_then(uid_of);
        let name = attributes
            .and_then(|a| a.metadata.as_ref())
            .map(|m| &m.name);
        let has_ended = attributes.is_none_or(|a| !alive.contains(&*a.id));
        let layer = stats.writable_layer.as_ref();
        if let (Some(uid), Some(name), Some(layer)) = (uid, name, layer)
            && let Some(bytes) = layer.used_bytes
            && !(has_ended && running.contains(&uid))
        {
            let usage = FsUsage {
                bytes: Some(bytes.value),
                inodes: layer.inodes_used.map(|inodes| inodes.value),
            };
            let of_pod = layers.entry(uid).or_default();
            of_pod.have_ended = has_ended;
            if of_pod.layers.iter().all(|(known, _)| known != name) {
                of_pod.layers.push((name.clone(), usage));
            }
        }
    }
    layers
}
