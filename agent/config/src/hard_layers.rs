//! `evictionHardAboveKubelet` and `evictionHardFallback`: the layers above and below the kubelet's hard thresholds.

use std::collections::BTreeMap;

use evictd_engine::{
    RaisedValue, Resource, Signal, Threshold, ThresholdValue, model::threshold::parse_value,
};

use super::{
    ConfigError,
    origin::{Origin, Origins},
    signal_values::signal_values,
    thresholds::{SignalValues, parse_each, parse_thresholds},
};
use crate::decode::ObjectDecoder;

const ABOVE: &str = "evictionHardAboveKubelet";
pub(super) const FALLBACK: &str = "evictionHardFallback";

/// The highest share of the capacity to which a step raises a threshold on memory, so that a small node does not evict
/// at once.
const MAX_MEMORY: f32 = 0.1;
/// Highest share of the capacity to which a step raises a threshold on any other signal: on disks the kubelet's
/// defaults alone reach 15 %.
const MAX: f32 = 0.25;

/// The values of both fields.
#[derive(Debug, Default)]
pub struct HardLayers {
    /// `evictionHardFallback`: hard thresholds for signals that the kubelet's configuration does not name.
    pub fallback: Option<SignalValues>,
    /// `evictionHardAboveKubelet`: the step that is added to the kubelet's hard threshold of each signal.
    above: BTreeMap<Signal, ThresholdValue>,
}

impl HardLayers {
    pub(super) fn take(fields: &mut ObjectDecoder) -> Result<Self, ConfigError> {
        let fallback = signal_values(fields, FALLBACK, '<')?;
        if let Some(fallback) = &fallback {
            parse_thresholds(FALLBACK, fallback)?;
        }
        let texts = signal_values(fields, ABOVE, '=')?.unwrap_or_default();
        let steps: Vec<_> = parse_each(ABOVE, &texts, |_, text| step(text))?;
        // A step of zero is no step: a user sets it to switch off the chart's.
        let steps = steps.into_iter();
        let above = steps.filter_map(|(signal, step)| Some((signal, step?)));
        Ok(Self {
            fallback,
            above: above.collect(),
        })
    }

    /// Raises the kubelet's thresholds. A threshold of evictd's own configuration stays as it is. The pods' cgroup has a step of
    /// its own alone: no reservation makes room there, and pods that keep to their requests may leave no more than the kubelet's.
    pub(super) fn raise(&self, thresholds: &mut [Threshold], origins: &Origins) {
        let soft = thresholds.iter().filter(|threshold| !threshold.is_hard());
        let soft: BTreeMap<Signal, ThresholdValue> =
            soft.map(|t| (t.signal, t.value.clone())).collect();
        let is_raised = |threshold: &&mut Threshold| {
            threshold.is_hard() && origins.of(threshold) != Origin::Own
        };
        for threshold in thresholds.iter_mut().filter(is_raised) {
            let signal = threshold.signal;
            if let Some(step) = self.above.get(&signal) {
                threshold.value = ThresholdValue::Raised(Box::new(RaisedValue {
                    base: threshold.value.clone(),
                    step: step.clone(),
                    most: most(signal),
                    soft: soft.get(&signal).cloned(),
                }));
            }
        }
    }
}

fn most(signal: Signal) -> f32 {
    match signal.resource() {
        Resource::Memory => MAX_MEMORY,
        _ => MAX,
    }
}

fn step(text: &str) -> Result<Option<ThresholdValue>, String> {
    let value = parse_value(text)?;
    match &value {
        ThresholdValue::Percentage(share) if *share < 0.0 => Err("must not be below 0%".to_owned()),
        ThresholdValue::Percentage(share) if *share > 1.0 => {
            Err("must not be above 100%".to_owned())
        }
        ThresholdValue::Quantity(quantity) if quantity.sign() < 0 => {
            Err("must not be negative".to_owned())
        }
        ThresholdValue::Percentage(share) if *share == 0.0 => Ok(None),
        ThresholdValue::Quantity(quantity) if quantity.is_zero() => Ok(None),
        _ => Ok(Some(value)),
    }
}
