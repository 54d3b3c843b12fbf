//! evictd on the cluster: applied, waited for, explained when it does not come, taken away again.

use evictd_node::bpf::pin::{PinDirectory, detach};
use evictd_tests::{deploy::missing_capabilities, prelude::*};
use k8s_openapi::api::core::v1::{Node, Taint};
use kube::{
    Api, Client, ResourceExt as _,
    api::{DynamicObject, ListParams, Patch, PatchParams},
};

use super::{
    Arguments,
    agent::{agent, agents, gives_up, is_shadow, log, warnings},
    apply::{self, MANAGER, kind, title},
    images::Images,
    machine,
    node::Target,
    objects::{self, Changes, TRANSITION},
    patience::{is_gone, look_until},
    threshold,
    workload::{describe, is_ready},
};

/// Where the kubelet's configuration usually is: kubeadm, kind and most others.
const KUBELET_CONFIG: &str = "/var/lib/kubelet/config.yaml";
const TIMEOUT: Duration = Duration::from_secs(180);
/// Time that the agent may take to hear that the hog is gone, and to write to the Node.
const SLACK: Duration = Duration::from_secs(60);
/// `EvictdMemoryPressure`, ...
const CONDITIONS: &str = "Evictd";

/// What was brought to the cluster; nothing where evictd was there before.
pub struct Installation {
    objects: Vec<DynamicObject>,
}

impl Installation {
    /// Reads the manifests and looks for what would be in the way.
    pub async fn prepare(
        client: &Client,
        arguments: &Arguments,
        target: &Target,
        images: &Images,
    ) -> Result<Self> {
        if arguments.installed {
            if let Some(pod) = agent(client, target).await? {
                ensure!(
                    !is_shadow(client, &pod).await?,
                    "the installed {} runs in shadow mode, in which evictd evicts nothing",
                    pod.name_any()
                );
            }
            return Ok(Self {
                objects: Vec::new(),
            });
        }
        let mut kubelet_config = arguments.kubelet_config.clone();
        if kubelet_config.as_deref() == Some("none") {
            kubelet_config = Some(String::new());
        }
        if kubelet_config.is_none() && target.local && !Path::new(KUBELET_CONFIG).exists() {
            say!("e2e: {KUBELET_CONFIG} is not there: the kubelet's default thresholds hold");
            kubelet_config = Some(String::new());
        }
        let mut changes = Changes {
            image: images.evictd.clone(),
            node: target.name.clone(),
            privileged: arguments.privileged,
            threshold: threshold::choose(client, target, arguments.threshold.as_deref()).await?,
            kubelet_config,
            host_network: target.host_network,
            runtime_root: Some(target.runtime_root().to_owned()),
            ..Changes::default()
        };
        let mut objects = objects::read(&arguments.manifests, &changes)?;
        if target.local {
            let needed = objects::required_directories(&objects);
            let handed_on = objects::propagated_directories(&objects);
            changes.no_propagation = !handed_on.iter().all(|path| machine::propagates(path));
            changes.left_out = machine::missing(needed);
            changes.no_capabilities = missing_capabilities();
            if !changes.no_capabilities.is_empty() {
                say!(
                    "e2e: no container of this machine can have {}: evictd goes without",
                    changes.no_capabilities.join(", ")
                );
            }
            if changes.no_propagation {
                say!("e2e: mounts here are private: evictd will not see volumes that come later");
            }
            if !changes.left_out.is_empty() {
                say!(
                    "e2e: this machine has no {}: evictd goes without (with the manifests as they are the kubelet would \
                     not start it; docs/deploy.md has the values of the chart for that)",
                    changes.left_out.join(", ")
                );
            }
            objects = objects::read(&arguments.manifests, &changes)?;
        }
        // An evictd that this run did not install is neither changed nor taken away.
        let daemonsets = objects.iter().filter(|o| kind(o) == "DaemonSet");
        let namespaces: Vec<_> = daemonsets.filter_map(|o| o.namespace()).collect();
        for pod in agents(client, ListParams::default()).await? {
            let namespace = pod.namespace().unwrap_or_default();
            ensure!(
                namespaces.contains(&namespace),
                "{namespace}/{} was not made by this test: evictd is installed. Give --installed to use it, or take it \
                 away",
                pod.name_any()
            );
        }
        for object in &objects {
            let Some(found) = apply::existing(client, object).await? else {
                continue;
            };
            let fields = found.managed_fields();
            let ours = fields.iter().any(|f| f.manager.as_deref() == Some(MANAGER));
            ensure!(
                ours,
                "{} exists and was not made by this test: evictd is installed. Give --installed to use it, or take \
                 it away",
                title(object)
            );
            // Of a run with --keep. Its agent is not the one to be tried, and has marked the node.
            if kind(object) == "DaemonSet" {
                say!("e2e: an earlier run has left {}", title(object));
                apply::remove(client, object).await?;
                wait_until_gone(client, object).await?;
                wait_for_agents_end(client, target).await?;
                take_leftovers(client, target).await?;
                continue;
            }
            // An earlier run may still be on its way out, and nothing can be made in a namespace that is.
            if found.metadata.deletion_timestamp.is_some() {
                wait_until_gone(client, object).await?;
            }
        }
        Ok(Self { objects })
    }

    pub async fn apply(&self, client: &Client) -> Result<()> {
        for object in &self.objects {
            apply::apply(client, object).await?;
        }
        Ok(())
    }

    /// Waits until the agent on the node says that it watches.
    pub async fn wait_until_watching(&self, client: &Client, target: &Target) -> Result<()> {
        let start = Instant::now();
        // Whether it watches.
        let look = async || {
            let Some(pod) = agent(client, target).await? else {
                return Ok(false);
            };
            match log(client, &pod, false).await {
                // The log of one that was installed long ago begins later.
                Ok(log) if is_ready(&pod) || log.contains("watching") => {
                    say!("e2e: evictd runs after {:.1?}; it says:", start.elapsed());
                    for line in log.lines() {
                        say!("  {}", line.trim());
                    }
                }
                // It is ready when it answers at /healthz, which is when it begins to watch.
                Err(error) if is_ready(&pod) => {
                    say!("e2e: evictd is ready; its log cannot be read: {error:#}");
                }
                _ => {
                    if let Some(why) = gives_up(&pod) {
                        bail!("evictd does not start: {why}");
                    }
                    return Ok(false);
                }
            }
            anyhow::Ok(true)
        };
        let watches = look_until(TIMEOUT, |seen| !matches!(seen, Ok(false)), look).await?;
        let name = &target.name;
        ensure!(
            watches,
            "evictd does not watch the node {name} after {TIMEOUT:?}"
        );
        Ok(())
    }

    /// What evictd itself has to say about evictions, for people.
    pub async fn quote(&self, client: &Client, target: &Target) {
        let Ok(Some(pod)) = agent(client, target).await else {
            return;
        };
        let log = log(client, &pod, false).await.unwrap_or_default();
        for line in log.lines().filter(|line| line.contains("evicted")) {
            say!("  evictd: {}", line.trim());
        }
    }

    /// Everything that tells why evictd is not there or did not do its work.
    pub async fn explain(&self, client: &Client, target: &Target) {
        say!("e2e: what the cluster says of evictd:");
        match agent(client, target).await {
            Ok(Some(pod)) => {
                say!("  {}", describe(&pod));
                for (what, previous) in [("log", false), ("log before its restart", true)] {
                    let log = log(client, &pod, previous).await;
                    for line in log.unwrap_or_default().lines() {
                        say!("  {what}: {line}");
                    }
                }
            }
            Ok(None) => say!("  there is no pod of the DaemonSet on {}", target.name),
            Err(error) => say!("  {error:#}"),
        }
        for object in &self.objects {
            if let Some(namespace) = object.namespace().filter(|_| kind(object) == "DaemonSet") {
                for line in warnings(client, &namespace).await {
                    say!("  {line}");
                }
            }
        }
    }

    /// Takes away what was applied. An agent takes its condition and its taint back when the transition period is over, so
    /// that is waited for before it goes. What fails holds up nothing of the rest.
    pub async fn remove(&self, client: &Client, target: &Target) -> Result<()> {
        if self.objects.is_empty() {
            return Ok(());
        }
        if !matches!(agent(client, target).await, Ok(None)) {
            say!("e2e: evictd goes when its condition is over, {TRANSITION:?} after the pressure");
            let is_over = |seen: &Result<Vec<String>>| seen.as_ref().is_ok_and(Vec::is_empty);
            let look = async || marks(client, target).await;
            // What is there after that is taken away below.
            drop(look_until(TRANSITION + SLACK, is_over, look).await);
        }
        let mut failed = Vec::new();
        let is_agents = |object: &&DynamicObject| kind(object) == "DaemonSet";
        for daemonset in self.objects.iter().filter(is_agents) {
            failed.extend(apply::remove(client, daemonset).await.err());
        }
        failed.extend(wait_for_agents_end(client, target).await.err());
        match take_leftovers(client, target).await {
            Ok(left) if left.is_empty() => {}
            Ok(left) => failed.push(Error::msg(format!(
                "evictd left {} on the node: now taken away",
                left.join(", ")
            ))),
            Err(error) => failed.push(error.context("what evictd has left on the node")),
        }
        for object in self.objects.iter().rev().filter(|o| !is_agents(o)) {
            failed.extend(apply::remove(client, object).await.err());
        }
        // A second run would otherwise find a namespace that is on its way out.
        for namespace in self.objects.iter().filter(|o| kind(o) == "Namespace") {
            failed.extend(wait_until_gone(client, namespace).await.err());
        }
        for error in &failed {
            say!("e2e: {error:#}");
        }
        ensure!(failed.is_empty(), "evictd did not go as it should");
        say!("e2e: evictd is gone, and nothing of it is left on the node");
        Ok(())
    }
}

async fn wait_for_agents_end(client: &Client, target: &Target) -> Result<()> {
    let look = async || agent(client, target).await;
    if let Some(pod) = look_until(TIMEOUT, is_gone, look).await? {
        bail!("{} is not gone after {TIMEOUT:?}", describe(&pod));
    }
    Ok(())
}

/// Takes away what no agent takes back any more, and says what that was: marks on the Node, a guard pinned on this machine.
async fn take_leftovers(client: &Client, target: &Target) -> Result<Vec<String>> {
    let look = async || marks(client, target).await;
    let mut left = look_until(SLACK, Result::is_ok, look).await?;
    if !left.is_empty() {
        // The kubelet may change the Node in between.
        let unmark = async || unmark(client, target).await;
        look_until(SLACK, Result::is_ok, unmark).await?;
    }
    let pins = PinDirectory::path_of(
        Path::new("/sys/fs/bpf/evictd"),
        Path::new("/var/lib/evictd"),
    );
    // One that is empty is no guard.
    if target.local && pins.exists() && !detach(&pins)?.is_empty() {
        left.push(pins.display().to_string());
    }
    Ok(left)
}

async fn unmark(client: &Client, target: &Target) -> kube::Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    let params = PatchParams::default();
    let node = nodes.get(&target.name).await?;
    let marks = marks_of(node.clone());
    let mut taints = node.spec.and_then(|s| s.taints).unwrap_or_default();
    let before = taints.len();
    taints.retain(|taint| !is_own(taint));
    if taints.len() < before {
        let change = json!({
            "metadata": {"resourceVersion": node.metadata.resource_version},
            "spec": {"taints": taints},
        });
        let patch = Patch::Merge(change);
        nodes.patch(&target.name, &params, &patch).await?;
    }
    let conditions = marks.iter().filter(|mark| mark.starts_with(CONDITIONS));
    let conditions: Vec<Value> = conditions
        .map(|condition| json!({"$patch": "delete", "type": condition}))
        .collect();
    if !conditions.is_empty() {
        let patch = Patch::Strategic(json!({"status": {"conditions": conditions}}));
        nodes.patch_status(&target.name, &params, &patch).await?;
    }
    Ok(())
}

/// evictd's taints and conditions on the node.
pub async fn marks(client: &Client, target: &Target) -> Result<Vec<String>> {
    let nodes: Api<Node> = Api::all(client.clone());
    let node = nodes
        .get(&target.name)
        .await
        .context("cannot read the node")?;
    Ok(marks_of(node))
}

/// The same of a node as it was read.
pub fn marks_of(node: Node) -> Vec<String> {
    let taints = node.spec.and_then(|s| s.taints).unwrap_or_default();
    let conditions = node.status.and_then(|s| s.conditions).unwrap_or_default();
    let taints = taints.into_iter().filter(is_own).map(|t| t.key);
    let conditions = conditions
        .into_iter()
        .map(|c| c.type_)
        .filter(|t| t.starts_with(CONDITIONS));
    taints.chain(conditions).collect()
}

/// `evictd.dev/memory-pressure`, ...; a node pool may have a taint below `evictd.dev/` too.
fn is_own(taint: &Taint) -> bool {
    taint.key.starts_with("evictd.dev/") && taint.key.ends_with("-pressure")
}

async fn wait_until_gone(client: &Client, object: &DynamicObject) -> Result<()> {
    let look = async || apply::existing(client, object).await;
    let left = look_until(TIMEOUT, is_gone, look).await?;
    let title = title(object);
    ensure!(left.is_none(), "{title} is not gone after {TIMEOUT:?}");
    Ok(())
}
