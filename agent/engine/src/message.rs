//! What is said about an eviction, word for word as the kubelet says it.

use std::collections::BTreeMap;

use super::{Observations, Pod, PodUsage, Resource, Threshold};
use crate::model::quantity::Quantity;

/// `status.reason` of an evicted pod, and the reason of the event.
pub const EVICTED: &str = "Evicted";
/// `status.phase` of an evicted pod.
pub const PHASE: &str = "Failed";
/// The pod condition that announces an eviction.
pub const DISRUPTION_TARGET: &str = "DisruptionTarget";
/// The reason in that condition.
pub const TERMINATION_BY_KUBELET: &str = "TerminationByKubelet";

/// A message with the annotations that the event carries beside it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// The text.
    pub text: String,
    /// Keys and values for programs that read events.
    pub annotations: Vec<(&'static str, String)>,
}

impl Message {
    /// The annotations as an Event has them.
    pub fn annotations(&self) -> BTreeMap<String, String> {
        let pairs = self.annotations.iter();
        pairs
            .map(|(key, value)| ((*key).to_owned(), value.clone()))
            .collect()
    }
}

/// Begins the message of an eviction for a resource that is short (`nodeLowMessageFmt`).
const LOW_ON: &str = "The node was low on resource: ";

/// The resource for which the kubelet has evicted a pod, as its message says; `None` for a limit of the pod's own.
pub fn resource_of(message: &str) -> Option<Resource> {
    let rest = message.strip_prefix(LOW_ON)?;
    Resource::ALL
        .into_iter()
        .find(|resource| rest.starts_with(resource.as_str()))
}

/// Why a pod is evicted when a threshold is met (`evictionMessage`): what was short, by how much, and which containers
/// use more than they requested.
pub fn resource_is_short(
    threshold: &Threshold,
    pod: &Pod,
    usage: Option<&PodUsage>,
    observations: &Observations,
) -> Message {
    let resource = threshold.signal.resource();
    let mut text = format!("{LOW_ON}{resource}. ");
    if let Some(seen) = observations.get(threshold.signal) {
        let quantity = threshold.value.quantity(seen.capacity);
        let available = threshold.signal.quantity(seen.available);
        text += &format!("Threshold quantity: {quantity}, available: {available}. ");
    }
    let mut annotations = Vec::new();
    let Some(usage) = usage else {
        return Message { text, annotations };
    };
    if let (Resource::Memory, Some(request), Some(used)) = (
        resource,
        &pod.pod_level_memory_request,
        usage.memory_working_set,
    ) {
        let used = Quantity::bytes(used);
        text += &format!(
            "Pod {} was using {used}, request is {request}, has larger consumption of memory. ",
            pod.name
        );
        annotations.extend([
            ("offending_pod", pod.name.clone()),
            ("offending_pod_usage", used.to_string()),
        ]);
    }
    let (mut names, mut usages) = (Vec::new(), Vec::new());
    for (name, used, request) in containers_above_request(resource, pod, usage) {
        text += &format!(
            "Container {name} was using {used}, request is {request}, has larger consumption of {resource}. "
        );
        names.push(name);
        usages.push(used.to_string());
    }
    annotations.extend([
        ("offending_containers", names.join(",")),
        ("offending_containers_usage", usages.join(",")),
        ("starved_resource", resource.to_string()),
    ]);
    Message { text, annotations }
}

/// Containers that use more of a resource than they requested, with usage and request. Inodes and process ids are
/// not known per container.
fn containers_above_request<'a>(
    resource: Resource,
    pod: &'a Pod,
    usage: &'a PodUsage,
) -> impl Iterator<Item = (&'a str, Quantity, &'a Quantity)> {
    usage.containers.iter().filter_map(move |measured| {
        let container = pod
            .containers
            .iter()
            .find(|container| container.name == measured.name)?;
        let (used, request) = match resource {
            Resource::Memory => (measured.memory_working_set?, &container.memory_request),
            Resource::EphemeralStorage => (
                measured.rootfs.bytes?.saturating_add(measured.logs.bytes?),
                &container.storage_request,
            ),
            Resource::Inodes | Resource::Pids => return None,
        };
        let used = Quantity::bytes(used);
        (used > *request).then_some((container.name.as_str(), used, request))
    })
}

/// An emptyDir holds more than its size limit.
pub(crate) fn empty_dir_is_over(volume: &str, limit: &Quantity) -> Message {
    plain(format!(
        "Usage of EmptyDir volume {volume:?} exceeds the limit {:?}. ",
        limit.to_string()
    ))
}

/// The pod holds more on the local disk than its containers may together.
pub(crate) fn pod_storage_is_over(limit: &Quantity) -> Message {
    plain(format!(
        "Pod ephemeral local storage usage exceeds the total limit of containers {limit}. "
    ))
}

/// A container holds more on the local disk than it may.
pub(crate) fn container_storage_is_over(container: &str, limit: &Quantity) -> Message {
    plain(format!(
        "Container {container} exceeded its local ephemeral storage limit {:?}. ",
        limit.to_string()
    ))
}

fn plain(text: String) -> Message {
    Message {
        text,
        annotations: Vec::new(),
    }
}
