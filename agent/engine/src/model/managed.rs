//! A pod of this node as policies see it.

use crate::{Pod, eviction_state::EvictionState, permit::EvictionPermit};

/// A pod that may be evicted, with what is read of it when it is asked.
pub trait ManagedPod: Send + Sync {
    /// Description of the pod.
    fn pod(&self) -> &Pod;
    /// Permit in which policies leave what they decide.
    fn permit(&self) -> &EvictionPermit;
    /// What has happened to the pod, whichever of its entries this is.
    fn eviction_state(&self) -> &EvictionState;
    /// Whether it is never evicted, whatever policies say.
    fn is_protected(&self) -> bool;
    /// Usage of the pod's memory now, in bytes; 0 where that cannot be read.
    fn memory_usage(&self) -> u64;
    /// Whether it has processes, and all of them were started after this time, in nanoseconds of CLOCK_MONOTONIC.
    fn is_younger_than(&self, time: u64) -> bool;
    /// Whether it has a process that was started before this time, in nanoseconds of CLOCK_MONOTONIC.
    fn has_older_than(&self, time: u64) -> bool;
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A pod without a cgroup.
    #[derive(Default)]
    pub struct BarePod {
        pub pod: Pod,
        pub permit: EvictionPermit,
        pub state: EvictionState,
        pub is_protected: bool,
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
}
