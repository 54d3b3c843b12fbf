//! The fields that evictd shares with the KubeletConfiguration, in the map form and in the string form.

use std::time::Duration;

use evictd_engine::model::{quantity::Quantity, settings::EvictionConfig};
use serde_json::Value;

use super::{
    ConfigError, duration,
    thresholds::{DEFAULT_EVICTION_HARD, ENFORCE_PODS, Statements, ThresholdTexts},
};
use crate::decode::ObjectDecoder;

/// How long a node condition stays after the last sign of pressure, if nothing is configured.
pub const DEFAULT_PRESSURE_TRANSITION_PERIOD: Duration = Duration::from_secs(300);

/// What `enforceNodeAllocatable` may hold.
const ENFORCEABLE: [&str; 6] = [
    "none",
    ENFORCE_PODS,
    "system-reserved",
    "kube-reserved",
    "system-reserved-compressible",
    "kube-reserved-compressible",
];

/// The fields as they stand in a file; `None` is a field that is absent.
#[derive(Debug, Default)]
pub struct EvictionFields {
    hard: Option<Statements>,
    soft: Option<Statements>,
    soft_grace_period: Option<Statements>,
    minimum_reclaim: Option<Statements>,
    max_pod_grace_period: Option<i32>,
    pressure_transition_period: Option<Duration>,
    merge_defaults: Option<bool>,
    enforce_node_allocatable: Option<Vec<String>>,
    system_reserved: Option<Quantity>,
    kube_reserved: Option<Quantity>,
}

impl EvictionFields {
    /// Takes the fields out of a document.
    ///
    /// # Errors
    /// A field whose value cannot be used.
    pub fn take(fields: &mut ObjectDecoder) -> Result<Self, ConfigError> {
        Ok(Self {
            hard: statements(fields, "evictionHard", '<')?,
            soft: statements(fields, "evictionSoft", '<')?,
            soft_grace_period: statements(fields, "evictionSoftGracePeriod", '=')?,
            minimum_reclaim: statements(fields, "evictionMinimumReclaim", '=')?,
            max_pod_grace_period: fields.int32("evictionMaxPodGracePeriod")?,
            pressure_transition_period: transition_period(fields)?,
            merge_defaults: fields.boolean("mergeDefaultEvictionSettings")?,
            enforce_node_allocatable: enforced(fields)?,
            system_reserved: reserved_memory(fields, "systemReserved")?,
            kube_reserved: reserved_memory(fields, "kubeReserved")?,
        })
    }

    /// Sets the transition period, which a file can only give as a text and never as zero.
    pub fn with_transition_period(mut self, period: Option<Duration>) -> Self {
        self.pressure_transition_period = period.or(self.pressure_transition_period);
        self
    }

    /// Fills in from `base` what is absent here.
    pub(super) fn or(self, base: Self) -> Self {
        Self {
            hard: self.hard.or(base.hard),
            soft: self.soft.or(base.soft),
            soft_grace_period: self.soft_grace_period.or(base.soft_grace_period),
            minimum_reclaim: self.minimum_reclaim.or(base.minimum_reclaim),
            max_pod_grace_period: self.max_pod_grace_period.or(base.max_pod_grace_period),
            pressure_transition_period: self
                .pressure_transition_period
                .or(base.pressure_transition_period),
            merge_defaults: self.merge_defaults.or(base.merge_defaults),
            enforce_node_allocatable: self
                .enforce_node_allocatable
                .or(base.enforce_node_allocatable),
            system_reserved: self.system_reserved.or(base.system_reserved),
            kube_reserved: self.kube_reserved.or(base.kube_reserved),
        }
    }

    /// Applies the kubelet's defaults and parses the thresholds.
    pub fn resolve(self) -> Result<EvictionConfig, ConfigError> {
        let defaults = DEFAULT_EVICTION_HARD
            .iter()
            .map(|(signal, value)| (signal.to_string(), (*value).to_owned()));
        let hard = match self.hard {
            None => defaults.collect(),
            // What is configured goes on top of the defaults.
            Some(hard) if self.merge_defaults == Some(true) => defaults.chain(hard).collect(),
            Some(hard) => hard,
        };
        let texts = ThresholdTexts {
            hard,
            soft: self.soft.unwrap_or_default(),
            soft_grace_period: self.soft_grace_period.unwrap_or_default(),
            minimum_reclaim: self.minimum_reclaim.unwrap_or_default(),
            enforce_node_allocatable: self
                .enforce_node_allocatable
                .unwrap_or_else(|| vec![ENFORCE_PODS.to_owned()]),
        };
        let mut reserved = Quantity::ZERO;
        for part in [&self.system_reserved, &self.kube_reserved]
            .into_iter()
            .flatten()
        {
            reserved.add(part);
        }
        Ok(EvictionConfig {
            reserved_memory: reserved.floor(),
            thresholds: texts.parse()?,
            max_pod_grace_period_seconds: self.max_pod_grace_period.unwrap_or(0),
            pressure_transition_period: self
                .pressure_transition_period
                .unwrap_or(DEFAULT_PRESSURE_TRANSITION_PERIOD),
        })
    }
}

/// Reads a map of signals, or a text `signal<value,signal<value`, or a list of such texts.
fn statements(
    fields: &mut ObjectDecoder,
    name: &str,
    operator: char,
) -> Result<Option<Statements>, ConfigError> {
    let field = fields.path_of(name);
    let mut statements = Statements::new();
    match fields.optional(name) {
        None => return Ok(None),
        Some(Value::Object(map)) => {
            for (signal, value) in map {
                let Value::String(text) = value else {
                    return Err(ConfigError::value(
                        format!("{field}.{signal}"),
                        &value,
                        "must be a string",
                    ));
                };
                statements.insert(signal, text);
            }
        }
        Some(Value::String(text)) => read_statements(&field, operator, &text, &mut statements)?,
        Some(Value::Array(items)) => {
            for item in items {
                let Value::String(text) = item else {
                    return Err(ConfigError::value(field, &item, "must be a string"));
                };
                read_statements(&field, operator, &text, &mut statements)?;
            }
        }
        Some(other) => {
            return Err(ConfigError::value(
                field,
                &other,
                "must be a map of signals, a string or a list of strings",
            ));
        }
    }
    Ok(Some(statements))
}

fn read_statements(
    field: &str,
    operator: char,
    text: &str,
    into: &mut Statements,
) -> Result<(), ConfigError> {
    for statement in text
        .split(',')
        .filter(|statement| !statement.trim().is_empty())
    {
        let Some((signal, value)) = statement.split_once(operator) else {
            let reason = format!("must have the form <signal>{operator}<value>");
            return Err(ConfigError::text(field, statement, reason));
        };
        if into
            .insert(signal.trim().to_owned(), value.trim().to_owned())
            .is_some()
        {
            return Err(ConfigError::text(
                field,
                statement,
                "the signal is given twice",
            ));
        }
    }
    Ok(())
}

/// Zero means the default, as in the kubelet (`SetDefaults_KubeletConfiguration`).
fn transition_period(fields: &mut ObjectDecoder) -> Result<Option<Duration>, ConfigError> {
    let name = "evictionPressureTransitionPeriod";
    let Some(text) = fields.text(name)? else {
        return Ok(None);
    };
    let period =
        duration::parse(&text).map_err(|e| ConfigError::text(fields.path_of(name), &text, e))?;
    Ok((!period.is_zero()).then_some(period))
}

/// The memory in a map of resources to quantities; the other resources mean nothing here.
fn reserved_memory(
    fields: &mut ObjectDecoder,
    name: &str,
) -> Result<Option<Quantity>, ConfigError> {
    let Some(mut resources) = fields.object(name)? else {
        return Ok(None);
    };
    let path = resources.path_of("memory");
    match resources.parsed::<Quantity>("memory")? {
        Some(memory) if memory.sign() < 0 => Err(ConfigError::text(
            path,
            &memory.to_string(),
            "must not be negative",
        )),
        memory => Ok(Some(memory.unwrap_or_default())),
    }
}

fn enforced(fields: &mut ObjectDecoder) -> Result<Option<Vec<String>>, ConfigError> {
    let name = "enforceNodeAllocatable";
    let Some(keys) = fields.texts(name)? else {
        return Ok(None);
    };
    for key in &keys {
        if !key.is_empty() && !ENFORCEABLE.contains(&key.as_str()) {
            let reason = format!("must be one of {}", ENFORCEABLE.join(", "));
            return Err(ConfigError::text(fields.path_of(name), key, reason));
        }
    }
    if keys.len() > 1 && keys.iter().any(|key| key == "none") {
        return Err(ConfigError::text(
            fields.path_of(name),
            "none",
            "excludes all other entries",
        ));
    }
    Ok(Some(keys))
}
