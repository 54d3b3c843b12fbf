//! Refuses a `kernelFloor` that is not below the hard threshold of the same file for any node size. Where it depends on
//! the node, the agent halves the threshold instead.

use evictd_engine::{Signal, Threshold, ThresholdValue, accounting::Floor, hard_threshold};

use super::{
    ConfigError,
    origin::{Origin, Origins},
};

/// Sizes of nodes as powers of two, in bytes: 64 MiB to 64 TiB.
const CAPACITIES: std::ops::RangeInclusive<u32> = 26..=46;

/// Compares the floor with evictd's own hard threshold for nodes of all sizes. A threshold of the kubelet is not
/// compared: it can differ from node to node.
pub(super) fn check(
    floor: &ThresholdValue,
    thresholds: &[Threshold],
    origins: &Origins,
) -> Result<(), ConfigError> {
    let hard = |capacity| hard_threshold(thresholds, Signal::MemoryAvailable, capacity);
    let own = |capacity| hard(capacity).filter(|t| origins.of(t) == Origin::Own);
    let mut nodes = CAPACITIES.map(|shift| 1_i64 << shift);
    let is_replaced = |t: &Threshold, capacity| {
        let replaced = Floor::Of(floor).replaced(t.amount(capacity), capacity);
        replaced.is_some()
    };
    if nodes.any(|capacity| own(capacity).is_none_or(|t| !is_replaced(t, capacity))) {
        return Ok(());
    }
    let Some(hard) = own(1 << CAPACITIES.end()) else {
        return Ok(());
    };
    let reason = format!(
        "must be below the hard threshold, which is {}: the kernel would kill before evictd decides",
        hard.value
    );
    let field = "kernelFloor.memory.available";
    Err(ConfigError::text(field, &floor.to_string(), reason))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::Config;

    #[test]
    fn a_floor_is_below_the_hard_threshold() {
        let load = |hard: &str, floor: &str| {
            let config = json!({
                "evictionHard": {"memory.available": hard},
                "kernelFloor": {"memory.available": floor},
            });
            Config::from_values(config, None)
        };
        for (hard, floor) in [
            ("100Mi", "100Mi"),
            ("100Mi", "1Gi"),
            ("5%", "5%"),
            ("5%", "10%"),
            ("5%", "100Ti"),
        ] {
            let error = load(hard, floor).expect_err(floor).to_string();
            let expected = format!(
                "kernelFloor.memory.available: \"{floor}\": must be below the hard threshold, which is {hard}: "
            );
            assert!(error.starts_with(&expected), "{error}");
        }
        // Whether a percentage is above a quantity depends on the node.
        for (hard, floor) in [
            ("100Mi", "99Mi"),
            ("5%", "4%"),
            ("5%", "100Mi"),
            ("100Mi", "50%"),
        ] {
            load(hard, floor).expect(floor);
        }
        let off = json!({
            "evictionHard": {"memory.available": "100Mi"},
            "kernelFloor": {"enabled": false, "memory.available": "1Gi"},
        });
        Config::from_values(off, None).expect("no floor");
    }
}
