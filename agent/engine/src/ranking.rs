//! The full order of eviction, with everything that explains it.

pub mod key;

use std::collections::HashMap;

use super::{Layout, Pod, PodUsage, RankInputs, RankKey, Resource, Signal};
use crate::model::settings::RankingStrategy;

/// Usage of pods by UID.
pub type Usages = HashMap<String, PodUsage>;

/// A pod in the order of eviction.
#[derive(Clone, Copy, Debug)]
pub struct Ranked<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// How much it uses of what the signal watches, in the signal's unit; `None` if there are no numbers for it.
    pub usage: Option<u64>,
    /// Properties of the pod that decide its rank beside its usage.
    pub inputs: RankInputs,
    /// Place in the order of eviction that `inputs` and `usage` give.
    pub key: RankKey,
}

/// Parameters that decide the order besides the pods themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranking {
    /// The order of eviction.
    pub strategy: RankingStrategy,
    /// The signal that is low.
    pub signal: Signal,
    /// Layout of the node's disks.
    pub layout: Layout,
}

impl Ranking {
    /// Sorts pods, first the one to evict first. Those that stand equal go by namespace, name and UID, so that the
    /// order does not depend on that of the input (the kubelet's does).
    pub fn order<'a>(
        &self,
        pods: impl IntoIterator<Item = &'a Pod>,
        usages: &Usages,
    ) -> Vec<Ranked<'a>> {
        let mut ranked: Vec<Ranked<'a>> = pods
            .into_iter()
            .map(|pod| self.place(pod, usages.get(&pod.uid)))
            .collect();
        ranked.sort_by(|a, b| {
            let name = |r: &Ranked<'a>| (&r.pod.namespace, &r.pod.name, &r.pod.uid);
            a.key.cmp(&b.key).then_with(|| name(a).cmp(&name(b)))
        });
        ranked
    }

    fn place<'a>(&self, pod: &'a Pod, usage: Option<&PodUsage>) -> Ranked<'a> {
        let resource = self.signal.resource();
        let request = match resource {
            Resource::Memory => pod.memory_request,
            Resource::EphemeralStorage | Resource::Inodes => pod.storage_request,
            Resource::Pids => 0,
        };
        let inputs = RankInputs {
            priority: pod.priority,
            priority_unknown: pod.priority_unknown,
            qos: pod.qos,
            request,
            order: pod.order,
        };
        let usage = usage.map(|usage| self.layout.usage(self.signal, pod, usage));
        let key = RankKey::new(self.strategy, resource, inputs, usage);
        Ranked {
            pod,
            usage,
            inputs,
            key,
        }
    }
}
