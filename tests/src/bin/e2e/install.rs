//! evictd on the cluster: applied, waited for, explained when it does not come, taken away again.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::{
    Api, Client, ResourceExt as _,
    api::{DynamicObject, ListParams, LogParams},
};

use super::{
    Arguments,
    apply::{self, MANAGER, title},
    cast::describe,
    images::Images,
    node::Target,
    objects::{self, CONTAINER, Changes},
};

const SELECTOR: &str = "app.kubernetes.io/name=evictd";
/// Where the kubelet's configuration usually is: kubeadm, kind and most others.
const KUBELET_CONFIG: &str = "/var/lib/kubelet/config.yaml";
const PATIENCE: Duration = Duration::from_secs(180);
const LOOK: Duration = Duration::from_secs(1);

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
        let changes = Changes {
            image: images.evictd.clone(),
            privileged: arguments.privileged,
            threshold: arguments.threshold.clone(),
            kubelet_config,
        };
        let objects = objects::read(&arguments.manifests, &changes)?;
        if target.local {
            let mut needed = objects::required_directories(&objects);
            needed.retain(|path| !Path::new(path).is_dir());
            ensure!(
                needed.is_empty(),
                "the kubelet would not start evictd: the node has no {}. Render the chart with other values (see \
                 docs/deploy.md) and give --manifests, or install it and give --installed",
                needed.join(", ")
            );
        }
        // Somebody else's evictd is neither changed nor taken away.
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
        }
        Ok(Self { objects })
    }

    /// Applies everything.
    pub async fn apply(&self, client: &Client) -> Result<()> {
        for object in &self.objects {
            apply::apply(client, object).await?;
        }
        Ok(())
    }

    /// Waits until the agent on the node says that it watches.
    pub async fn wait_until_watching(&self, client: &Client, target: &Target) -> Result<()> {
        let start = Instant::now();
        loop {
            if let Some(pod) = agent(client, target).await? {
                let log = log(client, &pod, false).await;
                if log.contains("watching") {
                    println!("e2e: evictd runs after {:.1?}; it says:", start.elapsed());
                    for line in log.lines() {
                        println!("  {}", line.trim());
                    }
                    return Ok(());
                }
            }
            if start.elapsed() > PATIENCE {
                bail!(
                    "evictd does not watch the node {} after {PATIENCE:?}",
                    target.name
                );
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Everything that tells why evictd is not there or did not do its work.
    pub async fn explain(&self, client: &Client, target: &Target) {
        println!("e2e: what the cluster says of evictd:");
        match agent(client, target).await {
            Ok(Some(pod)) => {
                println!("  {}", describe(&pod));
                for (what, previous) in [("log", false), ("log before its restart", true)] {
                    for line in log(client, &pod, previous).await.lines() {
                        println!("  {what}: {line}");
                    }
                }
            }
            Ok(None) => println!("  there is no pod of the DaemonSet on {}", target.name),
            Err(error) => println!("  {error:#}"),
        }
        for object in &self.objects {
            if let Some(namespace) = object.namespace().filter(|_| is_daemonset(object)) {
                for line in warnings(client, &namespace).await {
                    println!("  {line}");
                }
            }
        }
    }

    /// Takes away what was applied; first the agents, so that each can still take its taint back.
    pub async fn remove(&self, client: &Client, target: &Target) -> Result<()> {
        for daemonset in self.objects.iter().filter(|o| is_daemonset(o)) {
            apply::remove(client, daemonset).await?;
        }
        if self.objects.is_empty() {
            return Ok(());
        }
        let start = Instant::now();
        while let Some(pod) = agent(client, target).await? {
            if start.elapsed() > PATIENCE {
                bail!("{} is not gone after {PATIENCE:?}", describe(&pod));
            }
            tokio::time::sleep(LOOK).await;
        }
        let left = marks(client, target).await;
        for object in self.objects.iter().rev() {
            apply::remove(client, object).await?;
        }
        // A second run would otherwise find a namespace that is on its way out.
        let is_namespace =
            |o: &&DynamicObject| o.types.as_ref().is_some_and(|t| t.kind == "Namespace");
        for namespace in self.objects.iter().filter(is_namespace) {
            while apply::existing(client, namespace).await?.is_some() {
                if start.elapsed() > 2 * PATIENCE {
                    bail!("{} is not gone after {:?}", title(namespace), 2 * PATIENCE);
                }
                tokio::time::sleep(LOOK).await;
            }
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

fn is_daemonset(object: &DynamicObject) -> bool {
    object.types.as_ref().is_some_and(|t| t.kind == "DaemonSet")
}

/// evictd's taints and conditions on the node.
pub async fn marks(client: &Client, target: &Target) -> Result<Vec<String>> {
    let nodes: Api<Node> = Api::all(client.clone());
    let node = nodes
        .get(&target.name)
        .await
        .context("cannot read the node")?;
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
    Ok(taints.chain(conditions).collect())
}

/// The agent's pod on the node.
async fn agent(client: &Client, target: &Target) -> Result<Option<Pod>> {
    let pods: Api<Pod> = Api::all(client.clone());
    let params = ListParams::default()
        .fields(&format!("spec.nodeName={}", target.name))
        .labels(SELECTOR);
    let found = pods
        .list(&params)
        .await
        .context("cannot list evictd's pods")?;
    Ok(found.items.into_iter().next())
}

/// The last lines that the agent has written; empty where there are none.
async fn log(client: &Client, pod: &Pod, previous: bool) -> String {
    let namespace = pod.namespace().unwrap_or_default();
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let params = LogParams {
        container: Some(CONTAINER.to_owned()),
        previous,
        tail_lines: Some(200),
        ..LogParams::default()
    };
    pods.logs(&pod.name_any(), &params)
        .await
        .unwrap_or_default()
}

/// The warnings in a namespace, such as why a DaemonSet's pods may not be made or started.
pub async fn warnings(client: &Client, namespace: &str) -> Vec<String> {
    let events: Api<Event> = Api::namespaced(client.clone(), namespace);
    let Ok(all) = events.list(&ListParams::default()).await else {
        return Vec::new();
    };
    let warnings = all
        .items
        .into_iter()
        .filter(|e| e.type_.as_deref() == Some("Warning"));
    let line = |e: Event| {
        let about = e.involved_object;
        format!(
            "{} {}: {}: {}",
            about.kind.unwrap_or_default(),
            about.name.unwrap_or_default(),
            e.reason.unwrap_or_default(),
            e.message.unwrap_or_default()
        )
    };
    warnings.map(line).collect()
}
