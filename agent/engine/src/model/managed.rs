//! A pod of this node as policies see it.

use crate::{Pod, permit::EvictionPermit};

/// A pod that may be evicted, with what is read of it when it is asked.
pub trait ManagedPod: Send + Sync {
    /// Description of the pod.
    fn pod(&self) -> &Pod;
    /// Permit in which policies leave what they decide.
    fn permit(&self) -> &EvictionPermit;
    /// Whether it is never evicted, whatever policies say.
    fn is_protected(&self) -> bool;
    /// Usage of the pod's memory now, in bytes; 0 where that cannot be read.
    fn memory_usage(&self) -> u64;
    /// Whether it has processes, and all of them were started after this time, in nanoseconds of CLOCK_MONOTONIC.
    fn is_younger_than(&self, time: u64) -> bool;
    /// Whether it has a process that was started before this time, in nanoseconds of CLOCK_MONOTONIC.
    fn has_older_than(&self, time: u64) -> bool;
}
