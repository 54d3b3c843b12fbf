//! Which containers and sandboxes are no longer needed, as the kubelet's container garbage collection sees it when the
//! eviction manager asks for `deleteAllUnusedContainers` (kuberuntime_gc.go).

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashSet},
};

use evictd_engine::node_reclaim::KnownPods;

use super::messages::{Container, ContainerState, PodSandbox, SandboxState};

/// The sandboxes, with what is to be known of the pods that they are of.
struct Pods<'a> {
    of_sandbox: BTreeMap<&'a str, &'a str>,
    /// A sandbox that is ready or a container that runs: this pod lives, whether the agent knows it or not.
    alive: BTreeSet<&'a str>,
    known: &'a KnownPods,
}

impl<'a> Pods<'a> {
    fn new(containers: &'a [Container], sandboxes: &'a [PodSandbox], known: &'a KnownPods) -> Self {
        let of_sandbox: BTreeMap<_, _> = sandboxes.iter().map(|s| (&*s.id, uid(s))).collect();
        let ready = sandboxes.iter().filter(|s| is_ready(s)).map(uid);
        let has_not_ended = containers
            .iter()
            .filter(|c| c.state() != ContainerState::Exited)
            .filter_map(|c| of_sandbox.get(&*c.pod_sandbox_id).copied());
        let alive = ready.chain(has_not_ended).collect();
        Self {
            of_sandbox,
            alive,
            known,
        }
    }

    /// Whether a pod may still need what its last containers have left: the kubelet counts restarts by them. A pod that
    /// cannot be told from one that lives counts as such.
    fn is_needed(&self, uid: &str) -> bool {
        let is_known = |known: &BTreeSet<String>| uid.is_empty() || known.contains(uid);
        self.alive.contains(uid) || self.known.uids.as_ref().is_none_or(is_known)
    }

    /// Whether one that is not the youngest stays as well.
    fn all_stay(&self) -> bool {
        self.known.has_kubelet
    }

    /// Whether the kubelet removes what a pod has left, when it reclaims: the pod is over, and not deleted yet.
    fn is_of_kubelet(&self, uid: &str) -> bool {
        self.all_stay() && self.is_needed(uid) && !self.alive.contains(uid)
    }
}

fn uid(sandbox: &PodSandbox) -> &str {
    sandbox.metadata.as_ref().map_or("", |m| &m.uid)
}

fn is_ready(sandbox: &PodSandbox) -> bool {
    sandbox.state() == SandboxState::Ready
}

/// Containers that have ended, oldest first: all of pods that are gone, and all but the youngest of each name of pods
/// that live (`MaxPerPodContainer` is 1), unless there is a kubelet to remove these with their logs. Those that were
/// never started, and those whose state the runtime does not know, are left to the kubelet.
pub fn containers(
    containers: &[Container],
    sandboxes: &[PodSandbox],
    known: &KnownPods,
) -> Vec<String> {
    let pods = Pods::new(containers, sandboxes, known);
    let mut ended: Vec<&Container> = containers
        .iter()
        .filter(|c| c.state() == ContainerState::Exited)
        .collect();
    // Youngest first: the first of a name is the one that stays.
    let attempt = |c: &Container| c.metadata.as_ref().map_or(0, |m| m.attempt);
    ended.sort_by_key(|c| Reverse((attempt(c), c.created_at)));
    let mut kept = HashSet::new();
    let mut dead: Vec<&Container> = ended
        .into_iter()
        .filter(|container| {
            let Some(uid) = pods.of_sandbox.get(&*container.pod_sandbox_id) else {
                // Its sandbox is gone, and with it the pod.
                return true;
            };
            let name = container.metadata.as_ref().map_or("", |m| &m.name);
            !(pods.is_needed(uid) && (pods.all_stay() || kept.insert((*uid, name))))
        })
        .collect();
    dead.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
    dead.into_iter().map(|c| c.id.clone()).collect()
}

/// Number of containers that stay although their pods are over: the kubelet removes them with their logs as soon as it
/// reclaims (`DeleteAllUnusedContainers`).
pub fn left_to_kubelet(
    containers: &[Container],
    sandboxes: &[PodSandbox],
    known: &KnownPods,
) -> usize {
    let pods = Pods::new(containers, sandboxes, known);
    let uids = containers
        .iter()
        .filter(|c| c.state() == ContainerState::Exited)
        .filter_map(|c| pods.of_sandbox.get(&*c.pod_sandbox_id));
    uids.filter(|uid| pods.is_of_kubelet(uid)).count()
}

/// Sandboxes that have ended and hold no container any more, oldest first: all of pods that are gone, and all but the
/// youngest of pods that live (`evictSandboxes`), unless there is a kubelet.
pub fn sandboxes(
    containers: &[Container],
    sandboxes: &[PodSandbox],
    known: &KnownPods,
) -> Vec<String> {
    let pods = Pods::new(containers, sandboxes, known);
    let inhabited: HashSet<&str> = containers.iter().map(|c| &*c.pod_sandbox_id).collect();
    let mut all: Vec<&PodSandbox> = sandboxes.iter().collect();
    let attempt = |s: &PodSandbox| s.metadata.as_ref().map_or(0, |m| m.attempt);
    all.sort_by_key(|s| Reverse((attempt(s), s.created_at)));
    let mut kept = HashSet::new();
    let mut dead: Vec<&PodSandbox> = all
        .into_iter()
        // The youngest is kept whether it has ended or not; an older one that runs is none to remove.
        .filter(|s| !(pods.is_needed(uid(s)) && (pods.all_stay() || kept.insert(uid(s)))))
        .filter(|s| !is_ready(s) && !inhabited.contains(&*s.id))
        .collect();
    dead.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
    dead.into_iter().map(|s| s.id.clone()).collect()
}

#[cfg(test)]
mod tests;
