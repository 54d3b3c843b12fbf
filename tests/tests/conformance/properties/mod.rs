//! What must hold whatever the numbers are.

use evictd_engine::{
    Layout, NodeBounds, Observation, Observations, Plan, Planner, Ranking, Snapshot, Usages,
};
use evictd_tests::{
    engine::{self, STRATEGIES},
    prelude::*,
};
use inputs::{observations, pods, settings, signed};
use proptest::prelude::*;

mod inputs;

/// Runs a plan to its end, as if the node-level reclaim had changed nothing.
fn decide(planner: &mut Planner, now: i64, node: Snapshot<'_>) -> Plan {
    let mut plan = planner.plan(now, node);
    let after = planner.after_reclaim(now, &plan, node, node);
    if !plan.node_reclaim.is_empty() {
        plan.evictions.extend(after);
    }
    plan
}

/// A planner with one hard memory threshold.
fn hard_memory(mode: Mode, threshold: u64, reclaim: u64) -> Planner {
    let config = json!({
        "evictionHard": {"memory.available": threshold.to_string()},
        "evictionMinimumReclaim": {"memory.available": reclaim.to_string()},
    });
    engine::planner(mode, config)
}

fn memory(available: u64, time: Option<i64>) -> Observations {
    let mut observations = Observations::default();
    let available = i64::try_from(available).unwrap_or(i64::MAX);
    observations.set(
        Signal::MemoryAvailable,
        Observation {
            available,
            capacity: 1000,
            time,
        },
    );
    observations
}

fn node<'a>(observations: &'a Observations, pods: &'a [Pod], usages: &'a Usages) -> Snapshot<'a> {
    Snapshot {
        observations,
        pods,
        usages,
        bounds: NodeBounds::default(),
    }
}

proptest! {
    #[test]
    fn the_order_is_total_and_does_not_depend_on_the_input(
        (pods, usages) in pods(),
        signal in prop::sample::select(&Signal::ALL),
        strategy in prop::sample::select(&STRATEGIES),
        [dedicated_image_fs, split_image_fs] in any::<[bool; 2]>(),
        seed in any::<u64>(),
    ) {
        let ranking = Ranking { strategy, signal, layout: Layout { dedicated_image_fs, split_image_fs } };
        let mut shuffled = pods.clone();
        let mut state = seed;
        for i in (1..shuffled.len()).rev() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            shuffled.swap(i, (state >> 33) as usize % (i + 1));
        }
        let order = |pods: &[Pod]| -> Vec<String> {
            ranking.order(pods, &usages).iter().map(|ranked| ranked.pod.uid.clone()).collect()
        };
        prop_assert_eq!(order(&pods), order(&shuffled));
        let mut all = order(&pods);
        all.sort_unstable();
        all.dedup();
        prop_assert_eq!(all.len(), pods.len());
    }

    #[test]
    fn no_protected_pod_is_evicted_and_none_twice(
        settings in settings(),
        (pods, usages) in pods(),
        steps in prop::collection::vec((observations(), signed()), 1..6),
    ) {
        // R12; and no numbers make it panic.
        let mode = settings.mode;
        let mut planner = Planner::new(settings);
        let mut evicted = Vec::new();
        for (observations, now) in &steps {
            let plan = decide(&mut planner, *now, node(observations, &pods, &usages));
            prop_assert!(mode == Mode::Evictd || plan.evictions.len() <= 1, "the kubelet evicts one pod a round");
            for eviction in &plan.evictions {
                let pod = pods.iter().find(|pod| pod.uid == eviction.uid);
                prop_assert!(pod.is_some_and(|pod| !pod.is_protected(mode)));
                // One that was only asked to end may go once more, for a hard threshold.
                let before = evicted.iter().filter(|(uid, _)| *uid == eviction.uid);
                let is_requested = before.clone().all(|(_, is_soft)| *is_soft);
                if mode == Mode::Evictd && before.count() > 0 {
                    prop_assert!(is_requested && !eviction.is_soft, "{} twice", eviction.uid);
                }
                evicted.push((eviction.uid.clone(), eviction.is_soft));
            }
        }
    }

    #[test]
    fn minimum_reclaim_is_reached_one_pod_at_a_time_with_no_victim_too_many(
        (mut pods, usages) in pods(),
        available in 0..60u64,
        threshold in 1..60u64,
        reclaim in 0..60u64,
    ) {
        // R11, R43: nothing grows, so that each pod has the kubelet's ten seconds to show what its end brings.
        let mut planner = hard_memory(Mode::Evictd, threshold, reclaim);
        let used = |uid: &str| usages.get(uid).and_then(|usage| usage.memory_working_set).unwrap_or(0);
        let (mut left, mut victims) = (available, 0);
        for plan in 0..=pods.len() as i64 {
            let seconds = 1 + plan * 10;
            let observations = memory(left, None);
            let plan = planner.plan(seconds * 1_000_000_000, node(&observations, &pods, &usages));
            prop_assert!(plan.evictions.len() <= 1);
            let Some(victim) = plan.evictions.first() else { break };
            prop_assert!(available < threshold && left < threshold + reclaim, "nothing was wrong");
            left = left.saturating_add(used(&victim.uid));
            pods.retain(|pod| pod.uid != victim.uid);
            victims += 1;
        }
        let may_go = pods.iter().filter(|pod| !pod.is_protected(Mode::Evictd));
        let rest = may_go.map(|pod| used(&pod.uid)).fold(0, u64::saturating_add);
        let is_enough = left >= threshold + reclaim || (victims == 0 && left >= threshold);
        // Pods that cannot end the shortage together, or give the minimum reclaim once it is over, stay after the first.
        let needed = if left < threshold { threshold } else { threshold + reclaim };
        let is_in_vain = victims > 0 && rest < needed.saturating_sub(left);
        prop_assert!(is_enough || rest == 0 || is_in_vain, "{left} left, {rest} in use");
    }

    #[test]
    fn a_clock_that_goes_back_or_stands_still_evicts_no_pod(
        mut settings in settings(),
        (pods, usages) in pods(),
        observations in observations(),
        start in any::<i64>(),
        back in prop::collection::vec(0..1000i64, 1..6),
    ) {
        // R28: soft thresholds need time to pass.
        for threshold in &mut settings.eviction.thresholds {
            threshold.grace_period = threshold.grace_period.max(Duration::from_nanos(1));
        }
        let mut planner = Planner::new(settings);
        let node = node(&observations, &pods, &usages);
        prop_assert_eq!(decide(&mut planner, start, node).evictions, vec![]);
        for step in back {
            prop_assert_eq!(decide(&mut planner, start.saturating_sub(step), node).evictions, vec![]);
        }
    }

    #[test]
    fn a_measurement_that_is_not_newer_evicts_no_pod(
        (pods, usages) in pods(),
        mode in prop::sample::select(&[Mode::Kubelet, Mode::Evictd]),
        times in prop::collection::vec(0..10i64, 1..6),
    ) {
        // R28: nor does a hard threshold act on what it has seen before.
        let mut planner = hard_memory(mode, 50, 0);
        let first = memory(0, Some(10));
        decide(&mut planner, 0, node(&first, &pods, &usages));
        let mut newest = 10;
        for (now, time) in (1..).zip(times) {
            let older = memory(0, Some(newest.min(time)));
            newest = newest.min(time);
            let plan = decide(&mut planner, now, node(&older, &pods, &usages));
            prop_assert_eq!(plan.evictions, vec![]);
        }
    }
}
