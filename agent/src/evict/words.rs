//! Why a pod was killed, in the kubelet's words, from what the reflex saw.

use crate::{
    engine::{ContainerUsage, Observation, Observations, PodUsage, Signal, Threshold, message},
    reflex::Evicted,
};

/// What the words need beside the report: the hard threshold of `memory.available` and the capacity in bytes.
#[derive(Clone, Debug)]
pub struct Words {
    /// The threshold as it was configured: a percentage is spoken of as the quantity that it stands for.
    pub threshold: Threshold,
    /// Capacity of the scope in bytes.
    pub capacity: u64,
}

impl Words {
    /// The kubelet's `evictionMessage` for this victim. Where only the pod as a whole was measured, a pod of one
    /// container speaks of that container.
    pub fn of(&self, evicted: &Evicted) -> String {
        let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        let mut observations = Observations::default();
        let seen = Observation {
            available: signed(evicted.available),
            capacity: signed(self.capacity),
            time: None,
        };
        observations.set(Signal::MemoryAvailable, seen);
        let pod = &evicted.pod.pod;
        let containers = match &pod.containers[..] {
            [only] => vec![ContainerUsage {
                name: only.name.clone(),
                memory_working_set: Some(evicted.working_set),
                ..ContainerUsage::default()
            }],
            _ => Vec::new(),
        };
        let usage = PodUsage {
            memory_working_set: Some(evicted.working_set),
            containers,
            ..PodUsage::default()
        };
        message::resource_is_short(&self.threshold, pod, Some(&usage), &observations).text
    }
}
