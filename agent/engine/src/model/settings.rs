//! Settings that decide which pods go, when, and how many.

use std::{fmt, time::Duration};

use crate::Threshold;

/// Degree to which the engine goes beyond the kubelet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// One pod in ten seconds, by values of that moment; at once, and perhaps several, only where that is urgent.
    #[default]
    Evictd,
    /// Mode in which each look does what the kubelet does, but for the pace under hard memory thresholds.
    Kubelet,
}

impl Mode {
    /// Whether the kernel's own count is asked beside the kubelet's, if nothing else is configured.
    pub fn has_memory_guard(self) -> bool {
        self == Self::Evictd
    }
}

/// Order in which pods are evicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RankingStrategy {
    /// Above request first, then priority, then usage minus request.
    #[default]
    Kubelet,
    /// Ranks by QoS class first.
    Qos,
    /// Ranks by usage alone.
    Usage,
}

impl RankingStrategy {
    /// The strategies with their names.
    pub const CHOICES: [(&'static str, Self); 3] = [
        ("kubelet", Self::Kubelet),
        ("qos", Self::Qos),
        ("usage", Self::Usage),
    ];
}

/// The kubelet's settings for eviction.
#[derive(Clone, Debug, PartialEq)]
pub struct EvictionConfig {
    /// The thresholds in force.
    pub thresholds: Vec<Threshold>,
    /// `evictionMaxPodGracePeriod`, in seconds: the longest a pod may take after a soft threshold.
    pub max_pod_grace_period_seconds: i32,
    /// `evictionPressureTransitionPeriod`: how long a condition stays after the last sign of pressure.
    pub pressure_transition_period: Duration,
    /// `systemReserved` and `kubeReserved` together: memory that is kept back from pods, in bytes.
    pub reserved_memory: u64,
    /// `localStorageCapacityIsolation`: pods are held to their limits on local storage.
    pub limits_local_storage: bool,
}

/// Steps that are taken while a soft threshold's grace period runs. All are off by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MitigationConfig {
    /// `graduatedAction.reclaim`, with its `timeLimit`: reclaim cold page cache.
    pub reclaim: Option<Duration>,
    /// `graduatedAction.throttle`: keep the first candidates from growing.
    pub throttle: Option<ThrottleConfig>,
}

/// Settings of the throttle: how many pods to keep from growing, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThrottleConfig {
    /// `graduatedAction.throttle.pods`: at most so many at a time.
    pub pods: usize,
    /// `graduatedAction.throttle.timeLimit`: no longer than this.
    pub time_limit: Duration,
}

/// The hooks that can watch memory, in order of preference.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "camelCase")]
pub enum MemoryHook {
    /// fexit of `page_counter_try_charge`: after every batch of pages.
    Fexit,
    /// kprobe on the same function, at its entry: one batch later.
    Kprobe,
    /// `tp_btf/mod_memcg_lruvec_state` (6.14+): per page.
    Tracepoint,
    /// cgroup v1 `memory.usage_in_bytes` notification through an eventfd.
    Eventfd,
    /// No hook: userspace looks as often as the distance to the limit asks for.
    Sampler,
}

impl MemoryHook {
    /// All hooks, best first.
    pub const BY_PREFERENCE: [Self; 5] = [
        Self::Fexit,
        Self::Kprobe,
        Self::Tracepoint,
        Self::Eventfd,
        Self::Sampler,
    ];

    /// The configuration's word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fexit => "fexit",
            Self::Kprobe => "kprobe",
            Self::Tracepoint => "tracepoint",
            Self::Eventfd => "eventfd",
            Self::Sampler => "sampler",
        }
    }

    /// Whether a kernel program compares: only that can act by itself past a floor.
    pub fn has_program(self) -> bool {
        matches!(self, Self::Fexit | Self::Kprobe | Self::Tracepoint)
    }
}

impl fmt::Display for MemoryHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
