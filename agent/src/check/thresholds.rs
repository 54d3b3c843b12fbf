//! The thresholds of a configuration on this machine: their amounts, which of them are met now, and whether the
//! reservations cover them.

use evictd_config::{Config, Origin};
use evictd_engine::{
    MemorySizing, Observations, Signal, Threshold, ThresholdValue, hard_threshold,
    model::settings::{EvictionConfig, Mode},
    units::signed,
};
use evictd_sys::clock::monotonic_ns;

use super::{Finding, State};
use crate::daemon::{
    FOLLOWS, above_capacity, memory_thresholds, no_hard_threshold,
    node_view::{NodeSample, NodeView, is_in_force},
};

const MET_NOW: &str = "thresholds now";
/// Fewer bytes than this are no threshold that anyone means.
const SMALLEST_MEANT: i64 = 1 << 20;

/// The thresholds on this machine, which of them would be met as they come into force, and floors that are replaced.
pub(super) fn findings(config: &Config) -> Vec<Finding> {
    let mut view = match NodeView::open(config) {
        Ok(view) => view,
        Err(error) => return vec![Finding::new(MET_NOW, State::Missing, error.to_string())],
    };
    let layout = view.layout();
    let mut thresholds = layout.apply(&config.eviction.thresholds);
    let now = signed(monotonic_ns());
    let sample = view.sample(now);
    let observations = &sample.observations;
    thresholds.retain(|threshold| is_in_force(threshold, observations));
    let ignored: Vec<_> = layout.ignored(&config.eviction.thresholds).collect();
    let hard = hard(config, &ignored, observations);
    let findings = [hard, met_now(&thresholds, config, &sample)].into_iter();
    let floors = Signal::MEMORY
        .into_iter()
        .filter_map(|signal| kernel_floor(config, observations, signal));
    findings
        .chain(floors)
        .chain(limit_of_pods(config, observations))
        .chain(ignored_finding(&ignored))
        .chain(above_soft(&thresholds, observations))
        .collect()
}

/// The thresholds that mean nothing on the layout of these disks.
fn ignored_finding(ignored: &[&Threshold]) -> Option<Finding> {
    let names: Vec<_> = ignored.iter().map(ToString::to_string).collect();
    (!names.is_empty()).then(|| {
        let detail = format!("{}: {FOLLOWS}", names.join(", "));
        Finding::new("ignored thresholds", State::Degraded, detail)
    })
}

/// Amounts that are hardly meant: a suffix that is missing or wrong, and a reclaim of more than there is.
pub(super) fn amounts(config: &Config) -> Option<Finding> {
    let thresholds = &config.eviction.thresholds;
    // That of the pods' cgroup may be a copy of the node's.
    let is_counterpart = |t: &Threshold| {
        let is_same = |node: &Threshold| {
            node.signal == Signal::MemoryAvailable
                && (node.value.base(), &node.min_reclaim) == (t.value.base(), &t.min_reclaim)
        };
        t.signal == Signal::AllocatableMemoryAvailable && thresholds.iter().any(is_same)
    };
    let mut odd = Vec::new();
    for threshold in thresholds.iter().filter(|t| !is_counterpart(t)) {
        let (signal, is_hard) = (threshold.signal, threshold.is_hard());
        let field = match config.origins.of(threshold) {
            _ if !is_hard => "evictionSoft",
            Origin::Fallback => "evictionHardFallback",
            Origin::Defaults | Origin::Kubelet | Origin::Own => "evictionHard",
        };
        let value = threshold.value.base();
        if let ThresholdValue::Quantity(quantity) = value
            && signal.resource().is_of_bytes()
            && quantity.value() < SMALLEST_MEANT
        {
            let bytes = match quantity.value() {
                1 => "1 byte".to_owned(),
                n => format!("{n} bytes"),
            };
            odd.push(format!("{field}[{signal}]: {value} is {bytes}"));
        }
        if let Some(reclaim @ ThresholdValue::Percentage(share)) = &threshold.min_reclaim
            && *share > 1.0
        {
            odd.push(format!(
                "evictionMinimumReclaim[{signal}]: {reclaim} is above the capacity: a threshold that was met stays met"
            ));
        }
    }
    odd.sort();
    odd.dedup();
    (!odd.is_empty()).then(|| Finding::new("threshold amounts", State::Degraded, odd.join("; ")))
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
fn hard(config: &Config, ignored: &[&Threshold], observations: &Observations) -> Finding {
    let thresholds = &config.eviction.thresholds;
    let counted = (thresholds.iter()).filter(|t| t.is_hard() && !ignored.contains(t));
    let described = counted.map(|threshold| {
        let (signal, origin) = (threshold.signal, config.origins.of(threshold));
        let ThresholdValue::Raised(raised) = &threshold.value else {
            return format!("{threshold} from {origin}");
        };
        let (base, step) = (&raised.base, &raised.step);
        // What is not measured here has no capacity.
        let Some(capacity) = observations.get(signal).map(|observed| observed.capacity) else {
            return format!("{signal}<{base}+{step}, {base} from {origin}");
        };
        let result = threshold.value.quantity(capacity);
        let most = ThresholdValue::Percentage(raised.most);
        let cut = match (raised.is_cut_by_soft(capacity), raised.is_cut(capacity)) {
            (true, _) => ", as far as halfway to the soft threshold".to_owned(),
            (false, true) => format!(", as far as {most} of the capacity"),
            (false, false) => String::new(),
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

/// Soft thresholds that can never act: the hard one of the same signal is met first, and gives no grace period.
fn above_soft(thresholds: &[Threshold], observations: &Observations) -> Option<Finding> {
    let details = thresholds.iter().filter(|t| !t.is_hard()).filter_map(|soft| {
        let signal = soft.signal;
        let capacity = observations.get(signal)?.capacity;
        let hard = hard_threshold(thresholds, signal, capacity)?;
        let (of_soft, of_hard) = (soft.value.quantity(capacity), hard.value.quantity(capacity));
        (soft.amount(capacity) <= hard.amount(capacity)).then(|| {
            format!("{signal}: the soft threshold of {of_soft} is not above the hard one of {of_hard}, which gives no grace period")
        })
    });
    let details: Vec<String> = details.collect();
    (!details.is_empty())
        .then(|| Finding::new("soft thresholds", State::Degraded, details.join("; ")))
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

fn met_now(thresholds: &[Threshold], config: &Config, sample: &NodeSample) -> Finding {
    let met = thresholds.iter().filter_map(|threshold| {
        let observations = sample.observations_for(threshold);
        let observed = observations.get(threshold.signal)?;
        threshold.is_met(observations, false).then(|| {
            let available = threshold.signal.quantity(observed.available);
            format!("{threshold} with {available} available")
        })
    });
    let met: Vec<String> = met.collect();
    met_finding(&met, config.mode, config.shadow)
}

/// What follows from thresholds that are met.
fn met_finding(met: &[String], mode: Mode, shadow: bool) -> Finding {
    let waiting = match mode {
        Mode::Evictd => "memory and process ids",
        Mode::Kubelet => "memory",
    };
    let go = match shadow {
        true => "pods would go (shadow mode)",
        false => "pods go",
    };
    match met {
        [] => Finding::new(MET_NOW, State::Ok, "none is met"),
        _ => Finding::new(
            MET_NOW,
            State::Degraded,
            format!(
                "met already: {}: {go} for it as soon as this configuration is in force, for {waiting} \
                after ten seconds or more, under a soft threshold when its grace period is over, one in ten seconds at most",
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

    /// What is ignored where all files are on one disk.
    fn ignored_on_one_disk(config: &Config) -> Vec<&Threshold> {
        let layout = evictd_engine::Layout::default();
        layout.ignored(&config.eviction.thresholds).collect()
    }

    // R16
    #[test]
    fn reservations_below_the_largest_threshold_are_degraded() {
        let own = serde_json::json!({ "evictionHard": {"memory.available": "1Gi"} });
        let mut eviction = Config::from_values(own, None).unwrap().eviction;
        eviction.reserved_memory = 2 << 30;
        let found = sizing(8 << 30, &eviction);
        let allocatable = "5.00 GiB of 8.00 GiB are allocatable";
        assert_eq!((found.state, &*found.detail), (State::Ok, allocatable));
        eviction.reserved_memory = 0;
        let found = sizing(8 << 30, &eviction);
        assert_eq!(found.state, State::Degraded);
        assert!(found.detail.starts_with("7.00 GiB of 8.00 GiB"));
        assert!(found.detail.contains("1.00 GiB short"), "{}", found.detail);
        // The kubelet keeps back its own threshold, without the step.
        let step = serde_json::json!({ "evictionHardAboveKubelet": {"memory.available": "512Mi"} });
        let kubelet = serde_json::json!({ "evictionHard": {"memory.available": "256Mi"} });
        let mut eviction = Config::from_values(step, Some(kubelet)).unwrap().eviction;
        eviction.reserved_memory = 1 << 30;
        let found = sizing(8 << 30, &eviction);
        assert_eq!(found.detail, "6.75 GiB of 8.00 GiB are allocatable");
    }

    #[test]
    fn memory_without_a_hard_threshold_is_degraded() {
        let found = |set: serde_json::Value| {
            let own = serde_json::json!({ "evictionHard": set });
            let config = Config::from_values(own, None).unwrap();
            let hard = hard(
                &config,
                &ignored_on_one_disk(&config),
                &Observations::default(),
            );
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
        // One that is ignored is set all the same, and guards nothing.
        let (_, detail) = found(serde_json::json!({"containerfs.available": "10%"}));
        assert!(
            detail.starts_with("none; evictionHard[memory.available]"),
            "{detail}"
        );
        let (state, _) = found(serde_json::json!({"memory.available": "10%"}));
        assert_eq!(state, State::Ok);
    }

    #[test]
    fn amounts_that_are_hardly_meant_are_told() {
        let found = |own: serde_json::Value| {
            let config = Config::from_values(own, None).unwrap();
            amounts(&config).map(|finding| finding.detail)
        };
        let fallback = serde_json::json!({"evictionHardFallback": {"memory.available": "100m"}});
        let expected = "evictionHardFallback[memory.available]: 100m is 1 byte";
        assert_eq!(found(fallback).as_deref(), Some(expected));
        for (hard, expected) in [
            (
                "100m",
                Some("evictionHard[memory.available]: 100m is 1 byte"),
            ),
            (
                "100",
                Some("evictionHard[memory.available]: 100 is 100 bytes"),
            ),
            ("1Mi", None),
            ("1%", None),
        ] {
            let own = serde_json::json!({"evictionHard": {"memory.available": hard}});
            assert_eq!(found(own).as_deref(), expected, "{hard}");
        }
        let counts = serde_json::json!({"pid.available": "100", "nodefs.inodesFree": "1000"});
        assert_eq!(found(serde_json::json!({ "evictionHard": counts })), None);
        let soft = found(serde_json::json!({
            "evictionSoft": {"nodefs.available": "5k"},
            "evictionSoftGracePeriod": {"nodefs.available": "1m"},
            "evictionMinimumReclaim": {"nodefs.available": "0Mi"},
        }));
        let expected = "evictionSoft[nodefs.available]: 5k is 5000 bytes";
        assert_eq!(soft.as_deref(), Some(expected));
        let reclaim = |share: &str| {
            let reclaim = serde_json::json!({ "nodefs.available": share });
            found(serde_json::json!({ "evictionMinimumReclaim": reclaim }))
        };
        assert_eq!(reclaim("100%"), None);
        let detail = reclaim("150%").expect("more than there is");
        let expected = "evictionMinimumReclaim[nodefs.available]: 150% is above the capacity";
        assert!(detail.starts_with(expected), "{detail}");
    }

    #[test]
    fn in_shadow_mode_pods_would_go() {
        let said = |shadow| met_finding(&["x".to_owned()], Mode::Evictd, shadow).detail;
        assert!(said(false).contains("x: pods go for it"));
        assert!(said(true).contains("x: pods would go (shadow mode) for it"));
        assert_eq!(met_finding(&[], Mode::Evictd, true).state, State::Ok);
    }

    #[test]
    fn ignored_thresholds_are_degraded() {
        let own = serde_json::json!({"evictionHard": {"containerfs.available": "7%"}});
        let config = Config::from_values(own, None).unwrap();
        let finding = ignored_finding(&ignored_on_one_disk(&config)).expect("one is ignored");
        assert_eq!(finding.state, State::Degraded);
        assert_eq!(
            finding.detail,
            format!("containerfs.available<7%: {FOLLOWS}")
        );
        assert_eq!(ignored_finding(&[]), None);
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
