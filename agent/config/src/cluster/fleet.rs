//! `cluster.fleetBrake`: what happens when many nodes evict within minutes.

use std::time::Duration;

use evictd_engine::fleet::FleetRules;
use serde_json::Value;

use super::{ConfigMapName, config_map};
use crate::{ConfigError, decode::ObjectDecoder};

/// The fleet brake of one release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FleetConfig {
    /// `cluster.fleetBrake.configMap`: the ConfigMap with the pace for all nodes. The nodes' own entries are in another
    /// one, with `-evictions` at the end of its name.
    pub config_map: ConfigMapName,
    /// `window`, `slowNodes`, `pauseNodes`, `pause` and `slowInterval`.
    pub rules: FleetRules,
}

impl FleetConfig {
    /// The fleet brake of an agent's whole configuration file; `None` where it has none that can be used.
    pub fn of(document: &Value) -> Option<Self> {
        let mut cluster = ObjectDecoder::open("cluster", document["cluster"].clone()).ok()?;
        take(&mut cluster).ok()?
    }
}

const DEFAULTS: FleetRules = FleetRules {
    window: Duration::from_secs(600),
    slow_nodes: 10,
    pause_nodes: 20,
    pause: Duration::from_secs(1800),
    slow_interval: Duration::from_secs(300),
};
/// Largest value of `slowNodes` and `pauseNodes`: each node has an entry in one ConfigMap.
const MAX_NODES: u64 = 1000;

/// Takes the field `fleetBrake`; without the field there is no fleet brake.
pub(super) fn take(cluster: &mut ObjectDecoder) -> Result<Option<FleetConfig>, ConfigError> {
    let Some(mut brake) = cluster.object("fleetBrake")? else {
        return Ok(None);
    };
    let config_map = config_map(&mut brake, "configMap")?;
    let config_map = config_map.ok_or_else(|| brake.missing("configMap"))?;
    let rules = FleetRules {
        window: period(&mut brake, "window", DEFAULTS.window)?,
        slow_nodes: brake
            .whole("slowNodes", 1..=MAX_NODES)?
            .unwrap_or(DEFAULTS.slow_nodes),
        pause_nodes: brake
            .whole("pauseNodes", 1..=MAX_NODES)?
            .unwrap_or(DEFAULTS.pause_nodes),
        pause: period(&mut brake, "pause", DEFAULTS.pause)?,
        slow_interval: period(&mut brake, "slowInterval", DEFAULTS.slow_interval)?,
    };
    if rules.pause_nodes < rules.slow_nodes {
        let path = brake.path_of("pauseNodes");
        let reason = format!("must not be below slowNodes, which is {}", rules.slow_nodes);
        return Err(ConfigError::value(path, &rules.pause_nodes.into(), reason));
    }
    brake.deny_unknown_fields()?;
    Ok(Some(FleetConfig { config_map, rules }))
}

/// Takes a duration between a second and a day.
fn period(
    brake: &mut ObjectDecoder,
    field: &str,
    default: Duration,
) -> Result<Duration, ConfigError> {
    let Some(period) = brake.duration(field)? else {
        return Ok(default);
    };
    if (Duration::from_secs(1)..=Duration::from_secs(86_400)).contains(&period) {
        return Ok(period);
    }
    let text = format!("{period:?}");
    Err(ConfigError::text(
        brake.path_of(field),
        &text,
        "must lie between 1s and 24h",
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(brake: Value) -> Result<Option<FleetConfig>, String> {
        let document = json!({ "fleetBrake": brake });
        let mut fields = ObjectDecoder::open("cluster", document).expect("a map");
        take(&mut fields).map_err(|e| e.to_string())
    }

    #[test]
    fn only_its_place_has_no_default() {
        assert_eq!(read(Value::Null), Ok(None));
        let read = read(json!({"configMap": "evictd/evictd-fleet", "pauseNodes": 50}));
        let read = read.expect("a brake").expect("it is set");
        assert_eq!(read.config_map.to_string(), "evictd/evictd-fleet");
        let rules = FleetRules {
            pause_nodes: 50,
            ..DEFAULTS
        };
        assert_eq!(read.rules, rules);
    }

    #[test]
    fn every_mistake_names_its_field() {
        let map = "evictd/evictd-fleet";
        for (brake, expected) in [
            (json!({}), "cluster.fleetBrake.configMap: null: is missing"),
            (
                json!({"configMap": map, "slowNodes": 0}),
                "cluster.fleetBrake.slowNodes: 0: must be a whole number",
            ),
            (
                json!({"configMap": map, "slowNodes": 30}),
                "cluster.fleetBrake.pauseNodes: 20: must not be below slowNodes, which is 30",
            ),
            (
                json!({"configMap": map, "window": "0s"}),
                "cluster.fleetBrake.window: \"0ns\": must lie between 1s and 24h",
            ),
            (
                json!({"configMap": map, "nodes": 1}),
                "cluster.fleetBrake.nodes: unknown field",
            ),
        ] {
            let error = read(brake).expect_err(expected);
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
