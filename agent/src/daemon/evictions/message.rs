//! The eviction message for a victim of the fast path, in the kubelet's words.

use evictd_engine::{
    ContainerUsage, Message, Observation, Observations, PodUsage, Threshold, ThresholdValue,
    hard_threshold, message, model::quantity::Quantity, units::signed,
};
use evictd_fastpath::EvictionReport;

/// Builds messages from events and thresholds.
#[derive(Clone, Debug)]
pub struct MessageBuilder {
    /// The configured thresholds; the message has a percentage as the quantity that it stands for.
    pub thresholds: Vec<Threshold>,
}

impl MessageBuilder {
    /// The kubelet's `evictionMessage` for this victim. Only the pod as a whole was measured: where one
    /// container runs in it, that one is named.
    pub fn of(&self, evicted: &EvictionReport) -> Message {
        let mut observations = Observations::default();
        let seen = Observation {
            available: signed(evicted.available),
            capacity: signed(evicted.capacity),
            time: None,
        };
        observations.set(evicted.signal, seen);
        let pod = &evicted.pod.pod;
        let only = pod.only_container().map(|only| ContainerUsage {
            name: only.name.clone(),
            memory_working_set: Some(evicted.working_set),
            ..ContainerUsage::default()
        });
        let usage = PodUsage {
            memory_working_set: Some(evicted.working_set),
            containers: only.into_iter().collect(),
            ..PodUsage::default()
        };
        // The fast path watches only what has a threshold.
        let hard = hard_threshold(&self.thresholds, evicted.signal, seen.capacity);
        let Some(configured) = hard else {
            return Message::default();
        };
        // One that could never be kept is cut to the scope's capacity.
        let in_force = Threshold {
            value: ThresholdValue::Quantity(Quantity::bytes(evicted.threshold)),
            ..configured.clone()
        };
        let is_cut = evicted.threshold < configured.amount(seen.capacity);
        let threshold = if is_cut { &in_force } else { configured };
        message::resource_is_short(threshold, pod, Some(&usage), &observations)
    }
}
