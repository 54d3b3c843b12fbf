//! The agent's pod: where it is, what it says, and whether it is worth waiting for.

use evictd_tests::{
    deploy::{CONFIGURATION, objects},
    prelude::*,
};
use k8s_openapi::api::core::v1::{ConfigMap, Event, Pod};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ListParams, LogParams},
};

use super::{
    node::Target,
    objects::CONTAINER,
    workload::{describe, statuses},
};

const SELECTOR: &str = "app.kubernetes.io/name=evictd";

pub async fn agent(client: &Client, target: &Target) -> Result<Option<Pod>> {
    let node = format!("spec.nodeName={}", target.name);
    let mut pods = agents(client, ListParams::default().fields(&node)).await?;
    // After an earlier run there may be one that still ends.
    pods.sort_by_key(|pod| pod.metadata.deletion_timestamp.is_some());
    Ok(pods.into_iter().next())
}

/// Those of these pods that are evictd's, in all namespaces.
pub async fn agents(client: &Client, params: ListParams) -> Result<Vec<Pod>> {
    let pods: Api<Pod> = Api::all(client.clone());
    let found = pods.list(&params.labels(SELECTOR)).await;
    Ok(found.context("cannot list evictd's pods")?.items)
}

/// Whether the configuration that an agent's pod mounts has shadow mode.
pub async fn is_shadow(client: &Client, pod: &Pod) -> Result<bool> {
    let volumes = pod.spec.as_ref().and_then(|s| s.volumes.as_deref());
    let sources = volumes.unwrap_or_default().iter();
    let names = sources.filter_map(|v| v.config_map.as_ref().map(|source| &source.name));
    let namespace = pod.namespace().unwrap_or_default();
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &namespace);
    for name in names {
        let found = maps.get_opt(name).await;
        let found = found.with_context(|| format!("cannot read the ConfigMap {name}"))?;
        let data = found.and_then(|map| map.data).unwrap_or_default();
        let text = data.get(CONFIGURATION).map_or("", String::as_str);
        if objects(text)?.iter().any(|config| config["shadow"] == true) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Why there is no need to wait for this pod any longer: its container starts and ends again, or its image cannot be had.
pub fn gives_up(pod: &Pod) -> Option<String> {
    const HOPELESS: [&str; 5] = [
        "CrashLoopBackOff",
        "ImagePullBackOff",
        "ErrImageNeverPull",
        "InvalidImageName",
        "CreateContainerError",
    ];
    let waiting = statuses(pod)
        .iter()
        .filter_map(|c| c.state.as_ref()?.waiting.as_ref()?.reason.as_deref());
    let hopeless = waiting.into_iter().any(|why| HOPELESS.contains(&why));
    hopeless.then(|| describe(pod))
}

/// The last lines that the agent has written.
pub async fn log(client: &Client, pod: &Pod, previous: bool) -> kube::Result<String> {
    let namespace = pod.namespace().unwrap_or_default();
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let params = LogParams {
        container: Some(CONTAINER.to_owned()),
        previous,
        tail_lines: Some(200),
        ..LogParams::default()
    };
    pods.logs(&pod.name_any(), &params).await
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
