//! What counts as the node, and how much of it must stay available.

use std::{path::Path, time::Duration};

use evictd_config::Config;
use evictd_engine::{Signal, Threshold, ThresholdValue, model::quantity::Quantity};
use evictd_node::{
    cgroup::memory::{MemoryCgroup, Version, memory_root},
    memory_scope::{Limits, MemoryGuard, Scope, ScopeError},
    proc::machine::{MemAvailable, memory_total},
};

use super::RunError;

/// Where cgroups are mounted.
pub(super) const CGROUP_MOUNT: &str = "/sys/fs/cgroup";

/// What the memory guard keeps if nothing else is configured: the kubelet's default hard threshold.
const GUARD: u64 = 100 << 20;

/// The cgroup that plays the node, or the machine, with limits that it can keep.
pub(super) fn scope(config: &Config, threshold: &Threshold) -> Result<Scope, RunError> {
    let scope = open(config, threshold)?;
    scope.limits().check(scope.capacity())?;
    Ok(scope)
}

fn open(config: &Config, threshold: &Threshold) -> Result<Scope, RunError> {
    let limits = |capacity| limits(threshold, config, capacity);
    let cache = config.account_reclaimable_cache;
    if let Some(path) = &config.scope.cgroup {
        let cgroup = MemoryCgroup::open(path).map_err(ScopeError::from)?;
        return Ok(Scope::new(cgroup, limits, cache)?);
    }
    let (root, _) = memory_root(Path::new(CGROUP_MOUNT)).ok_or(RunError::Missing {
        field: "scope.cgroup",
        reason: "is not set, and the machine has no memory cgroups to watch",
    })?;
    let root = MemoryCgroup::open(&root).map_err(ScopeError::from)?;
    let total = memory_total(Path::new("/proc")).map_err(ScopeError::from)?;
    Ok(Scope::machine(root, total, limits, cache)?)
}

/// Whether the floor of a configuration is below the hard threshold on this node.
///
/// # Errors
/// It is not. What else keeps the scope from being opened is told elsewhere.
pub fn check_floor(config: &Config) -> Result<(), RunError> {
    let Ok(threshold) = hard_memory_threshold(&config.eviction.thresholds) else {
        return Ok(());
    };
    match scope(config, &threshold) {
        Err(error @ RunError::Scope(ScopeError::FloorNotBelowThreshold { .. })) => Err(error),
        _ => Ok(()),
    }
}

/// The fast path's scope: it is guarded by the kernel's own count beside the kubelet's.
pub(super) fn guarded(scope: Scope, config: &Config) -> Scope {
    let guard = &config.memory_guard;
    if !guard.enabled {
        return scope;
    }
    let capacity = i64::try_from(scope.capacity()).unwrap_or(i64::MAX);
    let configured = guard.memory_available.as_ref();
    let amount = configured.map_or(GUARD, |value| value.amount(capacity));
    if !scope.is_machine() {
        return match scope.cgroup().version() {
            Version::V1 => scope.guarded(MemoryGuard::cgroup_v1(amount)),
            // A writer that writes more than the disk can take waits there.
            Version::V2 => scope,
        };
    }
    match MemAvailable::open(Path::new("/proc")) {
        Ok(memory) => scope.guarded(MemoryGuard::machine(memory, amount)),
        Err(error) => {
            tracing::warn!(%error, "no memory guard: what the kernel holds available is not known");
            scope
        }
    }
}

/// The hard threshold of the node's memory. A kubelet may have thresholds for disks alone: then
/// nothing is ever too little, the kernel's OOM killer is alone with memory, and that is said.
///
/// # Errors
/// There is no threshold at all.
pub(super) fn hard_memory_threshold(thresholds: &[Threshold]) -> Result<Threshold, RunError> {
    let hard = thresholds
        .iter()
        .find(|t| t.signal == Signal::MemoryAvailable && t.is_hard());
    if let Some(hard) = hard {
        return Ok(hard.clone());
    }
    if thresholds.is_empty() {
        return Err(RunError::Missing {
            field: "evictionHard[memory.available]",
            reason: "is not set, and neither is any other threshold, so that there is nothing to watch",
        });
    }
    tracing::warn!(
        field = "evictionHard[memory.available]",
        "is not set: no pod is evicted before the OOM killer acts"
    );
    Ok(never_met(Signal::MemoryAvailable))
}

pub(super) fn never_met(signal: Signal) -> Threshold {
    Threshold {
        signal,
        value: ThresholdValue::Quantity(Quantity::bytes(0)),
        grace_period: Duration::ZERO,
        min_reclaim: None,
    }
}

pub(super) fn limits(threshold: &Threshold, config: &Config, capacity: u64) -> Limits {
    let signed = i64::try_from(capacity).unwrap_or(i64::MAX);
    let hard = threshold.amount(signed);
    let floor = &config.kernel_floor;
    Limits {
        threshold: hard,
        resolved: threshold.resolved_amount(signed).max(hard),
        // Below nothing there is nothing.
        floor: (floor.enabled && hard > 0).then(|| {
            let configured = floor
                .memory_available
                .as_ref()
                .map(|value| value.amount(signed));
            configured.unwrap_or(hard / 2)
        }),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const MIB: u64 = 1 << 20;

    // Start, reload and a capacity that changes go through the same check.
    #[test]
    fn a_share_as_floor_is_held_against_the_threshold_of_this_node() {
        let config = |hard: &str, floor: &str| {
            let config = json!({
                "evictionHard": {"memory.available": hard},
                "kernelFloor": {"memory.available": floor},
            });
            Config::from_values(config, None).unwrap()
        };
        let check = |hard: &str, floor: &str, capacity: u64| {
            let config = config(hard, floor);
            let threshold = hard_memory_threshold(&config.eviction.thresholds).unwrap();
            let checked = limits(&threshold, &config, capacity).check(capacity);
            checked.map_err(|error| error.to_string())
        };
        assert_eq!(check("100Mi", "10%", 512 * MIB), Ok(()));
        assert_eq!(
            check("100Mi", "50%", 512 * MIB),
            Err("kernelFloor.memory.available: 268435456: is not below the hard threshold of 104857600 bytes".to_owned())
        );
        assert_eq!(check("50%", "100Mi", 512 * MIB), Ok(()));
        let refused = check("50%", "100Mi", 128 * MIB).unwrap_err();
        assert!(
            refused.starts_with("kernelFloor.memory.available: "),
            "{refused}"
        );
    }
}
