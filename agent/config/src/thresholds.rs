//! Makes thresholds from the texts of a configuration, by the rules of the kubelet's `ParseThresholdConfig`.

use std::{collections::BTreeMap, time::Duration};

use evictd_engine::{
    Signal, Threshold, ThresholdValue,
    model::threshold::{parse_threshold_value, parse_value},
};

use super::{ConfigError, duration};

/// Signal names with the texts of their values, sorted by name; the kubelet's maps have no order.
pub type SignalValues = BTreeMap<String, String>;

/// The kubelet's default hard thresholds on Linux (`DefaultEvictionHard`).
pub const DEFAULT_EVICTION_HARD: [(Signal, &str); 5] = [
    (Signal::MemoryAvailable, "100Mi"),
    (Signal::NodeFsAvailable, "10%"),
    (Signal::NodeFsInodesFree, "5%"),
    (Signal::ImageFsAvailable, "15%"),
    (Signal::ImageFsInodesFree, "5%"),
];

/// The entry of `enforceNodeAllocatable` that puts a limit on all pods together.
pub const ENFORCE_PODS: &str = "pods";

/// The texts that thresholds are made of, under the names of the KubeletConfiguration's fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThresholdTexts {
    /// `evictionHard`: signal to quantity or percentage.
    pub hard: SignalValues,
    /// `evictionSoft`: signal to quantity or percentage.
    pub soft: SignalValues,
    /// `evictionSoftGracePeriod`: signal to duration.
    pub soft_grace_period: SignalValues,
    /// `evictionMinimumReclaim`: signal to quantity or percentage.
    pub minimum_reclaim: SignalValues,
    /// `enforceNodeAllocatable`.
    pub enforce_node_allocatable: Vec<String>,
}

impl ThresholdTexts {
    /// Makes the thresholds: the hard ones by name, the soft ones by name, then those that follow from
    /// `enforceNodeAllocatable`.
    ///
    /// # Errors
    ///
    /// The first statement that the kubelet would refuse.
    pub fn parse(&self) -> Result<Vec<Threshold>, ConfigError> {
        let mut thresholds = parse_thresholds("evictionHard", &self.hard)?;
        let mut soft = parse_thresholds("evictionSoft", &self.soft)?;
        let grace_periods = parse_grace_periods(&self.soft_grace_period)?;
        let reclaims = parse_minimum_reclaims(&self.minimum_reclaim)?;
        for threshold in &mut soft {
            threshold.grace_period = *grace_periods.get(&threshold.signal).ok_or_else(|| {
                let name = threshold.signal.as_str();
                let value = self.soft.get(name).map_or("", String::as_str);
                let reason = format!(
                    "a soft threshold needs a grace period: evictionSoftGracePeriod has no {name}"
                );
                ConfigError::text(format!("evictionSoft.{name}"), value, reason)
            })?;
        }
        thresholds.append(&mut soft);
        for threshold in &mut thresholds {
            threshold.min_reclaim = reclaims.get(&threshold.signal).cloned();
        }
        if self
            .enforce_node_allocatable
            .iter()
            .any(|key| key == ENFORCE_PODS)
        {
            let allocatable: Vec<_> = thresholds
                .iter()
                .filter_map(allocatable_counterpart)
                .collect();
            thresholds.extend(allocatable);
        }
        Ok(thresholds)
    }
}

/// The threshold for the pods' cgroup that follows from the node's hard memory threshold.
fn allocatable_counterpart(threshold: &Threshold) -> Option<Threshold> {
    (threshold.signal == Signal::MemoryAvailable && threshold.is_hard()).then(|| Threshold {
        signal: Signal::AllocatableMemoryAvailable,
        ..threshold.clone()
    })
}

pub(super) fn parse_signal(field: &str, name: &str, value: &str) -> Result<Signal, ConfigError> {
    name.parse()
        .map_err(|e| ConfigError::text(format!("{field}.{name}"), value, e))
}

pub(super) fn parse_thresholds(
    field: &str,
    signal_values: &SignalValues,
) -> Result<Vec<Threshold>, ConfigError> {
    let mut thresholds = Vec::with_capacity(signal_values.len());
    for (name, text) in signal_values {
        let signal = parse_signal(field, name, text)?;
        let value = parse_threshold_value(text)
            .map_err(|reason| ConfigError::text(format!("{field}.{name}"), text, reason))?;
        if let Some(value) = value {
            thresholds.push(Threshold {
                signal,
                value,
                grace_period: Duration::ZERO,
                min_reclaim: None,
            });
        }
    }
    Ok(thresholds)
}

fn parse_grace_periods(
    signal_values: &SignalValues,
) -> Result<BTreeMap<Signal, Duration>, ConfigError> {
    let field = "evictionSoftGracePeriod";
    let mut periods = BTreeMap::new();
    for (name, text) in signal_values {
        let signal = parse_signal(field, name, text)?;
        let period = duration::parse(text)
            .map_err(|e| ConfigError::text(format!("{field}.{name}"), text, e))?;
        periods.insert(signal, period);
    }
    Ok(periods)
}

fn parse_minimum_reclaims(
    signal_values: &SignalValues,
) -> Result<BTreeMap<Signal, ThresholdValue>, ConfigError> {
    let field = "evictionMinimumReclaim";
    let mut reclaims = BTreeMap::new();
    for (name, text) in signal_values {
        let signal = parse_signal(field, name, text)?;
        let value = parse_value(text).and_then(|value| match &value {
            ThresholdValue::Percentage(share) if *share <= 0.0 => {
                Err("must be above 0%".to_owned())
            }
            ThresholdValue::Quantity(quantity) if quantity.sign() < 0 => {
                Err("must not be negative".to_owned())
            }
            _ => Ok(value),
        });
        let value =
            value.map_err(|reason| ConfigError::text(format!("{field}.{name}"), text, reason))?;
        reclaims.insert(signal, value);
    }
    Ok(reclaims)
}
