//! Limits on local storage that a pod sets for itself: a pod that exceeds them goes, pressure or not.

use crate::{Layout, Message, Pod, PodUsage, message, model::quantity::Quantity};

/// The limits' names, as the kubelet's metrics call them: the size of an emptyDir, the sum of a pod's containers, one
/// container.
pub(super) const LIMITS: [&str; 3] = [
    "emptydirfs.limit",
    "ephemeralpodfs.limit",
    "ephemeralcontainerfs.limit",
];

/// A limit that a pod exceeded, and what is said about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalStorageExcess {
    /// The limit's name, as the kubelet's metrics call it.
    pub limit: &'static str,
    /// Text of the eviction, with its annotations for programs.
    pub message: Message,
}

/// The first limit on local storage that a pod exceeds (`localStorageEviction`): the size of an emptyDir, then the
/// sum of its containers' limits, then the limit of a container. `None` where it is uncertain what the pod has.
pub fn local_storage_excess(
    pod: &Pod,
    usage: &PodUsage,
    layout: Layout,
) -> Option<LocalStorageExcess> {
    if usage.is_uncertain {
        return None;
    }
    let [of_empty_dir, of_pod, of_container] = LIMITS;
    let excess = |limit, message| LocalStorageExcess { limit, message };
    empty_dir(pod, usage)
        .map(|message| excess(of_empty_dir, message))
        .or_else(|| whole_pod(pod, usage).map(|message| excess(of_pod, message)))
        .or_else(|| container(pod, usage, layout).map(|message| excess(of_container, message)))
}

fn empty_dir(pod: &Pod, usage: &PodUsage) -> Option<Message> {
    pod.volumes.iter().find_map(|volume| {
        let limit = volume
            .empty_dir
            .as_ref()?
            .size_limit
            .as_ref()
            .filter(|limit| limit.sign() > 0)?;
        let used = usage
            .volumes
            .iter()
            .rfind(|used| used.name == volume.name)?
            .fs
            .bytes?;
        (Quantity::bytes(used) > *limit).then(|| message::empty_dir_is_over(&volume.name, limit))
    })
}

fn whole_pod(pod: &Pod, usage: &PodUsage) -> Option<Message> {
    let limit = pod.storage_limit.as_ref()?;
    // A walk that is not at its end, or could not look at all, has found so much at least.
    let found = || usage.walk_began.map(|_| usage.bytes_of_files());
    let used = usage.ephemeral_storage.or_else(found).unwrap_or(0);
    (Quantity::bytes(used) > *limit).then(|| message::pod_storage_is_over(limit))
}

fn container(pod: &Pod, usage: &PodUsage, layout: Layout) -> Option<Message> {
    usage.containers.iter().find_map(|measured| {
        let container = pod
            .containers
            .iter()
            .rfind(|container| container.name == measured.name)?;
        let limit = container
            .storage_limit
            .as_ref()
            .filter(|limit| !container.is_init() && !limit.is_zero())?;
        let layer = measured.rootfs.bytes;
        let layer = layer.filter(|_| !layout.dedicated_image_fs).unwrap_or(0);
        let used = measured.logs.bytes.unwrap_or(0).saturating_add(layer);
        (Quantity::bytes(used) > *limit)
            .then(|| message::container_storage_is_over(&container.name, limit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FsUsage, VolumeUsage};

    // R10: a pod whose files cannot all be looked at is held to what was found.
    #[test]
    fn what_was_found_is_enough_to_exceed_a_limit() {
        let pod = Pod {
            storage_limit: Some(Quantity::bytes(100)),
            ..Pod::default()
        };
        let layout = Layout {
            dedicated_image_fs: false,
            split_image_fs: false,
        };
        let is_over = |found: u64, walk_began, is_uncertain| {
            let fs = FsUsage {
                bytes: Some(found),
                inodes: None,
            };
            let name = "scratch".into();
            let usage = PodUsage {
                walk_began,
                is_uncertain,
                volumes: vec![VolumeUsage { name, fs }],
                ..PodUsage::default()
            };
            local_storage_excess(&pod, &usage, layout).is_some()
        };
        assert!(is_over(101, Some(1), false));
        assert!(!is_over(100, Some(1), false));
        // The kubelet's rule: no figure is no excess.
        assert!(!is_over(101, None, false));
        // The files may never have existed together.
        assert!(!is_over(101, Some(1), true));
    }
}
