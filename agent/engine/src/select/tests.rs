use proptest::prelude::*;

use super::*;

const RULES: SelectionCriteria = SelectionCriteria {
    strategy: RankingStrategy::Kubelet,
    resource: Resource::Memory,
    system_over_reserved: false,
};

fn candidate(priority: i32, request: u64, usage: u64) -> Candidate {
    let inputs = RankInputs {
        order: 0,
        priority,
        priority_unknown: false,
        qos: QosClass::Burstable,
        request,
    };
    Candidate {
        inputs,
        usage,
        is_exact: true,
        state: CandidateState::Eligible,
    }
}

fn first(candidates: &mut [Candidate], rules: SelectionCriteria) -> Option<usize> {
    select(candidates, rules, Among::Using, |_| None)
}

/// All that are chosen, one after the other.
fn order(candidates: &mut [Candidate], rules: SelectionCriteria) -> Vec<usize> {
    std::iter::from_fn(|| first(candidates, rules)).collect()
}

#[test]
fn above_request_goes_first_then_priority_then_excess() {
    // R9
    let pods = [
        candidate(0, 100, 90),
        candidate(10, 0, 500),
        candidate(5, 100, 150),
        candidate(5, 100, 300),
    ];
    assert_eq!(order(&mut pods.clone(), RULES), [3, 2, 1, 0]);
}

#[test]
fn a_pod_of_unknown_priority_goes_after_all_others() {
    let mut pods = [
        candidate(0, 0, 500),
        candidate(1000, 400, 300),
        candidate(0, 0, 100),
    ];
    pods[0].inputs.priority_unknown = true;
    pods[2].inputs.qos = QosClass::Guaranteed;
    for strategy in [
        RankingStrategy::Kubelet,
        RankingStrategy::Qos,
        RankingStrategy::Usage,
    ] {
        let rules = SelectionCriteria { strategy, ..RULES };
        let mut pods = pods;
        let order = order(&mut pods, rules);
        assert_eq!(order.len(), 3, "{strategy:?}");
        assert_eq!(order.last(), Some(&0), "{strategy:?}: {order:?}");
    }
}

#[test]
fn only_pods_that_may_be_first_are_read() {
    // R40: the bound of the first is far too high, those of the others are not.
    let mut pods = [
        candidate(0, 0, 1_000),
        candidate(0, 0, 500),
        candidate(0, 0, 400),
    ];
    for pod in &mut pods {
        pod.is_exact = false;
    }
    let mut read = Vec::new();
    let exact = [300, 450, 390];
    let chosen = select(&mut pods, RULES, Among::All, |i| {
        read.push(i);
        Some(exact[i])
    });
    assert_eq!((chosen, read), (Some(1), vec![0, 1]));
}

#[test]
fn a_pod_that_is_gone_is_passed_over() {
    let mut pods = [candidate(0, 0, 1_000), candidate(0, 0, 500)];
    pods[0].is_exact = false;
    assert_eq!(first(&mut pods, RULES), Some(1));
    assert_eq!(pods[0].state, CandidateState::Unavailable);
}

#[test]
fn guaranteed_pods_are_spared_while_others_are_left() {
    // R20
    let mut guaranteed = candidate(0, 100, 900);
    guaranteed.inputs.qos = QosClass::Guaranteed;
    let rules = SelectionCriteria {
        strategy: RankingStrategy::Qos,
        ..RULES
    };
    let pods = [guaranteed, candidate(0, 0, 10)];
    assert_eq!(first(&mut pods.clone(), rules), Some(1));
    assert_eq!(first(&mut [guaranteed], rules), Some(0));
    let over = SelectionCriteria {
        system_over_reserved: true,
        ..rules
    };
    assert_eq!(first(&mut pods[..1].to_vec(), over), Some(0));
    assert_eq!(order(&mut pods.clone(), over), [1, 0]);
}

fn any_candidate() -> impl Strategy<Value = (Candidate, u64)> {
    let state = prop_oneof![
        4 => Just(CandidateState::Eligible),
        1 => Just(CandidateState::Denied),
        1 => Just(CandidateState::Terminating),
    ];
    let qos = prop::sample::select(
        &[
            QosClass::BestEffort,
            QosClass::Burstable,
            QosClass::Guaranteed,
        ][..],
    );
    // Small ranges, so that ties are common.
    (
        -2..3i32,
        qos,
        0..4u64,
        0..8u64,
        0..4u64,
        any::<[bool; 2]>(),
        state,
    )
        .prop_map(|(priority, qos, request, exact, slack, bools, state)| {
            let [is_exact, priority_unknown] = bools;
            let usage = if is_exact { exact } else { exact + slack };
            (
                Candidate {
                    inputs: RankInputs {
                        order: 0,
                        priority,
                        priority_unknown,
                        qos,
                        request,
                    },
                    usage,
                    is_exact,
                    state,
                },
                exact,
            )
        })
}

proptest! {
    #[test]
    fn the_fast_path_agrees_with_sorting_exact_values(
        pods in prop::collection::vec(any_candidate(), 0..120),
        strategy in prop::sample::select(&[RankingStrategy::Kubelet, RankingStrategy::Qos, RankingStrategy::Usage][..]),
        resource in prop::sample::select(
            &[Resource::Memory, Resource::EphemeralStorage, Resource::Inodes, Resource::Pids][..]
        ),
        system_over_reserved in any::<bool>(),
        among in prop::sample::select(&[Among::All, Among::Using][..]),
    ) {
        let rules = SelectionCriteria { strategy, resource, system_over_reserved };
        let (mut candidates, exact): (Vec<Candidate>, Vec<u64>) = pods.into_iter().unzip();

        let mut order: Vec<usize> = (0..exact.len()).collect();
        order.sort_by_key(|i| RankKey::new(strategy, resource, candidates[*i].inputs, Some(exact[*i])));
        order.retain(|i| candidates[*i].state == CandidateState::Eligible);
        if among == Among::Using {
            order.retain(|i| exact[*i] > 0);
        }
        // Pods of unknown priority go after Guaranteed ones that are known, so that they wait with them.
        let waits = |i: &usize| {
            let inputs = candidates[*i].inputs;
            inputs.qos == QosClass::Guaranteed || inputs.priority_unknown
        };
        if strategy == RankingStrategy::Qos && !system_over_reserved && !order.iter().all(waits) {
            order.retain(|i| !waits(i));
        }
        let before = candidates.clone();
        let chosen = select(&mut candidates, rules, among, |i| Some(exact[i]));
        prop_assert_eq!(chosen, order.first().copied());
        for (position, candidate) in candidates.iter().enumerate() {
            let expected = if chosen == Some(position) { CandidateState::Terminating } else { before[position].state };
            prop_assert_eq!(candidate.state, expected);
        }
    }

    #[test]
    fn no_numbers_make_it_panic(
        numbers in prop::collection::vec((any::<i32>(), any::<u64>(), any::<u64>()), 0..20),
    ) {
        let mut pods: Vec<Candidate> = numbers.into_iter().map(|(p, r, u)| candidate(p, r, u)).collect();
        order(&mut pods, RULES);
    }
}

/// A pod ahead in the order has no part in the growth: the first of those that grow is chosen.
#[test]
fn a_pod_that_does_not_grow_is_passed_over() {
    let mut candidates = [
        candidate(-1, 0, 900),
        candidate(0, 0, 100),
        candidate(1, 0, 50),
    ];
    candidates[2].state = CandidateState::Denied;
    let grew = [1, 6400, 1 << 40];
    assert_eq!(eligible_growth(&candidates, &grew), 6401);
    pass_over_not_growing(&mut candidates, &grew, &[], 6400);
    let states = candidates.map(|candidate| candidate.state);
    let expected = [
        CandidateState::PassedOver,
        CandidateState::Eligible,
        CandidateState::Denied,
    ];
    assert_eq!(states, expected);
}

// R43
/// A pod that writes logs has charged in advance, which looks like a growth. What is known to grow goes, unless it is too little.
#[test]
fn a_pod_that_only_charges_in_advance_is_passed_over() {
    let eligible = |growers: &[(u64, usize)]| {
        let mut candidates = [candidate(0, 0, 100), candidate(1, 0, 300)];
        pass_over_not_growing(&mut candidates, &[25_600, 6000], growers, 6000);
        candidates.map(|candidate| candidate.state == CandidateState::Eligible)
    };
    assert_eq!(eligible(&[(6000, 1)]), [false, true]);
    assert_eq!(
        eligible(&[(0, 0), (6000, 0)]),
        [true, false],
        "an empty place"
    );
    assert_eq!(eligible(&[(500, 1)]), [true, true]);
    assert_eq!(eligible(&[]), [true, true]);
}

/// A pod of priority 100 that has 300 MiB and has requested so much grows; sixty of priority 0 come before it.
fn before_a_grower(each: u64, requested: u64) -> Vec<Candidate> {
    let mut candidates = vec![candidate(0, 0, each << 20); 60];
    candidates.push(candidate(100, requested << 20, 300 << 20));
    candidates
}

/// Whether a pod is passed over for these growers, and the one that is evicted next.
fn next_beside(
    candidates: &mut [Candidate],
    growers: &[(u64, usize)],
    mib_per_second: u64,
) -> (bool, Option<usize>) {
    next_allowed(candidates, growers, mib_per_second, usize::MAX)
}

/// The same where the eviction rates allow so many pods.
fn next_allowed(
    candidates: &mut [Candidate],
    growers: &[(u64, usize)],
    mib_per_second: u64,
    allowed: usize,
) -> (bool, Option<usize>) {
    let mut growers: Vec<_> = growers.iter().map(|(mib, at)| (mib << 20, *at)).collect();
    let growth = UrgentGrowth {
        per_second: mib_per_second << 20,
        steady: mib_per_second << 20,
        growers: &mut growers,
        of_others: 0,
    };
    let rate = NodeRate {
        left: allowed,
        exempts_growers: false,
    };
    let spared = pass_over_in_vain(candidates, RULES, growth, rate, |_, usage| (usage, usage));
    (spared, first(candidates, RULES))
}

/// Nothing is left of a rate for the pod that grows once others have used it up.
#[test]
fn an_eviction_rate_is_kept_for_the_pod_that_grows() {
    let next = |allowed| next_allowed(&mut before_a_grower(10, 256), &[(30, 60)], 30, allowed);
    // 300 MiB in ten seconds; sixty pods hold twice as much.
    assert_eq!(next(usize::MAX), (false, Some(0)));
    // Nine of them hold 90.
    assert_eq!(next(10), (true, Some(60)));
    assert_eq!(next(1), (true, Some(60)));
    // The largest count.
    let mut candidates = before_a_grower(10, 256);
    candidates[7].usage = 300 << 20;
    let first = next_allowed(&mut candidates, &[(30, 60)], 30, 2);
    assert_eq!(first, (false, Some(7)));
}

#[test]
fn pods_that_cannot_carry_a_growth_do_not_go_in_vain() {
    let next = |candidates: &mut [Candidate], speed: u64| {
        next_beside(candidates, &[(speed / 2, 60)], speed)
    };
    // 300 MiB are used up in a second.
    assert_eq!(next(&mut before_a_grower(5, 256), 300), (true, Some(60)));
    // 3,000 MiB last longer than it takes the kubelet to look again.
    let (spared, first) = next(&mut before_a_grower(50, 256), 200);
    assert_eq!((spared, first), (false, Some(0)));
    // Within its request it goes for no other pod.
    assert!(!next(&mut before_a_grower(5, 512), 300).0);
    let mut protected = before_a_grower(5, 256);
    protected[60].state = CandidateState::Denied;
    assert!(!next(&mut protected, 300).0);
}

#[test]
fn several_pods_may_make_most_of_a_growth() {
    let three = || {
        let mut candidates = before_a_grower(5, 256);
        candidates.extend([200, 100].map(|priority| candidate(priority, 0, 300 << 20)));
        candidates
    };
    let hogs = [(100, 60), (100, 61), (100, 62)];
    // Of equal growth, in the order of eviction: priority 100 before 200, the one above its request by more first.
    assert_eq!(next_beside(&mut three(), &hogs, 300), (true, Some(62)));
    // A small pod that grows a little is none of them.
    let with_small = [(100, 60), (100, 61), (100, 62), (3, 0)];
    assert_eq!(
        next_beside(&mut three(), &with_small, 303),
        (true, Some(62))
    );
    // Most of it is of no pod that is known.
    let (spared, first) = next_beside(&mut three(), &hogs, 900);
    assert_eq!((spared, first), (false, Some(0)));
}

/// A job ends in the same quarter of a second: all together grow by less than the hog.
#[test]
fn what_others_give_back_makes_a_small_growth_no_main_one() {
    let mut candidates = vec![candidate(0, 0, 200 << 20), candidate(100, 0, 500 << 20)];
    let growth = UrgentGrowth {
        per_second: 300 << 20,
        steady: 60 << 20,
        growers: &mut [(300 << 20, 1), (35 << 20, 0)],
        of_others: 0,
    };
    let read = |_, usage| (usage, usage);
    let rate = NodeRate::default();
    let any = pass_over_in_vain(&mut candidates, RULES, growth, rate, read);
    assert!(any);
    assert_eq!(first(&mut candidates, RULES), Some(1));
}

/// Whether a pod is passed over for the one at 60, which makes all of a growth of 200 MiB/s.
fn is_passed_over(
    candidates: &mut [Candidate],
    read: impl FnMut(usize, u64) -> (u64, u64),
) -> bool {
    let growth = UrgentGrowth {
        per_second: 200 << 20,
        steady: 200 << 20,
        growers: &mut [(200 << 20, 60)],
        of_others: 0,
    };
    pass_over_in_vain(candidates, RULES, growth, NodeRate::default(), read)
}

/// Its counter puts it above its request, in front of the grower; without page cache it is within it.
#[test]
fn a_pod_that_ranks_behind_by_its_exact_usage_carries_no_growth() {
    let mut candidates = before_a_grower(5, 256);
    let database = Candidate {
        is_exact: false,
        ..candidate(0, 4096 << 20, 5300 << 20)
    };
    candidates.push(database);
    let exact = |position: usize, usage: u64| match position {
        61 => (2700 << 20, 2500 << 20),
        _ => (usage, usage),
    };
    assert!(is_passed_over(&mut candidates, exact));
    assert_eq!(first(&mut candidates, RULES), Some(60));
}

#[test]
fn page_cache_carries_no_growth() {
    let mut candidates = before_a_grower(50, 256);
    let held = |position: usize, usage: u64| match position {
        0..30 => (usage, usage / 50),
        _ => (usage, usage),
    };
    // 3,000 MiB at most, of which 1,530 are held: less than 2,000.
    assert!(is_passed_over(&mut candidates, held));
}
