//! What a pod uses: the numbers of the kubelet's summary API that decisions rest on.

/// The use of one pod. A number that is missing counts as zero, as in the kubelet; a pod without any numbers at all
/// is one that has no `PodUsage`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodUsage {
    /// The working set of the pod's cgroup, in bytes.
    pub memory_working_set: Option<u64>,
    /// How many processes run in the pod.
    pub processes: Option<u64>,
    /// Bytes of local disk that the pod uses in all.
    pub ephemeral_storage: Option<u64>,
    /// The containers that have numbers.
    pub containers: Vec<ContainerUsage>,
    /// The volumes that have numbers.
    pub volumes: Vec<VolumeUsage>,
}

/// The use of one container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerUsage {
    /// Its name within the pod.
    pub name: String,
    /// Its working set, in bytes.
    pub memory_working_set: Option<u64>,
    /// Its writable layer.
    pub rootfs: FsUsage,
    /// Its logs.
    pub logs: FsUsage,
}

/// The use of one volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeUsage {
    /// Its name within the pod.
    pub name: String,
    /// What is in it.
    pub fs: FsUsage,
}

/// Use of a filesystem.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FsUsage {
    /// Bytes.
    pub bytes: Option<u64>,
    /// Inodes.
    pub inodes: Option<u64>,
}
