//! The kubelet's times: how often it looks, and for how long it waits.

use crate::units::SECOND;

/// The kubelet's monitoring interval (`monitoringInterval`): it looks so often, and evicts one pod then.
pub const MONITORING_INTERVAL_NS: u64 = 10 * SECOND;
/// Time for which the kubelet waits until an evicted pod is cleaned up (`podCleanupTimeout`).
pub const POD_CLEANUP_NS: u64 = 30 * SECOND;
