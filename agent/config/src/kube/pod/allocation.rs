//! A pod may ask for other resources while it runs (`pods/resize`). The kubelet ranks by what it has allocated, which
//! the status tells (`getAllocatedPods`); the specification has what is asked for, even if the node could never give
//! it. Only memory matters: ephemeral storage cannot be resized, and a QoS class never changes.

use evictd_engine::model::quantity::Quantity;

use super::{
    MEMORY,
    json::{ContainerStatusJson, Requirements, ResourceList, Spec, Status},
};

impl Spec {
    /// Puts the memory that is allocated in the place of what is requested, where the status tells it. Answers with
    /// the request of the whole pod in bytes, if the status has that as well: it counts containers that have no status
    /// of their own yet.
    pub(super) fn take_allocation(&mut self, status: &Status) -> Option<u64> {
        let containers = self
            .containers
            .iter_mut()
            .map(|c| (c, &status.container_statuses));
        let init = self
            .init_containers
            .iter_mut()
            .map(|c| (c, &status.init_container_statuses));
        for (container, statuses) in containers.chain(init) {
            let status = statuses.iter().find(|s| s.name == container.name);
            if let Some(allocated) = status.and_then(ContainerStatusJson::allocated) {
                set_memory(&mut container.resources, allocated.get(MEMORY).cloned());
            }
        }
        let whole = status.allocated_resources.as_ref()?;
        let bytes = |list: &ResourceList| list.get(MEMORY).map_or(0, Quantity::floor);
        let (with_overhead, overhead) = (bytes(whole), bytes(&self.overhead));
        let request = with_overhead.saturating_sub(overhead);
        match &mut self.resources {
            Some(pod) if pod.are_set_for_pod() => {
                // Without a request for the whole pod the kubelet counts nothing, whatever the containers have.
                let own = pod.requests.get(MEMORY)?;
                if own.floor() != request {
                    set_memory(pod, Some(Quantity::bytes(request)));
                }
                None
            }
            // The overhead alone is no request (`GetResourceRequestQuantity`).
            _ if request == 0 => Some(0),
            _ => Some(with_overhead),
        }
    }
}

impl ContainerStatusJson {
    /// The requests that are allocated; `None` if the kubelet does not tell. It tells by `resources` as well, which
    /// kubelets before 1.35 have alone, and which is there where nothing is requested.
    fn allocated(&self) -> Option<&ResourceList> {
        let in_force = self.resources.as_ref().map(|r| &r.requests);
        self.allocated_resources.as_ref().or(in_force)
    }
}

fn set_memory(resources: &mut Requirements, memory: Option<Quantity>) {
    match memory {
        Some(memory) => resources.requests.insert(MEMORY.to_owned(), memory),
        None => resources.requests.remove(MEMORY),
    };
}
