//! Who is to blame when a pod waits for memory: a pod at its own limit is told apart from a node that is short (R45).

/// What is known about a pod that waits for memory. All amounts are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StallFacts {
    /// What the node has available.
    pub node_available: u64,
    /// The highest of the node's thresholds.
    pub node_threshold: u64,
    /// What the pod's cgroup is charged with, page cache included: that is what its limit is compared with.
    pub pod_usage: u64,
    /// The pod's limit, if it has one.
    pub pod_limit: Option<u64>,
}

/// Why a pod waits for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StallCause {
    /// The node is below a threshold: eviction helps.
    NodeIsShort,
    /// The pod has used up what it may have, and the node has enough: nobody else is to be evicted for it, and the
    /// pod's own container will be OOM-killed and restarted.
    OwnLimit,
    /// Neither: a limit in between, swap, or a slow disk.
    Elsewhere,
}

/// Tells why a pod waits for memory.
pub fn stall_cause(facts: StallFacts) -> StallCause {
    if facts.node_available < facts.node_threshold {
        return StallCause::NodeIsShort;
    }
    match facts.pod_limit {
        // The kernel charges in batches of 64 pages a CPU, and reclaim lets go of a little each time: a pod that is
        // held back by its limit hovers just below it.
        Some(limit) if facts.pod_usage >= limit - limit / 64 => StallCause::OwnLimit,
        _ => StallCause::Elsewhere,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_at_its_own_limit_is_not_a_short_node() {
        // R45
        const MI: u64 = 1 << 20;
        let facts = StallFacts {
            node_available: 900 * MI,
            node_threshold: 100 * MI,
            pod_usage: 255 * MI,
            pod_limit: Some(256 * MI),
        };
        assert_eq!(stall_cause(facts), StallCause::OwnLimit);
        assert_eq!(
            stall_cause(StallFacts {
                pod_usage: 200 * MI,
                ..facts
            }),
            StallCause::Elsewhere
        );
        assert_eq!(
            stall_cause(StallFacts {
                pod_limit: None,
                ..facts
            }),
            StallCause::Elsewhere
        );
        assert_eq!(
            stall_cause(StallFacts {
                node_available: 99 * MI,
                ..facts
            }),
            StallCause::NodeIsShort
        );
        let extreme = StallFacts {
            pod_usage: u64::MAX,
            pod_limit: Some(u64::MAX),
            ..facts
        };
        assert_eq!(stall_cause(extreme), StallCause::OwnLimit);
    }
}
