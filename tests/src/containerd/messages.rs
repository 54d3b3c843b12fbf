//! The CRI's requests that make pods and containers; the messages have the fields that are set here
//! (`k8s.io/cri-api/pkg/apis/runtime/v1/api.proto`).

use evictd_cri::messages::{ContainerMetadata, ImageSpec, PodSandboxMetadata};

/// `NamespaceMode`'s `NODE`.
pub(super) const NODE: i32 = 2;

/// Messages with a line for each field: name, type, number and kind.
macro_rules! messages {
    ($($name:ident { $($(#[$doc:meta])* $field:ident: $type:ty = $tag:tt $($kind:ident)+,)* })*) => {$(
        #[derive(Clone, PartialEq, prost::Message)]
        pub(super) struct $name {$(
            $(#[$doc])*
            #[prost($($kind,)+ tag = $tag)]
            pub(super) $field: $type,
        )*}
    )*};
}

messages! {
    RunPodSandbox {
        config: Option<SandboxConfig> = 1 message optional,
    }
    SandboxConfig {
        metadata: Option<PodSandboxMetadata> = 1 message optional,
        log_directory: String = 3 string,
        linux: Option<LinuxSandboxConfig> = 8 message optional,
    }
    LinuxSandboxConfig {
        security_context: Option<SecurityContext> = 2 message optional,
    }
    SecurityContext {
        namespace_options: Option<NamespaceOption> = 1 message optional,
        privileged: bool = 6 bool,
    }
    NamespaceOption {
        network: i32 = 1 int32,
        pid: i32 = 2 int32,
    }
    SandboxId {
        id: String = 1 string,
    }
    CreateContainer {
        pod_sandbox_id: String = 1 string,
        config: Option<ContainerConfig> = 2 message optional,
        sandbox_config: Option<SandboxConfig> = 3 message optional,
    }
    ContainerConfig {
        metadata: Option<ContainerMetadata> = 1 message optional,
        image: Option<ImageSpec> = 2 message optional,
        command: Vec<String> = 3 string repeated,
        args: Vec<String> = 4 string repeated,
        envs: Vec<KeyValue> = 6 message repeated,
        mounts: Vec<Mount> = 7 message repeated,
        log_path: String = 11 string,
        linux: Option<LinuxContainerConfig> = 15 message optional,
    }
    KeyValue {
        key: String = 1 string,
        value: String = 2 string,
    }
    Mount {
        container_path: String = 1 string,
        host_path: String = 2 string,
        readonly: bool = 3 bool,
        /// 1: `PROPAGATION_HOST_TO_CONTAINER`.
        propagation: i32 = 5 int32,
    }
    LinuxContainerConfig {
        resources: Option<LinuxContainerResources> = 1 message optional,
        security_context: Option<LinuxContainerSecurityContext> = 2 message optional,
    }
    LinuxContainerResources {
        memory_limit_in_bytes: i64 = 4 int64,
        oom_score_adj: i64 = 5 int64,
    }
    LinuxContainerSecurityContext {
        capabilities: Option<Capability> = 1 message optional,
        privileged: bool = 2 bool,
        namespace_options: Option<NamespaceOption> = 3 message optional,
        run_as_user: Option<Int64Value> = 5 message optional,
        readonly_rootfs: bool = 7 bool,
        no_new_privs: bool = 11 bool,
        run_as_group: Option<Int64Value> = 12 message optional,
        masked_paths: Vec<String> = 13 string repeated,
        readonly_paths: Vec<String> = 14 string repeated,
        seccomp: Option<SecurityProfile> = 15 message optional,
        apparmor: Option<SecurityProfile> = 16 message optional,
    }
    Capability {
        add_capabilities: Vec<String> = 1 string repeated,
        drop_capabilities: Vec<String> = 2 string repeated,
    }
    Int64Value {
        value: i64 = 1 int64,
    }
    SecurityProfile {
        /// 0: `RuntimeDefault`, 1: `Unconfined`.
        profile_type: i32 = 1 int32,
        localhost_ref: String = 2 string,
    }
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
