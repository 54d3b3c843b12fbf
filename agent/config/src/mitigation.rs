//! `graduatedAction`: the steps under a soft threshold on memory before a pod is evicted.

use std::time::Duration;

use evictd_engine::model::settings::{MitigationConfig, ThrottleConfig};
use serde_json::Value;

use super::ConfigError;
use crate::decode::ObjectDecoder;

/// Default of `reclaim.timeLimit`.
const RECLAIM_TIME: Duration = Duration::from_secs(10);
/// Default of `throttle.timeLimit`: how long a pod is throttled.
const THROTTLE_TIME: Duration = Duration::from_secs(60);
/// Default of `throttle.pods`: how many pods are throttled.
const THROTTLED_PODS: usize = 2;
/// Largest value of `throttle.pods`.
const MAX_THROTTLED_PODS: u64 = 100;

/// What is to be said of the step's deprecated name.
const BRAKE: &str = "graduatedAction.brake is the former name of graduatedAction.throttle, and will be removed in the next release";

/// Takes the field. The second value is what is to be said of a deprecated name in it.
pub(super) fn take(
    fields: &mut ObjectDecoder,
) -> Result<(MitigationConfig, Option<&'static str>), ConfigError> {
    let Some(mut action) = fields.object("graduatedAction")? else {
        return Ok(Default::default());
    };
    let mut taken = MitigationConfig::default();
    if let Some((mut reclaim, enabled)) = step(&mut action, "reclaim")? {
        let limit = time_limit(&mut reclaim)?.unwrap_or(RECLAIM_TIME);
        reclaim.deny_unknown_fields()?;
        taken.reclaim = enabled.then_some(limit);
    }
    let deprecated = action.has_former("brake", "throttle")?.then_some(BRAKE);
    let name = deprecated.map_or("throttle", |_| "brake");
    if let Some((mut throttle, enabled)) = step(&mut action, name)? {
        let pods = throttle.whole("pods", 1..=MAX_THROTTLED_PODS)?;
        let pods = pods.unwrap_or(THROTTLED_PODS);
        let time_limit = time_limit(&mut throttle)?.unwrap_or(THROTTLE_TIME);
        throttle.deny_unknown_fields()?;
        taken.throttle = enabled.then_some(ThrottleConfig { pods, time_limit });
    }
    action.deny_unknown_fields()?;
    Ok((taken, deprecated))
}

/// A step and whether it is enabled: a step that is named is, unless it has `enabled: false`.
fn step(
    action: &mut ObjectDecoder,
    name: &str,
) -> Result<Option<(ObjectDecoder, bool)>, ConfigError> {
    let Some(mut step) = action.object(name)? else {
        return Ok(None);
    };
    let enabled = step.boolean("enabled")?.unwrap_or(true);
    Ok(Some((step, enabled)))
}

fn time_limit(step: &mut ObjectDecoder) -> Result<Option<Duration>, ConfigError> {
    let limit = step.duration("timeLimit")?;
    if limit.is_some_and(|limit| limit.is_zero()) {
        let zero = Value::from("0s");
        let reason = "must be longer than nothing; enabled: false leaves the step out";
        return Err(ConfigError::value(step.path_of("timeLimit"), &zero, reason));
    }
    Ok(limit)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::Config;
    use super::*;

    fn read(action: Value) -> Result<MitigationConfig, String> {
        let config = Config::from_values(json!({ "graduatedAction": action }), None);
        config.map(|c| c.mitigation).map_err(|e| e.to_string())
    }

    // R46
    #[test]
    fn steps_that_are_named_are_taken() {
        assert_eq!(read(Value::Null), Ok(MitigationConfig::default()));
        assert_eq!(
            read(json!({"throttle": {"enabled": false}})),
            Ok(MitigationConfig::default())
        );
        let both = |name: &str| {
            let throttle = json!({"pods": 3, "timeLimit": "90s"});
            read(json!({"reclaim": {}, name: throttle})).unwrap()
        };
        let all = both("throttle");
        assert_eq!(both("brake"), all, "the deprecated name");
        let said = |action: Value| {
            let own = json!({ "graduatedAction": action });
            Config::from_values(own, None).unwrap().deprecated
        };
        assert_eq!(said(json!({"brake": {}, "throttle": null})), Some(BRAKE));
        assert_eq!(said(json!({"brake": null, "throttle": {}})), None);
        assert_eq!(all.reclaim, Some(RECLAIM_TIME));
        let throttle = ThrottleConfig {
            pods: 3,
            time_limit: Duration::from_secs(90),
        };
        assert_eq!(all.throttle, Some(throttle));
        let MitigationConfig { reclaim, throttle } = MitigationConfig::default();
        assert!(reclaim.is_none() && throttle.is_none());
    }

    #[test]
    fn every_mistake_names_its_field() {
        for (action, expected) in [
            (
                json!({"throttle": {"pods": 0}}),
                "graduatedAction.throttle.pods: 0: must be",
            ),
            (
                json!({"throttle": {"timeLimit": "0s"}}),
                "graduatedAction.throttle.timeLimit: \"0s\": must",
            ),
            (
                json!({"reclaim": {"timeLimit": "5"}}),
                "graduatedAction.reclaim.timeLimit: \"5\": a unit",
            ),
            (
                json!({"reclaim": true}),
                "graduatedAction.reclaim: true: must be a map",
            ),
            (json!({"evict": {}}), "graduatedAction.evict: unknown field"),
            (
                json!({"throttle": {}, "brake": {"pods": 1}}),
                "graduatedAction.brake: {\"pods\":1}: is the former name of throttle, which is set too",
            ),
        ] {
            let error = read(action).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
