//! Which of two pods goes first: the one comparison that the full ranking and the fast path share, so that they
//! cannot disagree.

use std::cmp::Reverse;

use crate::{QosClass, Resource, model::settings::RankingStrategy, units::signed};

/// Claim of a pod on a resource that runs short.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RankInputs {
    /// The pod's priority.
    pub priority: i32,
    /// Whether that is not known: the pod goes after every pod whose priority is.
    pub priority_unknown: bool,
    /// The pod's QoS class.
    pub qos: QosClass,
    /// What the pod requested, in bytes: memory for memory, ephemeral storage for everything on disk (for inodes,
    /// which cannot be requested, too: see [`RankKey::new`]), zero for process ids.
    pub request: u64,
    /// What a policy says about the order: the lower number goes first among pods that the strategy's first criterion
    /// holds equal.
    pub order: i16,
}

impl RankInputs {
    /// Whether a pod that uses so much is above its request. For inodes the kubelet takes every pod that has any as above
    /// it: what is requested is bytes.
    pub(crate) fn is_exceeded(&self, resource: Resource, usage: u64) -> bool {
        match resource {
            Resource::Inodes => usage > 0,
            Resource::Memory | Resource::EphemeralStorage | Resource::Pids => usage > self.request,
        }
    }
}

/// Rank of a pod in the order of eviction: the least goes first.
///
/// More usage never moves a pod back. The fast path rests on that: the pod that is first by upper bounds of usage, and
/// is so by an exact value, is first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct RankKey {
    is_unknown: bool,
    group: u8,
    /// The two criteria between the group and the amount, the stronger one first.
    between: [i32; 2],
    excess: Reverse<i64>,
    /// Criterion that decides last.
    tie: i16,
}

impl RankKey {
    /// Computes where the kubelet puts a pod when memory runs short. It knows no policies, and every priority.
    pub fn for_kubelet(priority: i32, request: u64, usage: Option<u64>) -> Self {
        let inputs = RankInputs {
            priority,
            request,
            ..RankInputs::default()
        };
        Self::new(RankingStrategy::Kubelet, Resource::Memory, inputs, usage)
    }

    /// Where a pod with this claim stands when it uses this much of the resource. A pod without any numbers
    /// (`usage` is `None`) goes before those that have some, as in the kubelet.
    ///
    /// Before everything else counts whether the priority is known, in every strategy: a pod that may be critical does
    /// not go for one that is known not to be.
    ///
    /// - `kubelet`: above request first, then the lower priority, then usage minus request. Process ids go
    ///   by priority, then number. For inodes the kubelet subtracts the request for *bytes* of ephemeral storage
    ///   (`helpers.go`, `disk`); so does this.
    /// - `qos`: BestEffort, Burstable, Guaranteed; inside a class for memory those above request by usage
    ///   minus request, then the others by usage; for everything else by usage.
    /// - `usage`: by usage alone.
    ///
    /// The order of a policy ([`RankInputs::order`]) counts right after a strategy's first criterion: after whether the
    /// pod is above its request (`kubelet`), after the priority for process ids, after the class and whether the pod is
    /// above its request (`qos`), and only between equals where usage is all there is (`usage`).
    pub fn new(
        strategy: RankingStrategy,
        resource: Resource,
        inputs: RankInputs,
        usage: Option<u64>,
    ) -> Self {
        // Neither can be negative, so that their difference fits.
        let used = signed(usage.unwrap_or(0));
        let request = signed(inputs.request);
        let exceeds = inputs.is_exceeded(resource, usage.unwrap_or(0));
        let order = i32::from(inputs.order);
        let (group, between, excess) = match (strategy, resource) {
            (RankingStrategy::Kubelet, Resource::Pids) => (0, [inputs.priority, order], used),
            (RankingStrategy::Kubelet, _) => {
                let group = match (usage, exceeds) {
                    (None, _) => 0,
                    (Some(_), true) => 1,
                    (Some(_), false) => 2,
                };
                (group, [order, inputs.priority], used - request)
            }
            (RankingStrategy::Qos, Resource::Memory) => {
                let class = inputs.qos as u8 * 2;
                if exceeds {
                    (class, [order, 0], used - request)
                } else {
                    (class + 1, [order, 0], used)
                }
            }
            (RankingStrategy::Qos, _) => (inputs.qos as u8 * 2, [order, 0], used),
            (RankingStrategy::Usage, _) => (0, [0; 2], used),
        };
        let (group, excess) = match usage {
            Some(_) => (group, excess),
            // In a QoS class the missing come first too, whether or not they may be above their request.
            None if strategy == RankingStrategy::Qos => (inputs.qos as u8 * 2, i64::MAX),
            None => (group, i64::MAX),
        };
        Self {
            is_unknown: inputs.priority_unknown,
            group,
            between,
            excess: Reverse(excess),
            tie: inputs.order,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const STRATEGIES: [RankingStrategy; 3] = [
        RankingStrategy::Kubelet,
        RankingStrategy::Qos,
        RankingStrategy::Usage,
    ];
    const RESOURCES: [Resource; 4] = [
        Resource::Memory,
        Resource::EphemeralStorage,
        Resource::Inodes,
        Resource::Pids,
    ];

    proptest! {
        #[test]
        fn more_usage_never_moves_a_pod_back(
            strategy in prop::sample::select(&STRATEGIES),
            resource in prop::sample::select(&RESOURCES),
            qos in prop::sample::select(&[QosClass::BestEffort, QosClass::Burstable, QosClass::Guaranteed]),
            priority in any::<i32>(),
            request in any::<u64>(),
            order in any::<i16>(),
            priority_unknown in any::<bool>(),
            mut usages in any::<[u64; 2]>(),
        ) {
            usages.sort_unstable();
            let inputs = RankInputs { priority, priority_unknown, qos, request, order };
            let less = RankKey::new(strategy, resource, inputs, Some(usages[0]));
            let more = RankKey::new(strategy, resource, inputs, Some(usages[1]));
            prop_assert!(more <= less);
            prop_assert!(RankKey::new(strategy, resource, inputs, None) <= more);
        }

        #[test]
        fn unknown_priority_goes_last(
            strategy in prop::sample::select(&STRATEGIES),
            resource in prop::sample::select(&RESOURCES),
            priorities in any::<[i32; 2]>(),
            requests in any::<[u64; 2]>(),
            usages in any::<[Option<u64>; 2]>(),
        ) {
            let [known, unknown] = [false, true].map(|priority_unknown| {
                let at = usize::from(priority_unknown);
                let (priority, request) = (priorities[at], requests[at]);
                let inputs = RankInputs { priority, priority_unknown, request, ..RankInputs::default() };
                RankKey::new(strategy, resource, inputs, usages[at])
            });
            prop_assert!(known < unknown);
        }
    }
}
