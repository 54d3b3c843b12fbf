//! The thresholds of a configuration on this machine: their amounts, which of them are met now, and whether the
//! reservations cover them.

use evictd_config::{Config, Origins};
use evictd_engine::{
    MemorySizing, Observations, Signal, Threshold, ThresholdValue, hard_threshold,
    model::settings::{EvictionConfig, Mode},
    units::signed,
};
use evictd_sys::clock::monotonic_ns;

use super::{Finding, State};
use crate::daemon::{
    above_capacity, memory_thresholds, no_hard_threshold,
    node_view::{NodeSample, NodeView, is_in_force},
};

const MET_NOW: &str = "thresholds now";

/// The thresholds on this machine, which of them would be met as they come into force, and floors that are replaced.
pub(super) fn findings(config: &Config) -> Vec<Finding> {
    let mut view = match NodeView::open(config) {
        Ok(view) => view,
        Err(error) => return vec![Finding::new(MET_NOW, State::Missing, error.to_string())],
    };
    let mut thresholds = view.layout().apply(&config.eviction.thresholds);
    let now = signed(monotonic_ns());
    let sample = view.sample(now);
    let observations = &sample.observations;
    thresholds.retain(|threshold| is_in_force(threshold, observations));
    let hard = hard_of(&config.eviction.thresholds, &config.origins, observations);
    let findings = [hard, met_now(&thresholds, config.mode, &sample)].into_iter();
    let floors = Signal::MEMORY
        .into_iter()
        .filter_map(|signal| kernel_floor(config, observations, signal));
    findings
        .chain(floors)
        .chain(limit_of_pods(config, observations))
        .collect()
}

/// What is configured for the pods' cgroup, if its limit cannot keep it.
fn limit_of_pods(config: &Config, observations: &Observations) -> Option<Finding> {
    let signal = Signal::AllocatableMemoryAvailable;
    let capacity = u64::try_from(observations.get(signal)?.capacity).ok()?;
    let configured = memory_thresholds(config, signal, capacity);
    let (amount, value) = configured.above(capacity)?;
    let in_force = configured.within(capacity);
    let detail = format!(
        "{}, which is the limit of the pods' cgroup: {} bytes are in force there, and {} until a shortage is over",
        above_capacity(amount, signal, value, capacity),
        in_force.threshold,
        in_force.resolved
    );
    Some(Finding::new("limit of the pods", State::Degraded, detail))
}

/// Each hard threshold, and where it comes from.
fn hard_of(thresholds: &[Threshold], origins: &Origins, observations: &Observations) -> Finding {
    let described = thresholds.iter().filter(|t| t.is_hard()).map(|threshold| {
        let (signal, origin) = (threshold.signal, origins.of(threshold));
        let ThresholdValue::Raised(raised) = &threshold.value else {
            return format!("{threshold} from {origin}");
        };
        let (base, step) = (&raised.base, &raised.step);
        // What is not measured here has no capacity.
        let Some(capacity) = observations.get(signal).map(|observed| observed.capacity) else {
            return format!("{signal}<{base}+{step}, {base} from {origin}");
        };
        let result = threshold.value.quantity(capacity);
        let cut = match raised.is_cut(capacity) {
            true => format!(
                ", as far as {} of the capacity",
                ThresholdValue::Percentage(raised.most)
            ),
            false => String::new(),
        };
        format!(
            "{signal}<{result}, {base} from {origin} and {step} from evictionHardAboveKubelet{cut}"
        )
    });
    let mut described: Vec<String> = described.collect();
    if described.is_empty() {
        described.push("none".to_owned());
    }
    let reason = no_hard_threshold(thresholds);
    described.extend(reason.map(str::to_owned));
    let state = reason.map_or(State::Ok, |_| State::Degraded);
    Finding::new("hard thresholds", state, described.join("; "))
}

/// A scope at whose floor the kernel would kill before the agent decides.
fn kernel_floor(config: &Config, observations: &Observations, signal: Signal) -> Option<Finding> {
    let capacity = observations.get(signal)?.capacity;
    let hard = hard_threshold(&config.eviction.thresholds, signal, capacity)
        .filter(|hard| is_in_force(hard, observations))?
        .amount(capacity);
    let floor = config.kernel_floor.floor().replaced(hard, capacity)?;
    let detail = format!(
        "kernelFloor.memory.available is {floor} bytes here, and the hard threshold of {signal} {hard}: half of that \
        is the floor"
    );
    Some(Finding::new("kernel floor", State::Degraded, detail))
}

fn met_now(thresholds: &[Threshold], mode: Mode, sample: &NodeSample) -> Finding {
    const TOPIC: &str = MET_NOW;
    let met = thresholds.iter().filter_map(|threshold| {
        let observations = sample.observations_for(threshold);
        let observed = observations.get(threshold.signal)?;
        threshold.is_met(observations, false).then(|| {
            let available = observed.available_quantity(threshold.signal);
            format!("{threshold} with {available} available")
        })
    });
    let met: Vec<String> = met.collect();
    let waiting = match mode {
        Mode::Evictd => "memory and process ids",
        Mode::Kubelet => "memory",
    };
    match met[..] {
        [] => Finding::new(TOPIC, State::Ok, "none is met"),
        _ => Finding::new(
            TOPIC,
            State::Degraded,
            format!(
                "met already: {}: pods go for it as soon as this configuration is in force, for {waiting} \
                after ten seconds, under a soft threshold when its grace period is over, one in ten seconds",
                met.join(", ")
            ),
        ),
    }
}

/// The reservations must cover the largest threshold.
pub(super) fn sizing(capacity: u64, eviction: &EvictionConfig) -> Finding {
    const TOPIC: &str = "memory sizing";
    let sizing = MemorySizing::new(capacity, eviction.reserved_memory, &eviction.thresholds);
    let gib = |bytes: u64| format!("{:.2} GiB", bytes as f64 / f64::from(1 << 30));
    let allocatable = format!(
        "{} of {} are allocatable",
        gib(sizing.allocatable()),
        gib(capacity)
    );
    match sizing.shortfall() {
        0 => Finding::new(TOPIC, State::Ok, allocatable),
        short => Finding::new(
            TOPIC,
            State::Degraded,
            format!(
                "{allocatable}; the reservations are {} short of the largest threshold: pods that keep to their \
                 requests can bring the node below it",
                gib(short)
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use evictd_engine::Observation;

    use super::*;

    #[test]
    fn memory_without_a_hard_threshold_is_degraded() {
        let found = |hard: serde_json::Value| {
            let own = serde_json::json!({ "evictionHard": hard });
            let config = Config::from_values(own, None).unwrap();
            let thresholds = &config.eviction.thresholds;
            let hard = hard_of(thresholds, &config.origins, &Observations::default());
            (hard.state, hard.detail)
        };
        let (state, detail) = found(serde_json::json!({}));
        assert_eq!(state, State::Degraded);
        assert!(detail.starts_with("none; evictionHard and"), "{detail}");
        let (state, detail) = found(serde_json::json!({"nodefs.available": "10%"}));
        assert_eq!(state, State::Degraded);
        assert!(detail.starts_with("nodefs.available<10% from "), "{detail}");
        assert!(
            detail.contains("; evictionHard[memory.available]"),
            "{detail}"
        );
        let (state, _) = found(serde_json::json!({"memory.available": "10%"}));
        assert_eq!(state, State::Ok);
    }

    #[test]
    fn a_floor_of_the_pods_cgroup_that_is_replaced_is_told_of_too() {
        let capacity = 1 << 30;
        let mut observations = Observations::default();
        let scopes = [
            (Signal::MemoryAvailable, "100Mi"),
            (Signal::AllocatableMemoryAvailable, "40Mi"),
        ];
        for (signal, _) in scopes {
            let observed = Observation {
                available: capacity,
                capacity,
                time: None,
            };
            observations.set(signal, observed);
        }
        let hard: serde_json::Map<_, _> = scopes
            .iter()
            .map(|(signal, hard)| (signal.to_string(), (*hard).into()))
            .collect();
        let kubelet = serde_json::json!({ "evictionHard": hard });
        let own = serde_json::json!({ "kernelFloor": {"memory.available": "110Mi"} });
        let config = Config::from_values(own, Some(kubelet)).unwrap();
        for (signal, _) in scopes {
            let detail = kernel_floor(&config, &observations, signal)
                .expect("replaced")
                .detail;
            assert!(detail.contains(signal.as_str()), "{detail}");
        }
    }
}
