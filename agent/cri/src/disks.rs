//! What the runtime says of disks: what containers use of them, and where they are.

use std::path::PathBuf;

use evictd_engine::{FsUsage, node_reclaim::LayerUsage};

use super::messages::{ContainerStats, FilesystemUsage, ImageFsInfoResponse};

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

/// The writable layers, by pod. A runtime that does not know what one uses leaves the number out.
pub(crate) fn layers(stats: &[ContainerStats]) -> LayerUsage {
    let mut layers = LayerUsage::new();
    for stats in stats {
        let attributes = stats.attributes.as_ref();
        let uid = attributes.and_then(|a| a.labels.get(POD_UID));
        let name = attributes
            .and_then(|a| a.metadata.as_ref())
            .map(|m| &m.name);
        let layer = stats.writable_layer.as_ref();
        if let (Some(uid), Some(name), Some(layer)) = (uid, name, layer)
            && let Some(bytes) = layer.used_bytes
        {
            let usage = FsUsage {
                bytes: Some(bytes.value),
                inodes: layer.inodes_used.map(|inodes| inodes.value),
            };
            let of_pod = layers.entry(uid.clone()).or_default();
            of_pod.push((name.clone(), usage));
        }
    }
    layers
}
