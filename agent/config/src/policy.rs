//! `policies`, `evictionRates`, `lastResort` and `gateSecrets`.

use std::path::PathBuf;

use evictd_engine::{limiter::Rate, permit::LastResort};
use serde_json::Value;

use super::ConfigError;
use crate::decode::ObjectDecoder;

/// The fields about policies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyConfig {
    /// `policies`: files with policies, and directories of such files, beside the policies of the API server.
    pub files: Vec<PathBuf>,
    /// `evictionRates.node`: the most evictions of this node's pods in a period.
    pub node_rate: Option<Rate>,
    /// `evictionRates.node.exemptGrowers`: where that rate is used up, urgent evictions of the pods that make the
    /// growth go on.
    pub exempt_growers: bool,
    /// `evictionRates.owner`: the most evictions of one owner's pods in a period.
    pub owner_rate: Option<Rate>,
    /// `lastResort`: the pods that may be evicted when the policies deny all evictions, for memory and only where it is
    /// urgent.
    pub last_resort: LastResort,
    /// `gateSecrets`: the directory with the tokens and certificates that gates name.
    pub secrets: Option<PathBuf>,
}

impl PolicyConfig {
    pub(super) fn take(fields: &mut ObjectDecoder) -> Result<Self, ConfigError> {
        let mut files = Vec::new();
        for (i, text) in fields
            .texts("policies")?
            .unwrap_or_default()
            .into_iter()
            .enumerate()
        {
            let path = PathBuf::from(&text);
            if !path.is_absolute() {
                return Err(ConfigError::text(
                    format!("policies[{i}]"),
                    &text,
                    "must be an absolute path",
                ));
            }
            files.push(path);
        }
        let (mut node_rate, mut owner_rate, mut exempt_growers) = (None, None, false);
        if let Some(mut rates) = fields.object("evictionRates")? {
            if let Some(mut node) = rates.object("node")? {
                exempt_growers = node.boolean("exemptGrowers")?.unwrap_or_default();
                node_rate = Some(rate(node)?);
            }
            owner_rate = rates.object("owner")?.map(rate).transpose()?;
            rates.deny_unknown_fields()?;
        }
        Ok(Self {
            files,
            node_rate,
            exempt_growers,
            owner_rate,
            last_resort: fields
                .choice("lastResort", &LastResort::CHOICES)?
                .unwrap_or_default(),
            secrets: fields.absolute_path("gateSecrets")?,
        })
    }
}

/// Takes a rate such as `{evictions: 3, period: 10m}`.
fn rate(mut rate: ObjectDecoder) -> Result<Rate, ConfigError> {
    let most = evictd_engine::permit::MAX_EVICTIONS_PER_QUOTA;
    let path = rate.path_of("evictions");
    let evictions = rate.optional("evictions").unwrap_or_default();
    let number = evictions
        .as_u64()
        .filter(|n| (1..=most).contains(n))
        .and_then(|n| u32::try_from(n).ok());
    let reason = format!("must be a whole number between 1 and {most}");
    let number = number.ok_or_else(|| ConfigError::value(path, &evictions, reason))?;
    let path = rate.path_of("period");
    // A period of 0s is allowed and means no limit, since no eviction counts.
    let period = rate.duration("period")?;
    let period = period.ok_or_else(|| {
        ConfigError::value(
            path.as_str(),
            &Value::Null,
            "is missing: how long an eviction counts",
        )
    })?;
    rate.deny_unknown_fields()?;
    Ok(Rate {
        evictions: number,
        period,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::Config;

    #[test]
    fn every_mistake_names_its_field() {
        for (config, expected) in [
            (
                json!({"policies": ["x.yaml"]}),
                "policies[0]: \"x.yaml\": must be an absolute path",
            ),
            (
                json!({"policies": "x"}),
                "policies: \"x\": must be a list of strings",
            ),
            (
                json!({"lastResort": "All"}),
                "lastResort: \"All\": must be one of Nobody, Conditional, Anybody",
            ),
            (
                json!({"evictionRates": {"node": {"evictions": 0}}}),
                "evictionRates.node.evictions: 0: must be",
            ),
            (
                json!({"evictionRates": {"owner": {"evictions": 1}}}),
                "evictionRates.owner.period: null: is missing",
            ),
            (
                json!({"metricsAddress": "0.0.0.0:9393", "healthAddress": "0.0.0.0:9393"}),
                "healthAddress: \"0.0.0.0:9393\": overlaps metricsAddress",
            ),
            (
                json!({"evictionRates": {"node": {"exemptGrowers": 1}}}),
                "evictionRates.node.exemptGrowers: 1: must be",
            ),
            (
                json!({"evictionRates": {"owner": {"evictions": 1, "period": "1m", "exemptGrowers": true}}}),
                "evictionRates.owner.exemptGrowers: unknown field",
            ),
            (
                json!({"evictionRates": {"pod": {}}}),
                "evictionRates.pod: unknown field",
            ),
        ] {
            let error = Config::from_values(config, None)
                .expect_err(expected)
                .to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
