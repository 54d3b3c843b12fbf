//! Which node the story plays on.

use std::fmt;

use evictd_engine::model::quantity::Quantity;
use k8s_openapi::{
    api::core::v1::{Node, NodeSystemInfo},
    apimachinery::pkg::api::resource,
};
use kube::{Api, Client, api::ListParams};

use evictd_tests::prelude::*;

/// containerd's `root`, which the manifests name.
pub const USUAL_RUNTIME_ROOT: &str = "/var/lib/containerd";

pub struct Target {
    /// `metadata.name`.
    pub name: String,
    pub local: bool,
    /// It is this machine or a container of it: /proc/vmstat is the same.
    pub same_kernel: bool,
    /// `containerd://2.1.4`.
    pub runtime: String,
    pub capacity_mib: u64,
    /// Memory that pods cannot have, in MiB.
    pub reserved_mib: u64,
    /// It has no network for pods: only those run that use the node's own.
    pub host_network: bool,
    kubelet: String,
    kernel: String,
}

/// The node of this name; or this machine, if it is a node; or the first that takes pods; or the first that is ready.
pub async fn choose(client: &Client, wanted: Option<&str>) -> Result<Target> {
    let nodes: Api<Node> = Api::all(client.clone());
    let all = nodes.list(&ListParams::default()).await;
    let all = all.context("cannot list the nodes")?.items;
    let read = |path| {
        fs::read_to_string(path)
            .unwrap_or_default()
            .trim()
            .to_owned()
    };
    let here = Machine {
        boot: read("/proc/sys/kernel/random/boot_id"),
        id: read("/etc/machine-id"),
    };
    pick(&all, wanted, &here)
}

/// What tells machines apart.
struct Machine {
    /// Different after every boot; nodes that are containers share it with their host.
    boot: String,
    /// The installation's own; may be missing.
    id: String,
}

impl Machine {
    fn is(&self, node: &Node) -> bool {
        let id = info(node).map_or("", |info| info.machine_id.trim());
        self.has_kernel_of(node) && (id.is_empty() || id == self.id)
    }

    fn has_kernel_of(&self, node: &Node) -> bool {
        info(node).is_some_and(|info| info.boot_id.trim() == self.boot)
    }
}

fn info(node: &Node) -> Option<&NodeSystemInfo> {
    node.status.as_ref()?.node_info.as_ref()
}

fn pick(all: &[Node], wanted: Option<&str>, here: &Machine) -> Result<Target> {
    let name = |node: &Node| node.metadata.name.clone().unwrap_or_default();
    let found = match wanted {
        Some(wanted) => all.iter().find(|n| name(n) == wanted),
        None => {
            let local = all.iter().find(|n| here.is(n));
            let free = || all.iter().find(|n| takes_pods(n));
            // The story's pods tolerate every taint, and a cluster of one node may have left its own there.
            let ready = || all.iter().find(|n| why_not_ready(n).is_none());
            local.or_else(free).or_else(ready)
        }
    };
    let Some(node) = found else {
        let names: Vec<_> = all.iter().map(name).collect();
        bail!(
            "no node is {}; there are: {}",
            wanted.unwrap_or("ready"),
            names.join(", ")
        );
    };
    let why_not = why_not_ready(node);
    let host_network = why_not.as_ref().is_some_and(|why| lacks_network(why));
    if let Some(why) = why_not.filter(|_| !host_network) {
        bail!("the node {} is not Ready: {why}", name(node));
    }
    let status = node.status.clone().unwrap_or_default();
    let info = status.node_info.unwrap_or_default();
    let memory = |of: Option<BTreeMap<String, resource::Quantity>>| mib(&of?.get("memory")?.0);
    let capacity =
        memory(status.capacity).context("the node does not say how much memory it has")?;
    Ok(Target {
        name: name(node),
        local: here.is(node),
        same_kernel: here.has_kernel_of(node),
        runtime: info.container_runtime_version,
        capacity_mib: capacity,
        reserved_mib: capacity.saturating_sub(memory(status.allocatable).unwrap_or(capacity)),
        host_network,
        kubelet: info.kubelet_version,
        kernel: info.kernel_version,
    })
}

/// A quantity of memory in MiB.
pub fn mib(text: &str) -> Option<u64> {
    let quantity: Quantity = text.parse().ok()?;
    u64::try_from(quantity.value() >> 20).ok()
}

/// What the kubelet says; `None` where it is Ready.
fn why_not_ready(node: &Node) -> Option<String> {
    let conditions = node.status.as_ref().and_then(|s| s.conditions.as_deref());
    let mut conditions = conditions.unwrap_or_default().iter();
    match conditions.find(|c| c.type_ == "Ready") {
        Some(ready) if ready.status == "True" => None,
        Some(ready) => Some(ready.message.clone().unwrap_or_default()),
        None => Some("it does not say".to_owned()),
    }
}

/// In these words the kubelet passes on that the runtime has no CNI plugin (`container runtime network not ready:
/// NetworkReady=false reason:NetworkPluginNotReady ...`). Pods of the node's own network start nevertheless.
fn lacks_network(why: &str) -> bool {
    why.contains("NetworkReady=false") && !why.contains("RuntimeReady=false")
}

fn takes_pods(node: &Node) -> bool {
    let spec = node.spec.clone().unwrap_or_default();
    why_not_ready(node).is_none()
        && spec.taints.unwrap_or_default().is_empty()
        && spec.unschedulable != Some(true)
}

impl Target {
    /// Where its container runtime keeps images and writable layers by default.
    pub fn runtime_root(&self) -> &'static str {
        let is = |distribution: &str| self.kubelet.contains(distribution);
        match self.runtime.split("://").next() {
            _ if is("+k3s") => "/var/lib/rancher/k3s/agent/containerd",
            _ if is("+rke2") => "/var/lib/rancher/rke2/agent/containerd",
            Some("cri-o") => "/var/lib/containers/storage",
            Some("docker") => "/var/lib/docker",
            _ => USUAL_RUNTIME_ROOT,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whose = if self.local {
            "this machine"
        } else {
            "another machine"
        };
        write!(
            f,
            "node {} ({whose}), kubelet {}, {}, Linux {}, {} MiB of which {} MiB are kept from pods",
            self.name,
            self.kubelet,
            self.runtime,
            self.kernel,
            self.capacity_mib,
            self.reserved_mib
        )?;
        if self.host_network {
            write!(f, "; it has no network for pods: all of them use its own")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node(name: &str, boot: &str, taints: &Value, ready: &str) -> Node {
        let node = json!({
            "metadata": {"name": name},
            "spec": {"taints": taints},
            "status": {
                "capacity": {"memory": "8148092Ki"},
                "allocatable": {"memory": "8045692Ki"},
                "conditions": [{"type": "Ready", "status": ready}],
                "nodeInfo": {
                    "bootID": boot, "machineID": name, "containerRuntimeVersion": "containerd://2.1.4",
                    "architecture": "", "kernelVersion": "", "kubeProxyVersion": "", "kubeletVersion": "",
                    "operatingSystem": "", "osImage": "", "systemUUID": "",
                },
            },
        });
        serde_json::from_value(node).unwrap()
    }

    fn machine(boot: &str, id: &str) -> Machine {
        let (boot, id) = (boot.to_owned(), id.to_owned());
        Machine { boot, id }
    }

    #[test]
    fn this_machine_comes_first_and_then_who_takes_pods() {
        let taint =
            json!([{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}]);
        let all = [
            node("control", "a", &taint, "True"),
            node("down", "b", &json!([]), "False"),
            node("worker", "c", &json!([]), "True"),
        ];
        let picked = |wanted, boot: &str, id: &str| {
            pick(&all, wanted, &machine(boot, id)).map(|t| (t.name, t.local))
        };
        let found = |name: &str, local| (name.to_owned(), local);
        assert_eq!(
            picked(None, "a", "control").unwrap(),
            found("control", true)
        );
        // A node in a container of this machine: its containerd is not the one that is found here.
        assert_eq!(picked(None, "a", "host").unwrap(), found("worker", false));
        assert_eq!(picked(None, "z", "z").unwrap(), found("worker", false));
        let same_kernel =
            |boot| pick(&all, Some("control"), &machine(boot, "host")).map(|t| t.same_kernel);
        assert!(same_kernel("a").unwrap() && !same_kernel("z").unwrap());
        assert_eq!(
            picked(Some("control"), "c", "worker").unwrap(),
            found("control", false)
        );
        let error = |wanted| picked(Some(wanted), "z", "z").unwrap_err().to_string();
        assert!(error("down").contains("not Ready"));
        assert!(error("x").contains("control, down, worker"));
        let first = pick(&all[..2], None, &machine("z", "z")).unwrap();
        assert_eq!(first.name, "control");
        let target = pick(&all, None, &machine("z", "")).unwrap();
        assert_eq!((target.capacity_mib, target.reserved_mib), (7957, 100));
        assert!(!target.host_network);
    }

    #[test]
    fn a_node_without_a_pod_network_will_do() {
        let mut bare = node("bare", "a", &json!([]), "False");
        let conditions = bare.status.as_mut().unwrap().conditions.as_mut().unwrap();
        conditions[0].message = Some(
            "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady \
             message:Network plugin returns error: cni plugin not initialized"
                .to_owned(),
        );
        let target = pick(&[bare], Some("bare"), &machine("z", "")).unwrap();
        assert!(target.host_network);
    }

    #[test]
    fn the_distribution_tells_where_images_are() {
        let root = |runtime: &str, kubelet: &str| {
            let mut node = node("n", "a", &json!([]), "True");
            let info = node.status.as_mut().unwrap().node_info.as_mut().unwrap();
            info.container_runtime_version = runtime.to_owned();
            info.kubelet_version = kubelet.to_owned();
            pick(&[node], Some("n"), &machine("", ""))
                .unwrap()
                .runtime_root()
        };
        assert_eq!(root("containerd://2.1.4", "v1.36.0"), USUAL_RUNTIME_ROOT);
        assert_eq!(
            root("cri-o://1.36.0", "v1.36.0"),
            "/var/lib/containers/storage"
        );
        let k3s = root("containerd://2.1.4-k3s1", "v1.36.0+k3s1");
        assert_eq!(k3s, "/var/lib/rancher/k3s/agent/containerd");
    }
}
