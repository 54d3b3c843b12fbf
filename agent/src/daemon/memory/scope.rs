//! The scope of the node, and the amounts that must stay available in a scope.

use std::path::Path;

use evictd_config::Config;
use evictd_engine::{
    Signal, Threshold,
    accounting::{Amount, GUARD, MemoryThresholds},
    hard_threshold,
    units::signed,
};
use evictd_node::{
    cgroup::memory::{MemoryCgroup, memory_root},
    memory_scope::{Scope, ScopeError, ScopeKind},
    proc::machine::{Balloon, MemAvailable, has_mglru, memory_total},
};

use serde_json::{Map, Value};

use crate::daemon::RunError;

/// Mount point of the cgroups.
pub const CGROUP_MOUNT: &str = "/sys/fs/cgroup";

/// The cgroup that counts as the node, or the machine.
fn scope(config: &Config, thresholds: impl Fn(u64) -> MemoryThresholds) -> Result<Scope, RunError> {
    let cache = config.account_reclaimable_cache;
    if let Some(path) = &config.scope.cgroup {
        let cgroup = MemoryCgroup::open(path).map_err(ScopeError::from)?;
        return Ok(Scope::open(cgroup, ScopeKind::Node, thresholds, cache)?);
    }
    let (root, _) = memory_root(Path::new(CGROUP_MOUNT)).ok_or(RunError::Missing {
        field: "scope.cgroup",
        reason: "is not set, and the machine has no memory cgroups to watch",
    })?;
    let root = MemoryCgroup::open(&root).map_err(ScopeError::from)?;
    let total = memory_total(Path::new("/proc")).map_err(ScopeError::from)?;
    let kind = ScopeKind::Machine { total };
    Ok(Scope::open(root, kind, thresholds, cache)?)
}

/// One scope, as each loop has it.
pub struct ScopePair {
    /// Scope of the fast path, with the memory guard if that is on.
    pub fastpath: Scope,
    /// The manager shows the kubelet's count, and goes by it under soft thresholds.
    pub manager: Scope,
}

/// Opens the scope of the node, once for each loop.
pub fn node_scopes(config: &Config) -> Result<ScopePair, RunError> {
    warn_no_hard_threshold(&config.eviction.thresholds);
    let thresholds = |capacity| thresholds(config, Signal::MemoryAvailable, capacity);
    Ok(ScopePair {
        fastpath: guarded(scope(config, thresholds)?, config),
        manager: scope(config, thresholds)?,
    })
}

/// Opens the scope of the node, whatever its thresholds; without a configuration the default one.
pub fn node_scope(config: Option<&Config>) -> Option<Scope> {
    let default = || Config::from_values(Value::Object(Map::new()), None);
    let config = config.cloned().map_or_else(default, Ok).ok()?;
    scope(&config, |_| MemoryThresholds::default()).ok()
}

/// Adds the memory guard to a scope of the fast path: the kernel's own count counts beside the kubelet's.
pub fn guarded(scope: Scope, config: &Config) -> Scope {
    let guard = &config.memory_guard;
    if !guard.enabled {
        return scope;
    }
    let capacity = signed(scope.capacity());
    let configured = guard.memory_available.as_ref();
    let amount = configured.map_or(GUARD, |value| value.amount(capacity));
    let sys = Path::new("/sys");
    if !scope.is_machine() {
        return scope.guarded(amount, None, has_mglru(sys));
    }
    match MemAvailable::open(Path::new("/proc")) {
        Ok(memory) => scope.guarded(
            amount,
            Some(memory.with_balloon(Balloon::detect(sys))),
            false,
        ),
        Err(error) => {
            tracing::warn!(%error, "the memory guard is off: what the kernel holds available is not known");
            scope
        }
    }
}

/// What follows where memory has no hard threshold. A kubelet may have thresholds for disks alone: then memory is left to
/// the OOM killer. Without any threshold pods are still held to their own limits on local storage.
pub fn no_hard_threshold(thresholds: &[Threshold]) -> Option<&'static str> {
    if thresholds.is_empty() {
        return Some(
            "evictionHard and evictionSoft are empty: pods are evicted only for their own local-storage limits",
        );
    }
    let is_hard = |t: &Threshold| t.signal == Signal::MemoryAvailable && t.is_hard();
    let reason =
        "evictionHard[memory.available] is not set: no hard threshold guards the node's memory";
    (!thresholds.iter().any(is_hard)).then_some(reason)
}

/// Warns where memory has no hard threshold.
pub fn warn_no_hard_threshold(thresholds: &[Threshold]) {
    if let Some(reason) = no_hard_threshold(thresholds) {
        tracing::warn!("{reason}");
    }
}

/// The error of an amount of a signal that no scope of this capacity can keep, with the field that has it.
pub fn above_capacity(amount: Amount, signal: Signal, value: u64, capacity: u64) -> RunError {
    let field = match amount {
        Amount::Threshold => format!("evictionHard[{signal}]"),
        Amount::Resolved => format!("evictionMinimumReclaim[{signal}]"),
        Amount::Floor => "kernelFloor.memory.available".to_owned(),
    };
    RunError::AboveCapacity {
        field,
        value,
        capacity,
    }
}

impl From<ScopeError> for RunError {
    fn from(error: ScopeError) -> Self {
        match error {
            ScopeError::AboveCapacity {
                amount,
                value,
                capacity,
            } => above_capacity(amount, Signal::MemoryAvailable, value, capacity),
            error => Self::Scope(error),
        }
    }
}

/// Computes what must stay available of a signal.
pub fn thresholds(config: &Config, signal: Signal, capacity: u64) -> MemoryThresholds {
    let thresholds = &config.eviction.thresholds;
    let floor = config.kernel_floor.floor();
    let hard = hard_threshold(thresholds, signal, signed(capacity));
    let is_kubelets = |t: &Threshold| config.follows_kubelet(t) && !t.is_raised(signed(capacity));
    MemoryThresholds {
        is_kubelets: hard.is_some_and(is_kubelets),
        ..MemoryThresholds::from_thresholds(thresholds, signal, capacity, floor)
    }
}

/// Warns where the floor of a scope is not the configured one.
pub fn warn_floor(config: &Config, signal: Signal, threshold: u64, capacity: u64) {
    let floor = config.kernel_floor.floor();
    if let Some(configured) = floor.replaced(threshold, signed(capacity)) {
        let floor = threshold / 2;
        tracing::warn!(
            %signal,
            configured,
            threshold,
            floor,
            "kernelFloor.memory.available is not below the hard threshold of this node: half of the threshold is the \
            floor"
        );
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const MIB: u64 = 1 << 20;

    // Thresholds may be those of a kubelet, and of any size of node.
    #[test]
    fn a_floor_that_is_not_below_the_threshold_of_this_node_is_half_of_it() {
        let floor = |hard: &str, floor: &str, capacity: u64| {
            let kubelet = json!({ "evictionHard": {"memory.available": hard} });
            let own = json!({ "kernelFloor": {"memory.available": floor} });
            let config = Config::from_values(own, Some(kubelet)).unwrap();
            thresholds(&config, Signal::MemoryAvailable, capacity).floor
        };
        assert_eq!(floor("100Mi", "75Mi", 512 * MIB), Some(75 * MIB));
        assert_eq!(floor("100Mi", "100Mi", 512 * MIB), Some(50 * MIB));
        assert_eq!(floor("100Mi", "50%", 512 * MIB), Some(50 * MIB));
        assert_eq!(floor("50%", "100Mi", 512 * MIB), Some(100 * MIB));
        assert_eq!(floor("50%", "100Mi", 128 * MIB), Some(32 * MIB));
    }

    // A soft threshold without a grace period is a hard one, and an explicit one of the pods' cgroup has the node's
    // beside it.
    #[test]
    fn of_several_hard_thresholds_the_largest_counts() {
        let kubelet = json!({
            "evictionHard": {"memory.available": "10%", "allocatableMemory.available": "50Mi"},
            "evictionSoft": {"memory.available": "200Mi", "allocatableMemory.available": "20Mi"},
            "evictionSoftGracePeriod": {"memory.available": "0s", "allocatableMemory.available": "0s"},
            "evictionMinimumReclaim": {"memory.available": "30Mi"},
        });
        let config = Config::from_values(json!({}), Some(kubelet)).unwrap();
        let amounts = |signal, mib: u64| {
            let amounts = thresholds(&config, signal, mib * MIB);
            (amounts.threshold / MIB, amounts.resolved / MIB)
        };
        assert_eq!(amounts(Signal::MemoryAvailable, 1000), (200, 230));
        assert_eq!(amounts(Signal::MemoryAvailable, 4000), (400, 430));
        let of_pods = Signal::AllocatableMemoryAvailable;
        assert_eq!(amounts(of_pods, 1000), (200, 230));
        assert_eq!(amounts(of_pods, 4000), (400, 430));
    }

    // R43
    #[test]
    fn the_kubelets_threshold_is_its_own_where_the_node_has_a_kubelet_and_no_step_of_ours() {
        let kubelet = json!({ "evictionHard": {"memory.available": "100Mi"} });
        let [of_node, of_pods] = Signal::MEMORY;
        let cluster = json!({ "nodeName": "n1" });
        let is_kubelets = |own: Value, kubelet: Option<&Value>, signal, mib: u64| {
            let config = Config::from_values(own, kubelet.cloned()).unwrap();
            thresholds(&config, signal, mib * MIB).is_kubelets
        };
        let of = |field: &str, value: Value| {
            let mut own = json!({ "cluster": cluster });
            own[field] = value;
            own
        };
        let amount = || json!({ "memory.available": "100Mi" });
        let nothing = of("shadow", json!(false));
        for kubelet in [Some(&kubelet), None] {
            for signal in [of_node, of_pods] {
                assert!(is_kubelets(nothing.clone(), kubelet, signal, 8192));
            }
        }
        // The kubelet has none of its own where a fallback stands in for it.
        let fallback = of("evictionHardFallback", amount());
        let of_disk = json!({ "evictionHard": {"nodefs.available": "5%"} });
        for kubelet in [Some(&of_disk), None] {
            assert!(!is_kubelets(fallback.clone(), kubelet, of_node, 8192));
        }
        let own = of("evictionHard", amount());
        assert!(!is_kubelets(own, Some(&kubelet), of_node, 8192));
        let stepped = of("evictionHardAboveKubelet", amount());
        assert!(!is_kubelets(stepped.clone(), Some(&kubelet), of_node, 8192));
        // A tenth of the node is less than the kubelet's.
        assert!(is_kubelets(stepped.clone(), Some(&kubelet), of_node, 512));
        assert!(is_kubelets(stepped, Some(&kubelet), of_pods, 8192));
        assert!(!is_kubelets(json!({}), Some(&kubelet), of_node, 8192));
        let as_kubelet = of("mode", json!("kubelet"));
        assert!(!is_kubelets(as_kubelet, Some(&kubelet), of_node, 8192));
    }

    // The kubelet keeps to the pods' own limits on local storage without any threshold.
    #[test]
    fn without_a_threshold_nothing_is_ever_too_little() {
        let config = Config::from_values(json!({"evictionHard": {}}), None).unwrap();
        for signal in Signal::MEMORY {
            let amounts = thresholds(&config, signal, 1000 * MIB);
            assert_eq!(amounts, MemoryThresholds::default());
        }
    }
}
