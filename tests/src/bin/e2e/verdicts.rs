//! What the cluster has to say afterwards.

use evictd_node::trigger::oom::kills_of_machine;
use evictd_tests::prelude::*;
use k8s_openapi::api::core::v1::{ContainerStatus, Event, Pod};
use kube::{Api, Client, ResourceExt as _, api::ListParams};

use super::{
    install::marks,
    node::Target,
    patience::look_until,
    seen::Seen,
    workload::{Cast, describe, is_ready, statuses},
};

/// `reportingComponent` of evictd's Events.
const CONTROLLER: &str = "evictd";
/// Longest `reportingInstance` that the API takes, in bytes; the name of a node may be longer.
const INSTANCE_BYTES: usize = 128;

#[derive(Debug)]
pub struct Verdict {
    /// Whether it is as it should be.
    pub good: bool,
    pub text: String,
}

fn status(good: bool, text: String) -> Verdict {
    Verdict { good, text }
}

pub struct Before {
    /// UIDs of the Events of the node, and of those about evictions there.
    events: Vec<String>,
    /// The node's pods.
    pods: Vec<Pod>,
    /// `oom_kill` of this machine's /proc/vmstat, where the node has the same kernel.
    oom_kills: Option<u64>,
    /// Whether evictd was there before, with times of its own for the taint.
    installed: bool,
}

impl Before {
    pub async fn look(client: &Client, target: &Target, installed: bool) -> Result<Self> {
        let mut events = on_node(client, target).await?;
        events.extend(evictions(client, target).await?);
        Ok(Self {
            events: events.iter().filter_map(|e| e.uid()).collect(),
            pods: pods(client, target).await?,
            oom_kills: oom_kills(target),
            installed,
        })
    }

    /// Those of these Events that were not there.
    fn only_new(&self, mut events: Vec<Event>) -> Vec<Event> {
        events.retain(|e| e.uid().is_none_or(|uid| !self.events.contains(&uid)));
        events
    }
}

/// Everything that has to hold after the hog is gone.
pub async fn look(
    client: &Client,
    target: &Target,
    workload: &Cast,
    before: &Before,
    seen: &Seen,
    settle: Duration,
) -> Result<Vec<Verdict>> {
    let mut verdicts = about_hog(seen);
    // First: they stay for the transition period only.
    let marked = async || Ok(marked(&marks(client, target).await?, before.installed));
    verdicts.push(patiently(settle, marked).await?);
    let evicted = async || {
        let new = before.only_new(evictions(client, target).await?);
        Ok(evicted_events(&new, &seen.uid))
    };
    verdicts.push(patiently(settle, evicted).await?);
    let new_events = async || anyhow::Ok(before.only_new(on_node(client, target).await?));
    let of_node = async || Ok(node_events(&new_events().await?));
    verdicts.push(patiently(settle, of_node).await?);
    let oom = async || {
        let new = new_events().await?;
        anyhow::Ok(no_oom(&new, before.oom_kills, oom_kills(target)))
    };
    // What has happened does not go away: one look that succeeds is enough. The API server may be short of memory too.
    let mut oom = look_until(settle, Result::is_ok, oom).await?;
    if !oom.good {
        oom.text = format!(
            "{}. The node keeps {} MiB from pods: the limit of `kubepods` may be met before the node's threshold",
            oom.text, target.reserved_mib
        );
    }
    verdicts.push(oom);
    let others = async || anyhow::Ok(spared(&before.pods, &pods(client, target).await?));
    verdicts.push(look_until(settle, Result::is_ok, others).await?);
    for survivor in &workload.survivors {
        let name = survivor.name_any();
        let look = async || anyhow::Ok(lives(survivor, workload.get(&name).await?.as_ref()));
        verdicts.push(look_until(settle, Result::is_ok, look).await?);
    }
    Ok(verdicts)
}

/// Looks again until it is good or patience has ended: Events and the taint come after the kill.
async fn patiently(timeout: Duration, look: impl AsyncFn() -> Result<Verdict>) -> Result<Verdict> {
    let is_good = |seen: &Result<Verdict>| seen.as_ref().is_ok_and(|verdict| verdict.good);
    look_until(timeout, is_good, look).await
}

fn about_hog(seen: &Seen) -> Vec<Verdict> {
    let disruption = match &seen.disruption {
        // The object may be gone before the condition could be set: only a wrong one is a failure.
        None => status(
            true,
            "DisruptionTarget was not set: the object went too fast".to_owned(),
        ),
        Some(d) => status(
            d.starts_with("TerminationByKubelet: The node was low on resource: memory"),
            format!("DisruptionTarget: {d}"),
        ),
    };
    let mut verdicts = vec![
        status(
            seen.ran,
            format!(
                "the hog has run, and its object was there for {:.1?}",
                seen.lived
            ),
        ),
        status(
            seen.restarts == 0,
            format!("its restarts: {}", seen.restarts),
        ),
        status(
            !seen.ends.iter().any(|end| end.starts_with("OOMKilled")),
            format!("its container ended with: {}", seen.ends.join(", ")),
        ),
        disruption,
    ];
    if let Some(message) = &seen.by_kubelet {
        verdicts.push(status(
            false,
            format!("the kubelet has evicted it first: {message}"),
        ));
    }
    verdicts
}

/// One Event by evictd on the hog, and none on another object.
fn evicted_events(all: &[Event], hog: &str) -> Verdict {
    let ours: Vec<&Event> = all.iter().filter(|e| is_ours(e, "Evicted")).collect();
    let good = ours.len() == 1 && ours[0].involved_object.uid.as_deref() == Some(hog);
    let notes: Vec<&str> = ours.iter().filter_map(|e| e.message.as_deref()).collect();
    status(
        good,
        format!(
            "{} Event(s) Evicted by evictd: {}",
            ours.len(),
            notes.join(" | ")
        ),
    )
}

fn node_events(new: &[Event]) -> Verdict {
    let ours = new.iter().find(|e| is_ours(e, "EvictionThresholdMet"));
    let note = ours.and_then(|e| e.message.clone());
    let text = note.unwrap_or_else(|| "none".to_owned());
    status(
        ours.is_some(),
        format!("the node's Event EvictionThresholdMet by evictd: {text}"),
    )
}

fn is_ours(event: &Event, reason: &str) -> bool {
    event.reporting_component.as_deref() == Some(CONTROLLER)
        && event.reason.as_deref() == Some(reason)
}

/// `SystemOOM` is the kubelet's, `OOMKilling` the node problem detector's. The kernel's own counter also has what
/// neither of them tells.
fn no_oom(new: &[Event], before: Option<u64>, after: Option<u64>) -> Verdict {
    let is_oom = |e: &&Event| matches!(e.reason.as_deref(), Some("SystemOOM" | "OOMKilling"));
    let events = new.iter().filter(is_oom).count();
    let kills = before.zip(after).map(|(before, after)| after - before);
    let counted = match kills {
        Some(kills) => format!("the kernel has counted {kills}"),
        None => "the kernel's counter is on another machine".to_owned(),
    };
    status(
        events == 0 && kills.unwrap_or(0) == 0,
        format!("OOM kills: {events} Event(s) on the node, {counted}"),
    )
}

/// An evictd that was there before may have another key for its taint, or set it only when pressure lasts.
fn marked(marks: &[String], installed: bool) -> Verdict {
    let has = |mark: &str| marks.iter().any(|m| m == mark);
    let is_tainted = installed || has("evictd.dev/memory-pressure");
    let good = is_tainted && has("EvictdMemoryPressure");
    status(
        good,
        format!(
            "evictd's taint and condition on the node: {}",
            marks.join(", ")
        ),
    )
}

/// No pod that was there before has been evicted by the kubelet or has lost a container to the OOM killer: the hog was not.
fn spared(before: &[Pod], now: &[Pod]) -> Verdict {
    let of_kubelet = |pod: &Pod| {
        let status = pod.status.as_ref();
        status.and_then(|s| s.reason.as_deref()) == Some("Evicted")
    };
    let is_hit = |was: &Pod, is: &Pod| {
        (of_kubelet(is) && !of_kubelet(was)) || !oom_killed(is).is_subset(&oom_killed(was))
    };
    let hit = now.iter().filter(|is| {
        let was = before.iter().find(|was| was.uid() == is.uid());
        was.is_some_and(|was| is_hit(was, is))
    });
    let hit: Vec<_> = hit.map(describe).collect();
    status(
        hit.is_empty(),
        format!(
            "of {} other pods of the node the kubelet has evicted, or the OOM killer hit, {}: {}",
            before.len(),
            hit.len(),
            hit.join(" | ")
        ),
    )
}

/// Containers that the OOM killer has ended, as far as a pod's status tells.
fn oom_killed(pod: &Pod) -> BTreeSet<(String, String)> {
    let states = |c: &ContainerStatus| [c.state.clone(), c.last_state.clone()];
    let status = pod.status.clone().unwrap_or_default();
    let lists = [status.init_container_statuses, status.container_statuses];
    let all = lists.into_iter().flatten().flatten();
    let ends = all.flat_map(|c| states(&c).map(|state| (c.name.clone(), state)));
    ends.filter_map(|(name, state)| {
        let end = state?.terminated?;
        (end.reason.as_deref() == Some("OOMKilled"))
            .then(|| (name, end.container_id.unwrap_or_default()))
    })
    .collect()
}

fn lives(before: &Pod, now: Option<&Pod>) -> Verdict {
    let Some(now) = now else {
        return status(false, format!("{} is gone", before.name_any()));
    };
    let restarts: i32 = statuses(now).iter().map(|c| c.restart_count).sum();
    let good = now.uid() == before.uid() && is_ready(now) && restarts == 0;
    status(good, format!("{}, restarts: {restarts}", describe(now)))
}

async fn on_node(client: &Client, target: &Target) -> Result<Vec<Event>> {
    let events: Api<Event> = Api::namespaced(client.clone(), "default");
    let fields = format!(
        "involvedObject.kind=Node,involvedObject.name={}",
        target.name
    );
    let found = events.list(&ListParams::default().fields(&fields)).await;
    Ok(found.context("cannot list the node's Events")?.items)
}

/// evictd's Events about evictions on the node, in all namespaces.
async fn evictions(client: &Client, target: &Target) -> Result<Vec<Event>> {
    let events: Api<Event> = Api::all(client.clone());
    let fields = format!("reason=Evicted,reportingComponent={CONTROLLER}");
    let found = events.list(&ListParams::default().fields(&fields)).await;
    let mut found = found.context("cannot list Events")?.items;
    found.retain(|event| is_from(event, &target.name));
    Ok(found)
}

fn is_from(event: &Event, node: &str) -> bool {
    let node = node.get(..INSTANCE_BYTES).unwrap_or(node);
    event.reporting_instance.as_deref() == Some(node)
}

async fn pods(client: &Client, target: &Target) -> Result<Vec<Pod>> {
    let pods: Api<Pod> = Api::all(client.clone());
    let fields = format!("spec.nodeName={}", target.name);
    let found = pods.list(&ListParams::default().fields(&fields)).await;
    Ok(found.context("cannot list the node's pods")?.items)
}

/// `oom_kill` of /proc/vmstat, where the node has this machine's kernel.
fn oom_kills(target: &Target) -> Option<u64> {
    target.same_kernel.then(kills_of_machine)?
}

#[cfg(test)]
mod tests;
