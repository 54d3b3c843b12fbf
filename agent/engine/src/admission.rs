//! Which pods may come while the node is under pressure (R6, R24).

use super::{NodeCondition, Pod, QosClass};

/// Whether a pod may start on a node with these conditions (the kubelet's `Admit`): critical pods always may; under
/// memory pressure alone everybody but BestEffort pods, unless they tolerate its taint; under disk or PID pressure
/// nobody.
pub fn admits(conditions: &[NodeCondition], pod: &Pod, tolerates_memory_pressure: bool) -> bool {
    match conditions {
        [] => true,
        _ if pod.is_critical() => true,
        [NodeCondition::MemoryPressure] => {
            pod.qos != QosClass::BestEffort || tolerates_memory_pressure
        }
        _ => false,
    }
}

impl NodeCondition {
    /// The key of the taint, with the effect NoSchedule, that keeps new pods away while the condition holds (R6).
    pub fn taint_key(self) -> &'static str {
        match self {
            Self::DiskPressure => "node.kubernetes.io/disk-pressure",
            Self::MemoryPressure => "node.kubernetes.io/memory-pressure",
            Self::PidPressure => "node.kubernetes.io/pid-pressure",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_pressure_keeps_best_effort_away_and_the_others_keep_everybody_away() {
        // R24
        use NodeCondition::{DiskPressure, MemoryPressure, PidPressure};
        let pod = |qos, priority| Pod {
            qos,
            priority,
            ..Pod::default()
        };
        let (modest, firm) = (pod(QosClass::BestEffort, 0), pod(QosClass::Burstable, 0));
        let critical = pod(QosClass::BestEffort, 2_000_000_000);
        for (conditions, best_effort, tolerant, burstable) in [
            (&[][..], true, true, true),
            (&[MemoryPressure], false, true, true),
            (&[DiskPressure], false, false, false),
            (&[PidPressure], false, false, false),
            (&[DiskPressure, MemoryPressure], false, false, false),
        ] {
            assert_eq!(
                admits(conditions, &modest, false),
                best_effort,
                "{conditions:?}"
            );
            assert_eq!(
                admits(conditions, &modest, true),
                tolerant,
                "{conditions:?}"
            );
            assert_eq!(
                admits(conditions, &firm, false),
                burstable,
                "{conditions:?}"
            );
            assert!(admits(conditions, &critical, false), "{conditions:?}");
        }
    }
}
