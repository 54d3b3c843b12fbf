//! The pods of a node without cgroups.

use evictd_engine::{ManagedPod, Pod, eviction_state::EvictionState, permit::EvictionPermit};

/// A pod without a cgroup.
#[derive(Default)]
pub struct BarePod {
    pod: Pod,
    pub permit: EvictionPermit,
    state: EvictionState,
    pub is_protected: bool,
}

impl BarePod {
    pub fn new(pod: Pod) -> Self {
        Self {
            pod,
            ..Self::default()
        }
    }
}

impl ManagedPod for BarePod {
    fn pod(&self) -> &Pod {
        &self.pod
    }

    fn permit(&self) -> &EvictionPermit {
        &self.permit
    }

    fn eviction_state(&self) -> &EvictionState {
        &self.state
    }

    fn is_protected(&self) -> bool {
        self.is_protected
    }

    fn memory_usage(&self) -> u64 {
        0
    }

    fn is_younger_than(&self, _: u64) -> bool {
        false
    }

    fn has_older_than(&self, _: u64) -> bool {
        false
    }
}
