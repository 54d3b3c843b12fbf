//! Where a threshold comes from, for reports.

use std::{collections::BTreeMap, fmt};

use evictd_engine::{Signal, Threshold, ThresholdValue};

/// Origin of a threshold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// The kubelet's defaults.
    #[default]
    Defaults,
    /// `evictionHardFallback`.
    Fallback,
    /// The kubelet's configuration.
    Kubelet,
    /// evictd's own configuration.
    Own,
}

impl Origin {
    /// The origin's name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Defaults => "kubeletDefaults",
            Self::Fallback => "evictionHardFallback",
            Self::Kubelet => "kubeletConfiguration",
            Self::Own => "configuration",
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Defaults => "the kubelet's defaults",
            Self::Fallback => "evictionHardFallback",
            Self::Kubelet => "the kubelet's configuration",
            Self::Own => "evictd's configuration",
        })
    }
}

/// Where each threshold comes from. All values are equal to each other: a reload that finds the same thresholds in
/// another place has nothing to put in force; whether the kubelet has its turn at them changes with the next value.
#[derive(Clone, Debug, Default)]
pub struct Origins {
    pub(super) hard: BTreeMap<Signal, Origin>,
    pub(super) soft: Origin,
}

impl PartialEq for Origins {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Origins {
    /// Finds where this threshold comes from. The one of the pods' cgroup comes from where the node's does, unless a
    /// file names it.
    pub fn of(&self, threshold: &Threshold) -> Origin {
        if !threshold.is_hard() {
            return self.soft;
        }
        let named = self.hard.get(&threshold.signal);
        let of_node = || match threshold.signal {
            Signal::AllocatableMemoryAvailable => self.hard.get(&Signal::MemoryAvailable),
            _ => None,
        };
        named.or_else(of_node).copied().unwrap_or_default()
    }

    /// Describes in words where this threshold comes from, with the step that raised it.
    pub fn explain(&self, threshold: &Threshold) -> String {
        let origin = self.of(threshold);
        match &threshold.value {
            ThresholdValue::Raised(raised) => {
                let most = ThresholdValue::Percentage(raised.most);
                let soft = match raised.soft {
                    Some(_) => ", and halfway to a soft threshold above the kubelet's",
                    None => "",
                };
                format!(
                    "{origin}, raised by evictionHardAboveKubelet to {most} of the capacity at most{soft}"
                )
            }
            _ => origin.to_string(),
        }
    }
}
