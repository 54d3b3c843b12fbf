//! evictd on the cluster: applied, waited for, explained when it does not come, taken away again.

use evictd_tests::{deploy::missing_capabilities, prelude::*};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client, ResourceExt as _, api::DynamicObject};

use super::{
    Arguments,
    agent::{agent, gives_up, log, warnings},
    apply::{self, MANAGER, kind, title},
    images::Images,
    machine,
    node::Target,
    objects::{self, Changes},
    patience::{is_gone, look_until},
    threshold,
    workload::{describe, is_ready},
};

/// Where the kubelet's configuration usually is: kubeadm, kind and most others.
const KUBELET_CONFIG: &str = "/var/lib/kubelet/config.yaml";
const TIMEOUT: Duration = Duration::from_secs(180);

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
            return Ok(Self {
                objects: Vec::new(),
            });
        }
        let mut kubelet_config = arguments.kubelet_config.clone();
        if kubelet_config.as_deref() == Some("none") {
            kubelet_config = Some(String::new());
        }
        if kubelet_config.is_none() && target.local && !Path::new(KUBELET_CONFIG).exists() {
            println!("e2e: {KUBELET_CONFIG} is not there: the kubelet's default thresholds hold");
            kubelet_config = Some(String::new());
        }
        let mut changes = Changes {
            image: images.evictd.clone(),
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
                println!(
                    "e2e: no container of this machine can have {}: evictd goes without",
                    changes.no_capabilities.join(", ")
                );
            }
            if changes.no_propagation {
                println!(
                    "e2e: mounts here are private: evictd will not see volumes that come later"
                );
            }
            if !changes.left_out.is_empty() {
                println!(
                    "e2e: this machine has no {}: evictd goes without (with the manifests as they are the kubelet would \
                     not start it; docs/deploy.md has the values of the chart for that)",
                    changes.left_out.join(", ")
                );
            }
            objects = objects::read(&arguments.manifests, &changes)?;
        }
        // An evictd that this run did not install is neither changed nor taken away.
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
                Ok(log) if log.contains("watching") => {
                    println!("e2e: evictd runs after {:.1?}; it says:", start.elapsed());
                    for line in log.lines() {
                        println!("  {}", line.trim());
                    }
                }
                // It is ready when it answers at /healthz, which is when it begins to watch.
                Err(error) if is_ready(&pod) => {
                    println!("e2e: evictd is ready; its log cannot be read: {error:#}");
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
            println!("  evictd: {}", line.trim());
        }
    }

    /// Everything that tells why evictd is not there or did not do its work.
    pub async fn explain(&self, client: &Client, target: &Target) {
        println!("e2e: what the cluster says of evictd:");
        match agent(client, target).await {
            Ok(Some(pod)) => {
                println!("  {}", describe(&pod));
                for (what, previous) in [("log", false), ("log before its restart", true)] {
                    let log = log(client, &pod, previous).await;
                    for line in log.unwrap_or_default().lines() {
                        println!("  {what}: {line}");
                    }
                }
            }
            Ok(None) => println!("  there is no pod of the DaemonSet on {}", target.name),
            Err(error) => println!("  {error:#}"),
        }
        for object in &self.objects {
            if let Some(namespace) = object.namespace().filter(|_| kind(object) == "DaemonSet") {
                for line in warnings(client, &namespace).await {
                    println!("  {line}");
                }
            }
        }
    }

    /// Takes away what was applied; first the agents, so that each can still take its taint back.
    pub async fn remove(&self, client: &Client, target: &Target) -> Result<()> {
        for daemonset in self.objects.iter().filter(|o| kind(o) == "DaemonSet") {
            apply::remove(client, daemonset).await?;
        }
        if self.objects.is_empty() {
            return Ok(());
        }
        let look = async || agent(client, target).await;
        if let Some(pod) = look_until(TIMEOUT, is_gone, look).await? {
            bail!("{} is not gone after {TIMEOUT:?}", describe(&pod));
        }
        let left = marks(client, target).await;
        for object in self.objects.iter().rev() {
            apply::remove(client, object).await?;
        }
        // A second run would otherwise find a namespace that is on its way out.
        for namespace in self.objects.iter().filter(|o| kind(o) == "Namespace") {
            wait_until_gone(client, namespace).await?;
        }
        let left = left?;
        ensure!(
            left.is_empty(),
            "evictd is gone and has left {} on the node",
            left.join(", ")
        );
        println!("e2e: evictd is gone, and nothing of it is left on the node");
        Ok(())
    }
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
    let taints = taints
        .into_iter()
        .map(|t| t.key)
        .filter(|k| k.starts_with("evictd.dev/"));
    let conditions = conditions
        .into_iter()
        .map(|c| c.type_)
        .filter(|t| t.starts_with("Evictd"));
    taints.chain(conditions).collect()
}

async fn wait_until_gone(client: &Client, object: &DynamicObject) -> Result<()> {
    let look = async || apply::existing(client, object).await;
    let left = look_until(TIMEOUT, is_gone, look).await?;
    let title = title(object);
    ensure!(left.is_none(), "{title} is not gone after {TIMEOUT:?}");
    Ok(())
}
