//! What the node gives back before a pod has to go.

use std::collections::{BTreeSet, HashMap};

use crate::FsUsage;

/// What the writable layers of containers use as the runtime counts it, with the containers' names, by the UID that the
/// runtime has for their pod.
pub type LayerUsage = HashMap<String, PodLayers>;

/// Writable layers of one pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodLayers {
    /// Usage of each container's layer, by the container's name.
    pub layers: Vec<(String, FsUsage)>,
    /// No container ran: these are of containers that have ended.
    pub have_ended: bool,
}

/// The pods of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownPods {
    /// UIDs that the runtime has for the pods; `None` when they are not known yet.
    pub uids: Option<BTreeSet<String>>,
    /// A kubelet cleans up after them: containers must not be removed behind its back, or it never removes their logs.
    pub has_kubelet: bool,
}

/// Component that may remove what is not in use on a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReclaimBy {
    /// The container runtime, which answers.
    Runtime,
    /// The kubelet beside this agent, which has the same thresholds.
    Kubelet,
    /// No component: shadow mode only reports the reclaim.
    None,
}

/// Counts of what a reclaim has removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Containers that had ended.
    pub containers: u64,
    /// Sandboxes that had ended.
    pub sandboxes: u64,
    /// Images that no container used.
    pub images: u64,
    /// Size of the removed images in bytes, as the runtime counts it.
    pub image_bytes: u64,
    /// Number of objects that the runtime refused to remove.
    pub refused: u64,
    /// Reason of the last refusal; `None` without one.
    pub refusal: Option<String>,
    /// Number of containers that have ended, of pods that are over, which only the kubelet removes.
    pub left_to_kubelet: u64,
    /// Whether the time ended with more left to remove.
    pub is_cut_short: bool,
}
