//! The fast path allocates nothing.

use evictd_engine::{
    Among, Candidate, CandidateState, QosClass, RankInputs, Resource, SelectionCriteria, select,
};
use evictd_tests::{
    counting::{self, Counting},
    engine::STRATEGIES,
};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Calls of the allocator by this thread: the test harness has threads of its own.
fn counted(work: impl FnOnce()) -> u64 {
    let before = counting::calls();
    counting::watch(nix::unistd::gettid().as_raw());
    work();
    counting::watch(0);
    counting::calls() - before
}

#[test]
fn choosing_victims_among_500_pods_allocates_nothing() {
    // The counter counts.
    assert!(counted(|| drop(std::hint::black_box(Box::new(1)))) > 0);

    for strategy in STRATEGIES {
        for among in [Among::All, Among::Using] {
            let candidate = |number: u64| Candidate {
                inputs: RankInputs {
                    order: 0,
                    priority: (number % 7) as i32,
                    priority_unknown: number.is_multiple_of(5),
                    qos: QosClass::Burstable,
                    request: number % 1000,
                },
                usage: number * 7919 % 5000,
                is_exact: false,
                state: CandidateState::Eligible,
            };
            let mut candidates: Vec<Candidate> = (0..500).map(candidate).collect();
            let rules = SelectionCriteria {
                strategy,
                resource: Resource::Memory,
                system_over_reserved: false,
            };
            let mut chosen = None;
            let allocations = counted(|| {
                chosen = select(&mut candidates, rules, among, |i| Some(i as u64));
            });
            assert_eq!(allocations, 0, "{strategy:?} {among:?}");
            assert!(chosen.is_some());
        }
    }
}
