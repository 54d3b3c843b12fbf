//! A DaemonSet's container as the kubelet has it made: from the manifest's security context, mounts and arguments to the
//! CRI's request. The kubelet's own translation is in `pkg/kubelet/kuberuntime` (`security_context.go`,
//! `kuberuntime_container_linux.go`).

use super::{
    messages::{
        Capability, ContainerConfig, Int64Value, KeyValue, LinuxContainerConfig,
        LinuxContainerResources, LinuxContainerSecurityContext, Mount, NODE, NamespaceOption,
        SecurityProfile,
    },
    pods::{Pods, sandbox_config},
};
use crate::prelude::*;

/// `defaultMaskedPaths` and `defaultReadonlyPaths` of the kubelet's `pkg/securitycontext/util.go`.
const MASKED: [&str; 9] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/sys/firmware",
];
const READ_ONLY: [&str; 5] = [
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
];

/// Container of a DaemonSet that is started on a node of a test's own.
pub struct DaemonContainer<'a> {
    /// The DaemonSet's `spec.template.spec`.
    pub spec: &'a Value,
    /// Image of the container, as the runtime has it.
    pub image: &'a str,
    /// Command that is run instead of the image's entrypoint.
    pub command: &'a str,
    /// Paths of the volumes, by their names; the others are where the manifest says.
    pub places: BTreeMap<&'a str, &'a Path>,
    /// Paths that are mounted besides, read-only, at the same path.
    pub more: Vec<&'a Path>,
}

fn texts(value: &Value) -> Vec<String> {
    let list = value.as_array().into_iter().flatten();
    list.filter_map(Value::as_str).map(str::to_owned).collect()
}

fn profile(value: &Value) -> Option<SecurityProfile> {
    let profile_type = i32::from(value["type"] == "Unconfined");
    (!value.is_null()).then_some(SecurityProfile {
        profile_type,
        localhost_ref: String::new(),
    })
}

impl DaemonContainer<'_> {
    fn mounts(&self) -> Vec<Mount> {
        let container = &self.spec["containers"][0];
        let mounts = container["volumeMounts"].as_array().into_iter().flatten();
        let volumes = self.spec["volumes"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        let declared = mounts.map(|mount| {
            let name = mount["name"].as_str().unwrap_or_default();
            let volume = volumes.iter().find(|v| v["name"] == name);
            let host = volume
                .and_then(|v| v["hostPath"]["path"].as_str())
                .unwrap_or_default();
            let host = self
                .places
                .get(name)
                .map_or_else(|| host.to_owned(), |p| p.display().to_string());
            Mount {
                container_path: mount["mountPath"].as_str().unwrap_or_default().to_owned(),
                host_path: host,
                readonly: mount["readOnly"] == true,
                propagation: i32::from(mount["mountPropagation"] == "HostToContainer"),
            }
        });
        let more = self.more.iter().map(|path| Mount {
            container_path: path.display().to_string(),
            host_path: path.display().to_string(),
            readonly: true,
            propagation: 0,
        });
        declared.chain(more).collect()
    }

    fn config(&self) -> ContainerConfig {
        let container = &self.spec["containers"][0];
        let security = &container["securityContext"];
        let id = |field: &str| security[field].as_i64().map(|value| Int64Value { value });
        ContainerConfig {
            command: vec![self.command.to_owned()],
            args: texts(&container["args"]),
            envs: vec![KeyValue {
                key: "NODE_NAME".to_owned(),
                value: crate::apiserver::NODE.to_owned(),
            }],
            mounts: self.mounts(),
            log_path: "evictd.log".to_owned(),
            linux: Some(LinuxContainerConfig {
                resources: Some(LinuxContainerResources {
                    memory_limit_in_bytes: 128 << 20,
                    // system-node-critical.
                    oom_score_adj: -997,
                }),
                security_context: Some(LinuxContainerSecurityContext {
                    capabilities: Some(Capability {
                        add_capabilities: texts(&security["capabilities"]["add"]),
                        drop_capabilities: texts(&security["capabilities"]["drop"]),
                    }),
                    privileged: security["privileged"] == true,
                    namespace_options: Some(NamespaceOption {
                        network: NODE,
                        pid: if self.spec["hostPID"] == true {
                            NODE
                        } else {
                            0
                        },
                    }),
                    run_as_user: id("runAsUser"),
                    run_as_group: id("runAsGroup"),
                    readonly_rootfs: security["readOnlyRootFilesystem"] == true,
                    no_new_privs: security["allowPrivilegeEscalation"] == false,
                    masked_paths: MASKED.map(str::to_owned).to_vec(),
                    readonly_paths: READ_ONLY.map(str::to_owned).to_vec(),
                    seccomp: profile(&security["seccompProfile"]),
                    apparmor: profile(&security["appArmorProfile"]),
                }),
            }),
            ..ContainerConfig::named("evictd", 0, self.image)
        }
    }
}

impl Pods {
    /// Starts a DaemonSet's pod, its log below `logs`; answers with the container's id.
    pub fn daemon(&self, container: &DaemonContainer<'_>, logs: &Path) -> Result<String> {
        let shared = container.spec["hostPID"] == true;
        let mut sandbox = sandbox_config("evictd", logs, shared);
        let security = sandbox
            .linux
            .as_mut()
            .and_then(|linux| linux.security_context.as_mut());
        if let Some(security) = security {
            let container = &container.spec["containers"][0];
            security.privileged = container["securityContext"]["privileged"] == true;
        }
        let id = self.run_sandbox(sandbox.clone())?;
        self.create(&id, container.config(), sandbox)
    }
}
