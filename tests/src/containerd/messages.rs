//! The CRI's requests that make pods and containers; the messages have the fields that are set here
//! (`k8s.io/cri-api/pkg/apis/runtime/v1/api.proto`).

use evictd_cri::messages::{ContainerMetadata, ImageSpec, PodSandboxMetadata};

/// `NamespaceMode`'s `NODE`.
pub(super) const NODE: i32 = 2;

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct RunPodSandbox {
    #[prost(message, optional, tag = "1")]
    pub(super) config: Option<SandboxConfig>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct SandboxConfig {
    #[prost(message, optional, tag = "1")]
    pub(super) metadata: Option<PodSandboxMetadata>,
    #[prost(string, tag = "3")]
    pub(super) log_directory: String,
    #[prost(message, optional, tag = "8")]
    pub(super) linux: Option<LinuxSandboxConfig>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct LinuxSandboxConfig {
    #[prost(message, optional, tag = "2")]
    pub(super) security_context: Option<SecurityContext>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct SecurityContext {
    #[prost(message, optional, tag = "1")]
    pub(super) namespace_options: Option<NamespaceOption>,
    #[prost(bool, tag = "6")]
    pub(super) privileged: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct NamespaceOption {
    #[prost(int32, tag = "1")]
    pub(super) network: i32,
    #[prost(int32, tag = "2")]
    pub(super) pid: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct SandboxId {
    #[prost(string, tag = "1")]
    pub(super) id: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct CreateContainer {
    #[prost(string, tag = "1")]
    pub(super) pod_sandbox_id: String,
    #[prost(message, optional, tag = "2")]
    pub(super) config: Option<ContainerConfig>,
    #[prost(message, optional, tag = "3")]
    pub(super) sandbox_config: Option<SandboxConfig>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ContainerConfig {
    #[prost(message, optional, tag = "1")]
    pub(super) metadata: Option<ContainerMetadata>,
    #[prost(message, optional, tag = "2")]
    pub(super) image: Option<ImageSpec>,
    #[prost(string, repeated, tag = "3")]
    pub(super) command: Vec<String>,
    #[prost(string, repeated, tag = "4")]
    pub(super) args: Vec<String>,
    #[prost(message, repeated, tag = "6")]
    pub(super) envs: Vec<KeyValue>,
    #[prost(message, repeated, tag = "7")]
    pub(super) mounts: Vec<Mount>,
    #[prost(string, tag = "11")]
    pub(super) log_path: String,
    #[prost(message, optional, tag = "15")]
    pub(super) linux: Option<LinuxContainerConfig>,
}

impl ContainerConfig {
    /// One of this name and image, with nothing else said about it.
    pub(super) fn named(name: &str, attempt: u32, image: &str) -> Self {
        Self {
            metadata: Some(ContainerMetadata {
                name: name.to_owned(),
                attempt,
            }),
            image: Some(ImageSpec {
                image: image.to_owned(),
            }),
            ..Self::default()
        }
    }
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct KeyValue {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(string, tag = "2")]
    pub(super) value: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Mount {
    #[prost(string, tag = "1")]
    pub(super) container_path: String,
    #[prost(string, tag = "2")]
    pub(super) host_path: String,
    #[prost(bool, tag = "3")]
    pub(super) readonly: bool,
    /// 1: `PROPAGATION_HOST_TO_CONTAINER`.
    #[prost(int32, tag = "5")]
    pub(super) propagation: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct LinuxContainerConfig {
    #[prost(message, optional, tag = "1")]
    pub(super) resources: Option<LinuxContainerResources>,
    #[prost(message, optional, tag = "2")]
    pub(super) security_context: Option<LinuxContainerSecurityContext>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct LinuxContainerResources {
    #[prost(int64, tag = "4")]
    pub(super) memory_limit_in_bytes: i64,
    #[prost(int64, tag = "5")]
    pub(super) oom_score_adj: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct LinuxContainerSecurityContext {
    #[prost(message, optional, tag = "1")]
    pub(super) capabilities: Option<Capability>,
    #[prost(bool, tag = "2")]
    pub(super) privileged: bool,
    #[prost(message, optional, tag = "3")]
    pub(super) namespace_options: Option<NamespaceOption>,
    #[prost(message, optional, tag = "5")]
    pub(super) run_as_user: Option<Int64Value>,
    #[prost(bool, tag = "7")]
    pub(super) readonly_rootfs: bool,
    #[prost(bool, tag = "11")]
    pub(super) no_new_privs: bool,
    #[prost(message, optional, tag = "12")]
    pub(super) run_as_group: Option<Int64Value>,
    #[prost(string, repeated, tag = "13")]
    pub(super) masked_paths: Vec<String>,
    #[prost(string, repeated, tag = "14")]
    pub(super) readonly_paths: Vec<String>,
    #[prost(message, optional, tag = "15")]
    pub(super) seccomp: Option<SecurityProfile>,
    #[prost(message, optional, tag = "16")]
    pub(super) apparmor: Option<SecurityProfile>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Capability {
    #[prost(string, repeated, tag = "1")]
    pub(super) add_capabilities: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub(super) drop_capabilities: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Int64Value {
    #[prost(int64, tag = "1")]
    pub(super) value: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct SecurityProfile {
    /// 0: `RuntimeDefault`, 1: `Unconfined`.
    #[prost(int32, tag = "1")]
    pub(super) profile_type: i32,
    #[prost(string, tag = "2")]
    pub(super) localhost_ref: String,
}
