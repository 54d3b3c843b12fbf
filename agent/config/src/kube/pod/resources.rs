//! Requests and limits of a whole pod, computed as by the kubelet 1.36 (`component-helpers/resource`).

use evictd_engine::{ComputeResources, model::quantity::Quantity};

use super::{
    CPU, MEMORY,
    json::{ContainerJson, Requirements, ResourceList, Spec},
};

impl Spec {
    /// The whole pod's request of a resource (`GetResourceRequestQuantity`): the pod-level request where the pod has
    /// pod-level resources, else what its containers need together. The overhead is added unless the request is zero.
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

    /// The limit of the whole pod (`PodLimits`); `None` if no container has one. As in the kubelet, containers without
    /// a limit count as zero.
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

    /// The most that the pod's containers need at any time (KEP-753): the sum over the containers that run side by
    /// side, or the need of an init container plus that of the restartable ones before it, whichever is more.
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

/// Whether pods can have a pod-level amount of this resource (`IsSupportedPodLevelResource`).
fn is_pod_level(resource: &str) -> bool {
    matches!(resource, CPU | MEMORY) || resource.starts_with("hugepages-")
}

impl ContainerJson {
    /// Whether this init container is a sidecar, which keeps running.
    pub(super) fn is_restartable(&self) -> bool {
        self.restart_policy.as_deref() == Some("Always")
    }
}

impl Requirements {
    /// Whether these pod-level resources replace those of the containers (`IsPodLevelResourcesSet`).
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
