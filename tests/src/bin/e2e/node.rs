//! Which node the story plays on.

use std::{fmt, fs};

use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client, api::ListParams};

/// The node.
pub struct Target {
    /// `metadata.name`.
    pub name: String,
    /// Whether it is this machine.
    pub local: bool,
    /// `containerd://2.1.4`.
    pub runtime: String,
    /// Memory in MiB.
    pub capacity_mib: u64,
    /// Memory that pods cannot have, in MiB.
    reserved_mib: u64,
    kubelet: String,
    kernel: String,
}

/// The node of this name; or this machine, if it is a node; or the first that takes pods.
pub async fn choose(client: &Client, wanted: Option<&str>) -> Result<Target> {
    let nodes: Api<Node> = Api::all(client.clone());
    let all = nodes.list(&ListParams::default()).await;
    let all = all.context("cannot list the nodes")?.items;
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    pick(&all, wanted, boot.trim())
}

fn pick(all: &[Node], wanted: Option<&str>, boot: &str) -> Result<Target> {
    let name = |node: &Node| node.metadata.name.clone().unwrap_or_default();
    let found = match wanted {
        Some(wanted) => all.iter().find(|n| name(n) == wanted),
        None => {
            let local = all.iter().find(|n| boot_id(n) == boot);
            local.or_else(|| all.iter().find(|n| takes_pods(n)))
        }
    };
    let Some(node) = found else {
        let names: Vec<_> = all.iter().map(name).collect();
        bail!(
            "no node is {}; there are: {}",
            wanted.unwrap_or("ready and takes pods"),
            names.join(", ")
        );
    };
    if !is_ready(node) {
        bail!("the node {} is not Ready", name(node));
    }
    let status = node.status.clone().unwrap_or_default();
    let info = status.node_info.unwrap_or_default();
    let memory = |field: Option<std::collections::BTreeMap<_, _>>| -> Option<u64> {
        let text: &k8s_openapi::apimachinery::pkg::api::resource::Quantity =
            field.as_ref()?.get("memory")?;
        let quantity: evictd::config::Quantity = text.0.parse().ok()?;
        u64::try_from(quantity.value())
            .ok()
            .map(|bytes| bytes >> 20)
    };
    let capacity =
        memory(status.capacity).context("the node does not say how much memory it has")?;
    Ok(Target {
        name: name(node),
        local: boot_id(node) == boot,
        runtime: info.container_runtime_version,
        capacity_mib: capacity,
        reserved_mib: capacity.saturating_sub(memory(status.allocatable).unwrap_or(capacity)),
        kubelet: info.kubelet_version,
        kernel: info.kernel_version,
    })
}

/// Different after every boot, and the same for everybody who looks at one machine.
fn boot_id(node: &Node) -> &str {
    let info = node.status.as_ref().and_then(|s| s.node_info.as_ref());
    info.map(|i| i.boot_id.as_str()).unwrap_or_default()
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|s| s.conditions.as_deref());
    let mut conditions = conditions.unwrap_or_default().iter();
    conditions.any(|c| c.type_ == "Ready" && c.status == "True")
}

fn takes_pods(node: &Node) -> bool {
    let spec = node.spec.clone().unwrap_or_default();
    is_ready(node) && spec.taints.unwrap_or_default().is_empty() && spec.unschedulable != Some(true)
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
        )
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
                "nodeInfo": {"bootID": boot, "containerRuntimeVersion": "containerd://2.1.4"},
            },
        });
        serde_json::from_value(node).unwrap()
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
        let picked = |wanted, boot| pick(&all, wanted, boot).map(|t| (t.name, t.local));
        assert_eq!(picked(None, "a").unwrap(), ("control".to_owned(), true));
        assert_eq!(picked(None, "z").unwrap(), ("worker".to_owned(), false));
        assert_eq!(
            picked(Some("control"), "c").unwrap(),
            ("control".to_owned(), false)
        );
        let error = |wanted| picked(Some(wanted), "z").unwrap_err().to_string();
        assert!(error("down").contains("not Ready"));
        assert!(error("x").contains("control, down, worker"));
        let target = pick(&all, None, "z").unwrap();
        assert_eq!((target.capacity_mib, target.reserved_mib), (7957, 100));
    }
}
