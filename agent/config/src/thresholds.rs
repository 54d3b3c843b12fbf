//! Makes thresholds from the texts of a configuration, by the rules of the kubelet's `ParseThresholdConfig`.

use std::{collections::BTreeMap, time::Duration};

use evictd_engine::{
    Signal, Threshold, ThresholdValue, UnknownSignal,
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
        let grace_periods: BTreeMap<_, _> = parse_each(
            "evictionSoftGracePeriod",
            &self.soft_grace_period,
            |_, text| duration::parse(text),
        )?;
        let reclaims: BTreeMap<_, _> = parse_each(
            "evictionMinimumReclaim",
            &self.minimum_reclaim,
            |_, text| parse_minimum_reclaim(text),
        )?;
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

/// Reads the name of each signal, and its value with `parse`.
pub(super) fn parse_each<T, E: ToString, C: FromIterator<(Signal, T)>>(
    field: &str,
    signal_values: &SignalValues,
    parse: impl Fn(Signal, &str) -> Result<T, E>,
) -> Result<C, ConfigError> {
    let parsed = signal_values.iter().map(|(name, text)| {
        let path = || format!("{field}.{name}");
        let signal = name.parse();
        let signal = signal.map_err(|e: UnknownSignal| ConfigError::text(path(), text, e))?;
        let value = parse(signal, text).map_err(|e| ConfigError::text(path(), text, e))?;
        Ok((signal, value))
    });
    parsed.collect()
}

pub(super) fn parse_thresholds(
    field: &str,
    signal_values: &SignalValues,
) -> Result<Vec<Threshold>, ConfigError> {
    let values: Vec<_> = parse_each(field, signal_values, |_, text| parse_threshold_value(text))?;
    let thresholds = values.into_iter().filter_map(|(signal, value)| {
        Some(Threshold {
            signal,
            value: value?,
            grace_period: Duration::ZERO,
            min_reclaim: None,
        })
    });
    Ok(thresholds.collect())
}

fn parse_minimum_reclaim(text: &str) -> Result<ThresholdValue, String> {
    let value = parse_value(text)?;
    match &value {
        ThresholdValue::Percentage(share) if *share <= 0.0 => Err("must be above 0%".to_owned()),
        ThresholdValue::Quantity(quantity) if quantity.sign() < 0 => {
            Err("must not be negative".to_owned())
        }
        _ => Ok(value),
    }
}
