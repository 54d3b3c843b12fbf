//! `cluster.taint`: the taints of a node under pressure.

use std::time::Duration;

use serde_json::Value;

use super::is_subdomain;
use crate::{ConfigError, decode::ObjectDecoder};

/// Default of `keyPrefix`, in front of `memory-pressure`, `disk-pressure` and `pid-pressure`.
pub const DEFAULT_TAINT_PREFIX: &str = "evictd.dev/";
/// Default of `setAfter`. The kubelet looks this often: it may also miss shorter pressure.
const SET_AFTER: Duration = Duration::from_secs(10);
/// Allowed prefixes under Kubernetes' own domain: cluster-autoscaler ignores taints whose keys begin with them.
const AUTOSCALER: [&str; 2] = [
    "status-taint.cluster-autoscaler.kubernetes.io/",
    "startup-taint.cluster-autoscaler.kubernetes.io/",
];

/// The taints that a node has while a condition holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaintConfig {
    /// `cluster.taint.keyPrefix`: the key up to the condition's name.
    pub key_prefix: String,
    /// `cluster.taint.effect`.
    pub effect: TaintEffect,
    /// `cluster.taint.setAfter`: time from the condition to the taint, if there is pressure at that moment.
    pub set_after: Duration,
    /// `cluster.taint.removeAfter`: time from the end of the condition to the end of the taint.
    pub remove_after: Duration,
}

/// What a taint means for pods that do not tolerate it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TaintEffect {
    /// The scheduler prefers another node.
    #[default]
    PreferNoSchedule,
    /// The scheduler sends none of them.
    NoSchedule,
}

impl TaintEffect {
    /// The effect's name in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PreferNoSchedule => "PreferNoSchedule",
            Self::NoSchedule => "NoSchedule",
        }
    }
}

impl Default for TaintConfig {
    fn default() -> Self {
        Self {
            key_prefix: DEFAULT_TAINT_PREFIX.to_owned(),
            effect: TaintEffect::default(),
            set_after: SET_AFTER,
            remove_after: Duration::ZERO,
        }
    }
}

/// Takes the field `taint`: `true` means the defaults, `false` no taint.
pub(super) fn take(cluster: &mut ObjectDecoder) -> Result<Option<TaintConfig>, ConfigError> {
    let path = cluster.path_of("taint");
    let mut taint = match cluster.optional("taint") {
        Some(Value::Bool(false)) => return Ok(None),
        None | Some(Value::Bool(true)) => return Ok(Some(TaintConfig::default())),
        Some(value @ Value::Object(_)) => ObjectDecoder::open(&path, value)?,
        Some(other) => {
            let reason = "must be true, false, or a map of fields";
            return Err(ConfigError::value(path, &other, reason));
        }
    };
    let base = TaintConfig::default();
    let prefix = taint.text("keyPrefix")?;
    if let Some(prefix) = &prefix {
        check_prefix(prefix, || taint.path_of("keyPrefix"))?;
    }
    let effects = [TaintEffect::PreferNoSchedule, TaintEffect::NoSchedule];
    let effects = effects.map(|effect| (effect.as_str(), effect));
    let taken = TaintConfig {
        key_prefix: prefix.unwrap_or(base.key_prefix),
        effect: taint.choice("effect", &effects)?.unwrap_or(base.effect),
        set_after: taint.duration("setAfter")?.unwrap_or(base.set_after),
        remove_after: taint.duration("removeAfter")?.unwrap_or(base.remove_after),
    };
    taint.deny_unknown_fields()?;
    Ok(Some(taken))
}

/// Takes the field `formerTaintKeyPrefixes`. It stands beside `taint`, which may be `false`.
pub(super) fn take_former(cluster: &mut ObjectDecoder) -> Result<Vec<String>, ConfigError> {
    let path = cluster.path_of("formerTaintKeyPrefixes");
    let prefixes = cluster.texts("formerTaintKeyPrefixes")?.unwrap_or_default();
    for (i, prefix) in prefixes.iter().enumerate() {
        check_prefix(prefix, || format!("{path}[{i}]"))?;
    }
    Ok(prefixes)
}

fn check_prefix(prefix: &str, path: impl FnOnce() -> String) -> Result<(), ConfigError> {
    if is_key_prefix(prefix) {
        return Ok(());
    }
    let reason = "must be a domain that is not Kubernetes' own, or one of cluster-autoscaler's prefixes, with a slash \
        and perhaps the beginning of a name";
    Err(ConfigError::text(path(), prefix, reason))
}

/// The beginning of a qualified name whose taints belong to no other component.
fn is_key_prefix(prefix: &str) -> bool {
    let Some((domain, name)) = prefix.split_once('/') else {
        return false;
    };
    let of = |own: &str| domain == own || domain.ends_with(&format!(".{own}"));
    let is_kubernetes = of("kubernetes.io") || of("k8s.io");
    let starts_well = name.is_empty() || name.starts_with(|c: char| c.is_ascii_alphanumeric());
    let good = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_');
    is_subdomain(domain)
        && (!is_kubernetes || AUTOSCALER.iter().any(|own| prefix.starts_with(own)))
        && starts_well
        // With the longest name behind it, 63 characters.
        && name.len() <= 48
        && name.bytes().all(good)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(taint: Value) -> Result<Option<TaintConfig>, String> {
        let mut fields = ObjectDecoder::open("cluster", json!({ "taint": taint })).expect("a map");
        take(&mut fields).map_err(|e| e.to_string())
    }

    #[test]
    fn it_is_a_switch_or_an_object() {
        assert_eq!(read(json!(false)), Ok(None));
        assert_eq!(read(json!(true)), Ok(Some(TaintConfig::default())));
        assert_eq!(read(json!({})), Ok(Some(TaintConfig::default())));
        let prefix = "status-taint.cluster-autoscaler.kubernetes.io/evictd-";
        let all = json!({"keyPrefix": prefix, "effect": "NoSchedule", "setAfter": "0s", "removeAfter": "1m"});
        let expected = TaintConfig {
            key_prefix: prefix.to_owned(),
            effect: TaintEffect::NoSchedule,
            set_after: Duration::ZERO,
            remove_after: Duration::from_secs(60),
        };
        assert_eq!(read(all), Ok(Some(expected)));
    }

    #[test]
    fn every_mistake_names_its_field() {
        for (taint, expected) in [
            (json!("yes"), "cluster.taint: \"yes\": must be true, false"),
            (
                json!({"effect": "NoExecute"}),
                "cluster.taint.effect: \"NoExecute\": must be one of PreferNoSchedule, NoSchedule",
            ),
            (
                json!({"keyPrefix": "node.kubernetes.io/"}),
                "cluster.taint.keyPrefix: \"node.kubernetes.io/\": must be a domain",
            ),
            (
                json!({"keyPrefix": "evictd"}),
                "cluster.taint.keyPrefix: \"evictd\": must be a domain",
            ),
            (
                json!({"setAfter": "10"}),
                "cluster.taint.setAfter: \"10\": a unit is missing",
            ),
            (json!({"key": "x"}), "cluster.taint.key: unknown field"),
        ] {
            let error = read(taint).expect_err(expected);
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
