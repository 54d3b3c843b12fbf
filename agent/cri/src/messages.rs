//! The messages of the CRI that are needed here, with the fields that are looked at (`runtime.v1`, the `api.proto` of
//! kubernetes/cri-api). What else a runtime sends is passed over, as Protocol Buffers want it.

use std::collections::HashMap;

/// A message without fields that are set here.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct Empty {}

/// `StatusRequest`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct StatusRequest {
    /// Asks for `info`.
    #[prost(bool, tag = "1")]
    pub verbose: bool,
}

/// `StatusResponse`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StatusResponse {
    /// Details beyond the interface, by key; containerd shows its configuration here, as JSON.
    #[prost(map = "string, string", tag = "2")]
    pub info: HashMap<String, String>,
}

/// `ListPodSandboxResponse`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ListPodSandboxResponse {
    /// All sandboxes.
    #[prost(message, repeated, tag = "1")]
    pub items: Vec<PodSandbox>,
}

/// `PodSandbox`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PodSandbox {
    /// The runtime's name for it.
    #[prost(string, tag = "1")]
    pub id: String,
    /// The pod that it is of.
    #[prost(message, optional, tag = "2")]
    pub metadata: Option<PodSandboxMetadata>,
    /// See [`SandboxState`].
    #[prost(enumeration = "SandboxState", tag = "3")]
    pub state: i32,
    /// Time of creation, in nanoseconds since 1970.
    #[prost(int64, tag = "4")]
    pub created_at: i64,
}

/// `PodSandboxMetadata`.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct PodSandboxMetadata {
    /// The pod's name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The pod's UID; of a static pod the hash of its file.
    #[prost(string, tag = "2")]
    pub uid: String,
    /// The pod's namespace.
    #[prost(string, tag = "3")]
    pub namespace: String,
    /// Counts the sandboxes of one pod.
    #[prost(uint32, tag = "4")]
    pub attempt: u32,
}

/// `PodSandboxState`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum SandboxState {
    /// The sandbox runs.
    Ready = 0,
    /// The sandbox has ended.
    NotReady = 1,
}

/// `StopPodSandboxRequest` and `RemovePodSandboxRequest`, which are alike.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct PodSandboxRequest {
    /// ID of the sandbox.
    #[prost(string, tag = "1")]
    pub pod_sandbox_id: String,
}

/// `ListContainersResponse`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ListContainersResponse {
    /// All containers.
    #[prost(message, repeated, tag = "1")]
    pub containers: Vec<Container>,
}

/// `Container`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Container {
    /// The runtime's name for it.
    #[prost(string, tag = "1")]
    pub id: String,
    /// The sandbox that it is in.
    #[prost(string, tag = "2")]
    pub pod_sandbox_id: String,
    /// The name in the pod.
    #[prost(message, optional, tag = "3")]
    pub metadata: Option<ContainerMetadata>,
    /// The image as it was asked for.
    #[prost(message, optional, tag = "4")]
    pub image: Option<ImageSpec>,
    /// The image as the runtime has resolved it.
    #[prost(string, tag = "5")]
    pub image_ref: String,
    /// See [`ContainerState`].
    #[prost(enumeration = "ContainerState", tag = "6")]
    pub state: i32,
    /// Time of creation, in nanoseconds since 1970.
    #[prost(int64, tag = "7")]
    pub created_at: i64,
    /// The id of the image; younger runtimes only.
    #[prost(string, tag = "10")]
    pub image_id: String,
}

/// `ContainerMetadata`.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct ContainerMetadata {
    /// The container's name in its pod.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Counts the containers of one name.
    #[prost(uint32, tag = "2")]
    pub attempt: u32,
}

/// `ContainerState`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum ContainerState {
    /// Made and not started.
    Created = 0,
    /// The container runs.
    Running = 1,
    /// The container has ended.
    Exited = 2,
    /// The runtime does not know.
    Unknown = 3,
}

/// `RemoveContainerRequest` and `ContainerStatusRequest`, which begin alike.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct ContainerRequest {
    /// ID of the container.
    #[prost(string, tag = "1")]
    pub container_id: String,
}

/// `ContainerStatusResponse`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerStatusResponse {
    /// The status.
    #[prost(message, optional, tag = "1")]
    pub status: Option<ContainerStatus>,
}

/// `ContainerStatus`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerStatus {
    /// Mounts of the container.
    #[prost(message, repeated, tag = "14")]
    pub mounts: Vec<Mount>,
}

/// `Mount`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Mount {
    /// The image that is mounted, if one is (an image volume).
    #[prost(message, optional, tag = "9")]
    pub image: Option<ImageSpec>,
}

/// `ImageSpec`.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct ImageSpec {
    /// A name, digest or id.
    #[prost(string, tag = "1")]
    pub image: String,
}

/// `ListImagesResponse`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ListImagesResponse {
    /// All images.
    #[prost(message, repeated, tag = "1")]
    pub images: Vec<Image>,
}

/// `Image`.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct Image {
    /// The runtime's name for it.
    #[prost(string, tag = "1")]
    pub id: String,
    /// Names with tags.
    #[prost(string, repeated, tag = "2")]
    pub repo_tags: Vec<String>,
    /// Names with digests.
    #[prost(string, repeated, tag = "3")]
    pub repo_digests: Vec<String>,
    /// Size of the image in bytes, as the runtime counts it.
    #[prost(uint64, tag = "4")]
    pub size: u64,
    /// The runtime wants it to stay.
    #[prost(bool, tag = "8")]
    pub pinned: bool,
}

/// `RemoveImageRequest`.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct RemoveImageRequest {
    /// Image to remove.
    #[prost(message, optional, tag = "1")]
    pub image: Option<ImageSpec>,
}

/// `ListContainerStatsRequest`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct ListContainerStatsRequest {
    /// Filter that lets all through: containerd before 1.6 lists none without one.
    #[prost(message, optional, tag = "1")]
    pub filter: Option<Empty>,
}

/// `ListContainerStatsResponse`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ListContainerStatsResponse {
    /// All containers; of containerd also those that have ended.
    #[prost(message, repeated, tag = "1")]
    pub stats: Vec<ContainerStats>,
}

/// `ContainerStats`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerStats {
    /// Container that the numbers are about.
    #[prost(message, optional, tag = "1")]
    pub attributes: Option<ContainerAttributes>,
    /// Usage of the container's writable layer.
    #[prost(message, optional, tag = "4")]
    pub writable_layer: Option<FilesystemUsage>,
}

/// `ContainerAttributes`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerAttributes {
    /// The runtime's name for the container.
    #[prost(string, tag = "1")]
    pub id: String,
    /// The name in the pod.
    #[prost(message, optional, tag = "2")]
    pub metadata: Option<ContainerMetadata>,
    /// Labels that the kubelet has given the container, the pod's UID among them.
    #[prost(map = "string, string", tag = "3")]
    pub labels: HashMap<String, String>,
}

/// `FilesystemUsage`.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct FilesystemUsage {
    /// Filesystem that is used.
    #[prost(message, optional, tag = "2")]
    pub fs_id: Option<FilesystemIdentifier>,
    /// Bytes.
    #[prost(message, optional, tag = "3")]
    pub used_bytes: Option<UInt64Value>,
    /// Inodes.
    #[prost(message, optional, tag = "4")]
    pub inodes_used: Option<UInt64Value>,
}

/// `FilesystemIdentifier`.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct FilesystemIdentifier {
    /// A directory on it.
    #[prost(string, tag = "1")]
    pub mountpoint: String,
}

/// `UInt64Value`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct UInt64Value {
    /// The number.
    #[prost(uint64, tag = "1")]
    pub value: u64,
}

/// `ImageFsInfoResponse`.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct ImageFsInfoResponse {
    /// Filesystems on which images lie.
    #[prost(message, repeated, tag = "1")]
    pub image_filesystems: Vec<FilesystemUsage>,
    /// Filesystems on which writable layers lie; younger runtimes only.
    #[prost(message, repeated, tag = "2")]
    pub container_filesystems: Vec<FilesystemUsage>,
}
