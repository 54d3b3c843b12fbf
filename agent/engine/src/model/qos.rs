//! QoS classes, and what the OOM killer makes of them.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::model::quantity::Quantity;

/// How firmly a pod's resources are promised to it. The order is that in which the OpenShift documents evict.
#[derive(
    Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize,
)]
pub enum QosClass {
    /// Nothing is requested.
    #[default]
    BestEffort,
    /// Something is requested.
    Burstable,
    /// CPU and memory are limited everywhere, to what is requested.
    Guaranteed,
}

/// CPU and memory of one container, or of a pod as a whole; what is absent is zero.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ComputeResources {
    /// The CPU request.
    pub cpu_request: Quantity,
    /// The CPU limit.
    pub cpu_limit: Quantity,
    /// The memory request.
    pub memory_request: Quantity,
    /// The memory limit.
    pub memory_limit: Quantity,
}

impl ComputeResources {
    /// The class that this container alone would have (`resourceQOS`).
    fn class(&self) -> QosClass {
        if self.cpu_request != self.cpu_limit || self.memory_request != self.memory_limit {
            return QosClass::Burstable;
        }
        match (self.cpu_request.is_zero(), self.memory_request.is_zero()) {
            (true, true) => QosClass::BestEffort,
            (false, false) => QosClass::Guaranteed,
            _ => QosClass::Burstable,
        }
    }
}

impl QosClass {
    /// The class of a pod: that of all its containers if they agree, Burstable if not (`ComputePodQOS`). A pod whose
    /// resources are set for the pod as a whole gives those alone.
    pub fn of<'a>(containers: impl IntoIterator<Item = &'a ComputeResources>) -> Self {
        let mut classes = containers.into_iter().map(ComputeResources::class);
        let first = classes.next().unwrap_or_default();
        if classes.all(|class| class == first) {
            first
        } else {
            Self::Burstable
        }
    }

    /// The name in `status.qosClass`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::BestEffort => "BestEffort",
            Self::Burstable => "Burstable",
            Self::Guaranteed => "Guaranteed",
        }
    }
}

impl fmt::Display for QosClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The oom_score_adj of a pod's containers (`GetContainerOOMScoreAdjust`): the higher, the sooner the OOM killer
/// takes them.
///
/// `request` and `capacity` are bytes of memory; `is_node_critical` is [`crate::Pod::is_node_critical`].
pub fn oom_score_adj(qos: QosClass, is_node_critical: bool, request: u64, capacity: u64) -> i32 {
    match qos {
        _ if is_node_critical => -997,
        QosClass::Guaranteed => -997,
        QosClass::BestEffort => 1000,
        QosClass::Burstable => {
            let share = 1000 * u128::from(request) / u128::from(capacity.max(1));
            let adjust = 1000 - i32::try_from(share).unwrap_or(1000).min(1000);
            adjust.clamp(2, 999)
        }
    }
}

/// The kernel's `oom_badness` of a process that uses so many bytes: these, and a thousandth of `capacity` for each
/// point of its oom_score_adj. The OOM killer takes the process that has most.
pub fn oom_badness(usage: u64, adjust: i32, capacity: u64) -> i128 {
    i128::from(usage) + i128::from(adjust) * i128::from(capacity) / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resources(
        cpu_request: &str,
        cpu_limit: &str,
        memory_request: &str,
        memory_limit: &str,
    ) -> ComputeResources {
        let read = |text: &str| text.parse().expect("a quantity");
        ComputeResources {
            cpu_request: read(cpu_request),
            cpu_limit: read(cpu_limit),
            memory_request: read(memory_request),
            memory_limit: read(memory_limit),
        }
    }

    #[test]
    fn classes_follow_requests_and_limits() {
        let guaranteed = resources("1", "1000m", "1Gi", "1024Mi");
        let nothing = ComputeResources::default();
        for (containers, expected) in [
            (vec![], QosClass::BestEffort),
            (vec![nothing.clone()], QosClass::BestEffort),
            (
                vec![guaranteed.clone(), guaranteed.clone()],
                QosClass::Guaranteed,
            ),
            (vec![guaranteed.clone(), nothing], QosClass::Burstable),
            (vec![resources("0", "0", "1Gi", "1Gi")], QosClass::Burstable),
            (
                vec![resources("1", "1", "1Gi", "2Gi"), guaranteed],
                QosClass::Burstable,
            ),
            (vec![resources("0", "0", "1", "0")], QosClass::Burstable),
        ] {
            assert_eq!(QosClass::of(&containers), expected, "{containers:?}");
        }
    }

    #[test]
    fn oom_scores_are_those_of_the_documents() {
        const GI: u64 = 1 << 30;
        let adjust = |qos, request| oom_score_adj(qos, false, request, 30 * GI);
        // R27: a 30Gi node, 4Gi requested.
        assert_eq!(adjust(QosClass::Burstable, 4 * GI), 867);
        assert_eq!(adjust(QosClass::BestEffort, 0), 1000);
        // R13, R22
        assert_eq!(adjust(QosClass::Guaranteed, 4 * GI), -997);
        assert_eq!(oom_score_adj(QosClass::BestEffort, true, 0, GI), -997);
        assert_eq!(adjust(QosClass::Burstable, 0), 999);
        assert_eq!(adjust(QosClass::Burstable, 40 * GI), 2);
        assert_eq!(oom_score_adj(QosClass::Burstable, false, u64::MAX, 0), 2);
    }
}
