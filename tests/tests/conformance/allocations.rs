//! The fast path allocates nothing.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

use evictd_engine::{
    Among, Candidate, CandidateState, QosClass, RankInputs, Resource, SelectionCriteria,
    model::settings::RankingStrategy, select,
};

thread_local! {
    /// Allocations of this thread: the test harness has threads of its own.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: everything is handed on to the system's allocator; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promises are those that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn counted(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.with(Cell::get);
    work();
    ALLOCATIONS.with(Cell::get) - before
}

#[test]
fn choosing_victims_among_500_pods_allocates_nothing() {
    // The counter counts.
    assert!(counted(|| drop(std::hint::black_box(Box::new(1)))) > 0);

    for strategy in [
        RankingStrategy::Kubelet,
        RankingStrategy::Qos,
        RankingStrategy::Usage,
    ] {
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
