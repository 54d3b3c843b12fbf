//! The kubelet's times: how often it looks, and for how long it waits.

use crate::units::SECOND;

/// The kubelet's monitoring interval (`monitoringInterval`): it looks so often, and evicts one pod then.
pub const MONITORING_INTERVAL_NS: u64 = 10 * SECOND;
/// Time from when the kubelet may look last until the API server shows the pod that it has evicted then: its pass and SIGTERM, a
/// second for a preStop hook, two seconds until SIGKILL (the least that it gives a container), the return of the memory. For so
/// long a pod that is not urgent waits at the kubelet's own threshold, or both would take one for the same shortage.
pub const KUBELET_TURN_NS: u64 = 4 * SECOND;
/// Time for which the kubelet waits until an evicted pod is cleaned up (`podCleanupTimeout`).
pub const POD_CLEANUP_NS: u64 = 30 * SECOND;
