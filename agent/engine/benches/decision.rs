//! What one decision costs, in time and in allocations: the fast path of the fast path, the full order, and a whole
//! plan of the eviction manager.

use std::time::Duration;

use divan::{AllocProfiler, Bencher, black_box};
use evictd_engine::{
    Among, Candidate, CandidateState, Layout, NodeBounds, Observation, Observations, Planner,
    PlannerSettings, Pod, PodUsage, QosClass, RankInputs, Ranking, Resource, SelectionCriteria,
    Signal, Snapshot, Threshold, ThresholdValue, Usages,
    model::quantity::Quantity,
    model::settings::{EvictionConfig, Mode, RankingStrategy},
    select,
};

#[global_allocator]
static ALLOCATOR: AllocProfiler = AllocProfiler::system();

/// A small node, a full one, a very full one, and one that does not exist.
const PODS: [usize; 4] = [10, 110, 500, 5_000];
const MI: u64 = 1 << 20;

fn main() {
    divan::main();
}

/// Numbers that look drawn but are always the same (an LCG with Knuth's constants).
fn numbers() -> impl FnMut(u64) -> u64 {
    let mut state: u64 = 42;
    move |below| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    }
}

/// Candidates with upper bounds, and their exact usages.
fn candidates(count: usize) -> (Vec<Candidate>, Vec<u64>) {
    let mut number = numbers();
    (0..count)
        .map(|_| {
            let exact = number(2048) * MI;
            let priority = [0, 0, 0, 1000, -10][number(5) as usize];
            let inputs = RankInputs {
                order: 0,
                priority,
                priority_unknown: false,
                qos: QosClass::Burstable,
                request: number(1024) * MI,
            };
            let usage = exact + number(64) * MI;
            (
                Candidate {
                    inputs,
                    usage,
                    is_exact: false,
                    state: CandidateState::Eligible,
                },
                exact,
            )
        })
        .unzip()
}

/// The fast path, from upper bounds to the victim; reading a pod's exact usage costs nothing here.
#[divan::bench(args = PODS)]
fn fast_path_first_victim(bencher: Bencher<'_, '_>, count: usize) {
    let (mut table, exact) = candidates(count);
    let fresh = table.clone();
    let rules = SelectionCriteria {
        strategy: RankingStrategy::Kubelet,
        resource: Resource::Memory,
        system_over_reserved: false,
    };
    bencher.bench_local(|| {
        table.copy_from_slice(&fresh);
        let exact = |position: usize| exact.get(position).copied();
        select(black_box(&mut table), rules, Among::Using, exact)
    });
}

/// Pods and usages for the slow path.
fn node(count: usize) -> (Vec<Pod>, Usages) {
    let (candidates, exact) = candidates(count);
    let pod = |(number, candidate): (usize, &Candidate)| Pod {
        uid: format!("uid-{number}"),
        namespace: "default".to_owned(),
        name: format!("pod-{number}"),
        priority: candidate.inputs.priority,
        qos: candidate.inputs.qos,
        memory_request: candidate.inputs.request,
        ..Pod::default()
    };
    let usage = |usage: &u64| PodUsage {
        memory_working_set: Some(*usage),
        ..PodUsage::default()
    };
    let pods: Vec<Pod> = candidates.iter().enumerate().map(pod).collect();
    let usages = pods
        .iter()
        .zip(&exact)
        .map(|(pod, exact)| (pod.uid.clone(), usage(exact)))
        .collect();
    (pods, usages)
}

#[divan::bench(args = PODS)]
fn full_order(bencher: Bencher<'_, '_>, count: usize) {
    let (pods, usages) = node(count);
    let ranking = Ranking {
        strategy: RankingStrategy::Kubelet,
        signal: Signal::MemoryAvailable,
        layout: Layout::default(),
    };
    bencher.bench_local(|| ranking.order(black_box(&pods), &usages).len());
}

#[divan::bench(args = PODS)]
fn plan_and_rank(bencher: Bencher<'_, '_>, count: usize) {
    let (pods, usages) = node(count);
    let eviction = EvictionConfig {
        thresholds: vec![Threshold {
            signal: Signal::MemoryAvailable,
            value: ThresholdValue::Quantity(Quantity::bytes(1024 * MI)),
            grace_period: Duration::ZERO,
            min_reclaim: None,
        }],
        max_pod_grace_period_seconds: 0,
        pressure_transition_period: Duration::from_secs(60),
        reserved_memory: 0,
        limits_local_storage: true,
    };
    let mut observations = Observations::default();
    let seen = Observation {
        available: 100 << 20,
        capacity: 64 << 30,
        time: None,
    };
    observations.set(Signal::MemoryAvailable, seen);
    let settings = PlannerSettings {
        eviction,
        layout: Layout::default(),
        strategy: RankingStrategy::Kubelet,
        mode: Mode::Evictd,
        fastpath_signals: Vec::new(),
        kubelets_signals: Vec::new(),
        has_api_server: false,
    };
    bencher
        .with_inputs(|| Planner::new(settings.clone()))
        .bench_local_values(|mut manager| {
            let node = Snapshot {
                observations: &observations,
                pods: black_box(&pods),
                usages: &usages,
                bounds: NodeBounds::default(),
            };
            manager.plan(0, node).evictions.len()
        });
}
