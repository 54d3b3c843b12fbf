//! What happened between this agent and the API server, counted.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($prefix:literal: { $(#[doc = $doc:literal] $name:ident,)* })*) => {
        /// Counters of one agent, all from its start.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[doc = $doc] pub $name: Counter,)*)*
        }

        impl Counters {
            /// Every counter with the name of its metric and what it counts.
            pub fn all(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![$($((
                    concat!($prefix, stringify!($name)),
                    $doc.trim().trim_end_matches('.'),
                    self.$name.get(),
                ),)*)*]
            }
        }
    };
}

counters! {
    "api_": {
        /// Requests sent, watches not included.
        requests,
        /// Requests that were answered with 401.
        unauthorized,
        /// Requests that were answered with 403, watches included, namespaces that are being deleted not.
        forbidden,
        /// Requests in the name of another node that no admission policy has refused.
        node_restriction_not_enforced,
        /// Requests without a usable answer: refused connections, timeouts, 429 and 5xx.
        unanswered,
        /// Lists of the node's pods: one at the start, one after each loss of continuity.
        lists,
        /// Errors of the watch.
        watch_errors,
        /// Pod objects without a UID, which are left out.
        pods_without_uid,
        /// Pod objects that cannot be read, which are left out.
        pods_unreadable,
        /// Mirror pods seen: they stand for static pods, which the API server cannot end.
        mirror_pods,
        /// Pods seen while being deleted already.
        terminating_pods,
        /// Looks at the pods, before the first list, in which only their cgroups told of some.
        pods_from_cgroups,
        /// Times that pods did not fit into what is remembered over a restart.
        pods_not_remembered,
        /// Evictions reported in full.
        reported,
        /// Evictions and Events given up: the API server would not take them, or too many Events waited.
        reports_failed,
        /// Reports put off to the agent's next start, because too many waited.
        reports_deferred,
        /// Soft evictions: a dry run of the Eviction API, then a DELETE.
        soft_evictions,
        /// Evictions that a PodDisruptionBudget refused.
        pdb_blocked,
        /// Evictions against a PodDisruptionBudget.
        pdb_overrides,
        /// Pods of this node that the kubelet has evicted.
        kubelet_evictions,
        /// Statuses of policies that this agent has written.
        policy_statuses,
    }
    "": {
        /// Times that the wall clock was set, ahead or back.
        clock_jumps,
    }
}

/// One counter.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// One more.
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// One more; true the first time, for what is logged once.
    pub fn add_first(&self) -> bool {
        self.0.fetch_add(1, Ordering::Relaxed) == 0
    }

    /// Value of the counter.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
