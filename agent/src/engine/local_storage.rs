//! Limits on local storage that a pod sets for itself: whoever exceeds them goes, pressure or not.

use super::{Layout, Message, Pod, PodUsage, message};
use crate::config::Quantity;

/// The limits' names, as the kubelet's metrics call them: the size of an emptyDir, the sum of a pod's containers, one container.
pub(super) const LIMITS: [&str; 3] = [
    "emptydirfs.limit",
    "ephemeralpodfs.limit",
    "ephemeralcontainerfs.limit",
];

/// What a pod exceeded, and what is said about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalStorageExcess {
    /// The limit's name, as the kubelet's metrics call it.
    pub limit: &'static str,
    /// What is said about it.
    pub message: Message,
}

/// The first limit on local storage that a pod exceeds (`localStorageEviction`): the size of an emptyDir, then the
/// sum of its containers' limits, then the limit of a container.
pub fn local_storage_excess(
    pod: &Pod,
    usage: &PodUsage,
    layout: Layout,
) -> Option<LocalStorageExcess> {
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
    let used = Quantity::bytes(usage.ephemeral_storage.unwrap_or(0));
    (used > *limit).then(|| message::pod_storage_is_over(limit))
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
        let layer = if layout.dedicated_image_fs {
            None
        } else {
            measured.rootfs.bytes
        };
        let used = measured
            .logs
            .bytes
            .unwrap_or(0)
            .saturating_add(layer.unwrap_or(0));
        (Quantity::bytes(used) > *limit)
            .then(|| message::container_storage_is_over(&container.name, limit))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::pods::{spec::read_pod, stats::read_summary};

    fn excess(spec: Value, stats: Value, layout: Layout) -> Option<String> {
        let pod = read_pod("pod", &json!({"metadata": {"uid": "u"}, "spec": spec})).expect("a pod");
        let mut stats = stats;
        stats["podRef"] = json!({"uid": "u"});
        let summary = read_summary("summary", &json!({"pods": [stats]})).expect("a summary");
        local_storage_excess(&pod, &summary.pods["u"], layout).map(|excess| excess.message.text)
    }

    #[test]
    fn each_limit_is_named_as_the_kubelet_names_it() {
        let one = Layout::default();
        let volumes = json!({"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Ki"}}]});
        let used = |bytes: Value| json!({"volume": [{"name": "v", "usedBytes": bytes}]});
        assert_eq!(
            excess(volumes.clone(), used(json!(1025)), one).as_deref(),
            Some("Usage of EmptyDir volume \"v\" exceeds the limit \"1Ki\". ")
        );
        assert_eq!(excess(volumes.clone(), used(json!(1024)), one), None);
        assert_eq!(excess(volumes, used(json!(null)), one), None);

        let limits = |amount: &str| {
            json!({"containers": [
                {"name": "a", "resources": {"limits": {"ephemeral-storage": amount}}},
                {"name": "b", "resources": {"limits": {"ephemeral-storage": "1Ki"}}},
            ]})
        };
        assert_eq!(
            excess(
                limits("1Ki"),
                json!({"ephemeral-storage": {"usedBytes": 2049}}),
                one
            )
            .as_deref(),
            Some("Pod ephemeral local storage usage exceeds the total limit of containers 2Ki. ")
        );
        let layers = json!({"containers": [{"name": "a", "rootfs": {"usedBytes": 1000}, "logs": {"usedBytes": 100}}]});
        assert_eq!(
            excess(limits("1Ki"), layers.clone(), one).as_deref(),
            Some("Container a exceeded its local ephemeral storage limit \"1Ki\". ")
        );
        // Where the layers lie on another filesystem, only the logs count. A limit of zero is none.
        assert_eq!(
            excess(
                limits("1Ki"),
                layers.clone(),
                Layout {
                    dedicated_image_fs: true,
                    ..one
                }
            ),
            None
        );
        assert_eq!(excess(limits("0"), layers, one), None);
    }
}
