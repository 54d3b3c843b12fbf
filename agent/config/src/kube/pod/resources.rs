//! What a pod as a whole requests and may use, computed as the kubelet 1.36 does (`component-helpers/resource`).

use evictd_engine::{ComputeResources, model::quantity::Quantity};

use super::{
    CPU, MEMORY,
    form::{ContainerJson, Requirements, ResourceList, Spec},
};

impl Spec {
    /// What the whole pod requests of a resource (`GetResourceRequestQuantity`): where resources are set for the pod
    /// as a whole, those alone; else what its containers flush to. The overhead is added to what is not zero.
    pub(super) fn request(&self, resource: &str) -> Quantity {
        let mut request = match &self.resources {
            Some(pod) if pod.are_set_for_pod() => {
                let supported = is_pod_level(resource);
                pod.requests
                    .get(resource)
                    .filter(|_| supported)
                    .cloned()
                    .unwrap_or_default()
            }
            _ => self
                .aggregate(|r| r.requests.get(resource))
                .unwrap_or_default(),
        };
        if !request.is_zero()
            && let Some(overhead) = self.overhead.get(resource)
        {
            request.add(overhead);
        }
        request
    }

    /// The limit of the whole pod (`PodLimits`); `None` if no container has one. Containers without a limit count as
    /// if they used nothing: that is how the kubelet sees it.
    pub(super) fn limit(&self, resource: &str) -> Option<Quantity> {
        let pod_level = self
            .resources
            .as_ref()
            .filter(|r| r.are_set_for_pod() && is_pod_level(resource));
        let mut limit = match pod_level.and_then(|pod| pod.limits.get(resource)) {
            Some(limit) => limit.clone(),
            None => self.aggregate(|r| r.limits.get(resource))?,
        };
        if !limit.is_zero()
            && let Some(overhead) = self.overhead.get(resource)
        {
            limit.add(overhead);
        }
        Some(limit)
    }

    /// The most that the pod's containers need at any time (KEP-753): the sum of those that run side by side, or what
    /// an init container needs beside the restartable ones started before it, whichever is more.
    fn aggregate<'a>(
        &'a self,
        get: impl Fn(&'a Requirements) -> Option<&'a Quantity>,
    ) -> Option<Quantity> {
        let mut running = None;
        for container in &self.containers {
            add(&mut running, get(&container.resources));
        }
        let mut restartable = None;
        let mut starting: Option<Quantity> = None;
        for container in &self.init_containers {
            let own = get(&container.resources);
            let needed = if container.is_restartable() {
                add(&mut running, own);
                add(&mut restartable, own);
                restartable.clone()
            } else {
                let mut needed = own.cloned();
                add(&mut needed, restartable.as_ref());
                needed
            };
            starting = larger(starting, needed);
        }
        larger(running, starting)
    }
}

fn add(sum: &mut Option<Quantity>, more: Option<&Quantity>) {
    match (sum.as_mut(), more) {
        (Some(sum), Some(more)) => sum.add(more),
        (None, Some(more)) => *sum = Some(more.clone()),
        (_, None) => {}
    }
}

fn larger(first: Option<Quantity>, second: Option<Quantity>) -> Option<Quantity> {
    match (first, second) {
        (Some(first), Some(second)) => Some(if second > first { second } else { first }),
        (first, second) => first.or(second),
    }
}

/// Whether a resource can be set for a pod as a whole (`IsSupportedPodLevelResource`).
fn is_pod_level(resource: &str) -> bool {
    matches!(resource, CPU | MEMORY) || resource.starts_with("hugepages-")
}

impl ContainerJson {
    /// A sidecar: an init container that goes on running.
    fn is_restartable(&self) -> bool {
        self.restart_policy.as_deref() == Some("Always")
    }
}

impl Requirements {
    /// Whether these, given for a pod, replace those of its containers (`IsPodLevelResourcesSet`).
    pub(super) fn are_set_for_pod(&self) -> bool {
        self.requests
            .keys()
            .chain(self.limits.keys())
            .any(|name| is_pod_level(name))
    }

    pub(super) fn compute(&self) -> ComputeResources {
        let get = |list: &ResourceList, name| list.get(name).cloned().unwrap_or_default();
        ComputeResources {
            cpu_request: get(&self.requests, CPU),
            cpu_limit: get(&self.limits, CPU),
            memory_request: get(&self.requests, MEMORY),
            memory_limit: get(&self.limits, MEMORY),
        }
    }
}
