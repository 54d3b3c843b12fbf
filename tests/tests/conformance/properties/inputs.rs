//! Pods, settings and observations drawn at random: mostly small numbers, so that ties are common, and sometimes the
//! ends of their range.

use evictd_engine::{
    ContainerUsage, Layout, Observation, Observations, PlannerSettings, PodUsage, Threshold,
    ThresholdValue, Usages,
    model::{
        quantity::{Format, Quantity},
        settings::EvictionConfig,
    },
};
use evictd_tests::{engine::STRATEGIES, prelude::*};
use proptest::prelude::*;

const CLASSES: [QosClass; 3] = [
    QosClass::BestEffort,
    QosClass::Burstable,
    QosClass::Guaranteed,
];

/// Amounts: mostly small, so that ties are common, and sometimes at the ends of their range.
fn amount() -> impl Strategy<Value = u64> {
    prop_oneof![6 => 0..20u64, 1 => any::<u64>(), 1 => Just(u64::MAX)]
}

/// Amounts that may be below zero.
pub fn signed() -> impl Strategy<Value = i64> {
    prop_oneof![6 => -5..40i64, 1 => any::<i64>(), 1 => Just(i64::MAX), 1 => Just(i64::MIN)]
}

prop_compose! {
    /// Pods with usage; some are critical or static, some have no numbers.
    pub fn pods()(
        seeds in prop::collection::vec(
            (amount(), amount(), -1..2i32, prop::sample::select(&CLASSES), 0..12u8, prop::option::weighted(0.9, amount())),
            0..12,
        ),
    ) -> (Vec<Pod>, Usages) {
        let mut usages = Usages::new();
        let pods = seeds.into_iter().enumerate().map(|(number, (memory, storage, priority, qos, special, usage))| {
            let uid = format!("uid-{number}");
            if let Some(usage) = usage {
                let mut numbers = PodUsage { memory_working_set: Some(usage), ..PodUsage::default() };
                numbers.processes = (special != 3).then_some(usage);
                numbers.ephemeral_storage = Some(usage);
                numbers.containers.push(ContainerUsage::default());
                numbers.containers[0].logs.bytes = Some(usage);
                numbers.containers[0].rootfs.inodes = (special != 4).then_some(usage);
                usages.insert(uid.clone(), numbers);
            }
            Pod {
                uid,
                namespace: ["a", "b"][number % 2].to_owned(),
                name: format!("pod-{}", number / 2),
                memory_request: memory,
                storage_request: storage,
                priority: if special == 1 { 2_000_000_000 } else { priority },
                is_static: special == 2,
                qos,
                ..Pod::default()
            }
        });
        (pods.collect(), usages)
    }
}

fn value() -> impl Strategy<Value = ThresholdValue> {
    prop_oneof![
        amount().prop_map(|units| ThresholdValue::Quantity(Quantity::bytes(units))),
        any::<i64>().prop_map(|units| ThresholdValue::Quantity(Quantity::from_units(
            units,
            Format::DecimalSi
        ))),
        (0.0..=1.0f32).prop_map(ThresholdValue::Percentage),
    ]
}

prop_compose! {
    fn threshold()(
        signal in prop::sample::select(&Signal::ALL),
        value in value(),
        grace in prop_oneof![2 => Just(0u64), 1 => 1..100u64, 1 => Just(u64::MAX)],
        min_reclaim in prop::option::of(value()),
    ) -> Threshold {
        Threshold { signal, value, grace_period: Duration::from_nanos(grace), min_reclaim }
    }
}

prop_compose! {
    /// Any settings.
    pub fn settings()(
        thresholds in prop::collection::vec(threshold(), 0..6),
        [dedicated_image_fs, split_image_fs] in any::<[bool; 2]>(),
        strategy in prop::sample::select(&STRATEGIES),
        mode in prop::sample::select(&[Mode::Kubelet, Mode::Evictd]),
        max_pod_grace_period_seconds in any::<i32>(),
        transition in amount(),
    ) -> PlannerSettings {
        PlannerSettings {
            eviction: EvictionConfig {
                thresholds,
                max_pod_grace_period_seconds,
                pressure_transition_period: Duration::from_nanos(transition),
                reserved_memory: 0,
                limits_local_storage: true,
            },
            layout: Layout { dedicated_image_fs, split_image_fs },
            strategy,
            mode,
            fastpath_signals: Vec::new(),
            kubelets_signals: Vec::new(),
            has_api_server: false,
        }
    }
}

fn observation() -> impl Strategy<Value = Option<Observation>> {
    let numbers = (signed(), signed(), prop::option::of(0..5i64));
    let seen = numbers.prop_map(|(available, capacity, time)| Observation {
        available,
        capacity,
        time,
    });
    prop::option::weighted(0.7, seen)
}

/// Any observations.
pub fn observations() -> impl Strategy<Value = Observations> {
    prop::collection::vec(observation(), Signal::ALL.len()).prop_map(|seen| {
        let mut observations = Observations::default();
        for (signal, seen) in Signal::ALL.into_iter().zip(seen) {
            if let Some(seen) = seen {
                observations.set(signal, seen);
            }
        }
        observations
    })
}
