//! What else the engine does that the kubelet does not, side by side with the kubelet's way (docs/differences.md).

use evictd_engine::{
    NodeCondition, Observation, Planner, PlannerSettings, Recreation, RestoredOwnerEviction,
    RestoredRecreation, RestoredState, model::settings::RankingStrategy,
};
use evictd_tests::{
    engine::{
        MI, Node, Round, SECOND, evicted, fastpath_kills, first, killed_for_memory, mib, names,
        one_gib, planner, planner_of, plays, settings, step,
    },
    policy_fixture::owner,
    prelude::*,
};

#[test]
fn thresholds_come_in_a_fixed_order() {
    // The kubelet takes hard and soft thresholds of one signal in the order of a Go map. Hard goes first here.
    let config = json!({
        "evictionHard": {"memory.available": "1Gi", "nodefs.inodesFree": "5%", "pid.available": "5%"},
        "evictionSoft": {"memory.available": "2Gi"},
        "evictionSoftGracePeriod": {"memory.available": "1s"},
        "evictionMaxPodGracePeriod": 30,
    });
    for _ in 0..20 {
        let mut planner = planner(Mode::Kubelet, config.clone());
        let mut node = Node::with_memory(900, 1).pod("a", 300);
        node.observe(Signal::PidAvailable, 0, 1);
        node.observe(Signal::NodeFsInodesFree, 0, 1);
        step(&mut planner, 1, &node);
        // The wait for the first one is over.
        node.observe(Signal::MemoryAvailable, 900 * MI as i64, 40);
        let evictions = step(&mut planner, 40, &node).evictions;
        assert_eq!(evictions[0].grace_period_seconds, 1);
        let said = &evictions[0].message.text;
        assert!(said.starts_with("The node was low on resource: memory. Threshold quantity: 1Gi"));
    }
}

#[test]
fn static_pods_are_judged_by_their_priority() {
    // R12: the kubelet never evicts one.
    let node = Node::with_memory(900, 1)
        .pod("static", 300)
        .that(|pod| pod.is_static = true)
        .pod("other", 200);
    assert_eq!(first(Mode::Kubelet, &node), ["other"]);
    assert_eq!(first(Mode::Evictd, &node), ["static"]);
    let critical = Node::with_memory(900, 1)
        .pod("critical", 300)
        .that(|pod| pod.priority = 2_000_001_000);
    for mode in [Mode::Kubelet, Mode::Evictd] {
        assert_eq!(first(mode, &critical), [""; 0]);
    }
}

#[test]
fn pods_of_unknown_priority_go_last() {
    // Of what is short `unknown` uses most, above its request, and `known` little, of a high priority.
    let unknown = |pod: &mut Pod| pod.priority_unknown = true;
    let important = |pod: &mut Pod| {
        pod.priority = 1000;
        pod.qos = QosClass::Guaranteed;
        pod.memory_request = 400 * MI;
        pod.storage_request = 400 * MI;
    };
    for (signal, thresholds) in [
        (Signal::MemoryAvailable, json!({"memory.available": "1Gi"})),
        (Signal::PidAvailable, json!({"pid.available": "1Gi"})),
        (Signal::NodeFsAvailable, json!({"nodefs.available": "1Gi"})),
        (
            Signal::NodeFsInodesFree,
            json!({"nodefs.inodesFree": "1Gi"}),
        ),
    ] {
        for strategy in ["kubelet", "qos", "usage"] {
            let mut node = Node::default()
                .pod("unknown", 500)
                .that(unknown)
                .pod("known", 200)
                .that(important);
            for (name, used) in [("unknown", 500 * MI), ("known", 200 * MI)] {
                node.processes(name, used);
                node.logs(name, used, used);
                node.usages.get_mut(name).unwrap().ephemeral_storage = Some(used);
            }
            let config = json!({
                "evictionHard": thresholds,
                "rankingStrategy": strategy,
            });
            let mut planner = planner(Mode::Evictd, config);
            // One goes, and the other one when nothing is expected of the first any more.
            let rounds: &[Round] = match signal {
                // Once they were short for as long as the kubelet needs to see it.
                Signal::PidAvailable => &[
                    (1, mib(600), &[]),
                    (12, mib(600), &["known"]),
                    (50, mib(600), &["unknown"]),
                ],
                _ => &[(1, mib(600), &["known"]), (50, mib(600), &["unknown"])],
            };
            plays(&mut planner, &mut node, signal, rounds);
        }
    }
}

#[test]
fn guaranteed_pods_go_when_no_others_are_left() {
    // R20: 8Gi in all, 7Gi for pods; the pods leave 6500Mi of theirs.
    let guaranteed = |pod: &mut Pod| pod.qos = QosClass::Guaranteed;
    let decide = |pods_left_mi: u64| {
        let mut node = Node::with_memory(1030, 1)
            .pod("first", 300)
            .pod("small", 10)
            .pod("firm", 600)
            .that(guaranteed);
        let seen = Observation {
            available: (pods_left_mi * MI) as i64,
            capacity: 7 << 30,
            time: None,
        };
        node.observations
            .set(Signal::AllocatableMemoryAvailable, seen);
        let mut planner = planner_of(PlannerSettings {
            strategy: RankingStrategy::Qos,
            ..settings(Mode::Evictd, one_gib())
        });
        let mut evicted = Vec::new();
        // It grows while the first ones still die.
        for (second, available) in [(1, 1030), (2, 700), (3, 400), (4, 40), (5, 30), (6, 5)] {
            node.observe(Signal::MemoryAvailable, available * MI as i64, second);
            let evictions = step(&mut planner, second, &node).evictions;
            evicted.extend(evictions.into_iter().map(|eviction| eviction.name));
        }
        evicted.join(" ")
    };
    // Whether or not daemons use more than was reserved for them.
    assert_eq!(decide(6500), "first small firm");
    assert_eq!(decide(0), "first small firm");
}

#[test]
fn a_soft_threshold_leaves_time_and_respects_the_pods_own() {
    // R5
    let config = json!({
        "evictionHard": {},
        "evictionSoft": {"memory.available": "1Gi"},
        "evictionSoftGracePeriod": {"memory.available": "30s"},
        "evictionMaxPodGracePeriod": 60,
    });
    for (own, expected) in [(Some(10), 10), (Some(600), 60), (None, 60)] {
        let mut planner = planner(Mode::Evictd, config.clone());
        let set = |pod: &mut Pod| pod.termination_grace_period_seconds = own;
        let mut node = Node::with_memory(900, 1).pod("a", 300).that(set);
        // R6: the condition comes at once, the eviction after the grace period.
        let round = step(&mut planner, 1, &node);
        assert_eq!(round.conditions, [NodeCondition::MemoryPressure]);
        assert_eq!(round.evictions, []);
        node.observe(Signal::MemoryAvailable, mib(900), 31);
        let evictions = step(&mut planner, 31, &node).evictions;
        assert_eq!(evictions[0].grace_period_seconds, expected);
    }
}

#[test]
fn a_condition_stays_for_the_transition_period() {
    // R7
    let mut planner = planner(Mode::Evictd, one_gib());
    for (second, available, expected) in [
        (0, 900, true),
        (10, 2000, true),
        (59, 2000, true),
        (60, 2000, false),
    ] {
        let round = step(&mut planner, second, &Node::with_memory(available, second));
        assert_eq!(!round.conditions.is_empty(), expected, "second {second}");
    }
}

#[test]
fn the_time_that_is_left_is_foretold() {
    // R44: 100Mi a second, 1224Mi left, 1Gi is the threshold.
    let mut planner = planner(Mode::Evictd, one_gib());
    step(&mut planner, 1, &Node::with_memory(1324, 1));
    let round = step(&mut planner, 2, &Node::with_memory(1224, 2));
    let [memory] = &round.forecasts[..] else {
        panic!("{:?}", round.forecasts)
    };
    assert_eq!(memory.signal, Signal::MemoryAvailable);
    let foretold = [
        memory.forecast.until_threshold,
        memory.forecast.until_exhausted,
    ];
    let seconds = foretold.map(|time| time.map(|time| time.as_secs_f64()));
    assert_eq!(seconds, [Some(2.0), Some(12.24)]);
}

/// Makes a pod one of a DaemonSet's.
fn owned(pod: &mut Pod) {
    pod.owner = Some(owner("DaemonSet", "set"));
}

/// A node that is short, with one such pod.
fn short(second: i64, name: &str) -> Node {
    Node::with_memory(900, second).pod(name, 300).that(owned)
}

/// A node that is not short, with one such pod.
fn calm(second: i64, name: &str) -> Node {
    Node::with_memory(4000, second).pod(name, 1).that(owned)
}

/// The pods that have come back by a round.
fn recreations(planner: &mut Planner, second: i64, node: &Node) -> Vec<Recreation> {
    step(planner, second, node).recreations
}

#[test]
fn pods_that_come_back_hold_the_condition_for_longer_each_time() {
    // R17, R29
    let holds = vec![60, 120, 240, 480, 960, 1920, 3600, 3600];
    for (mode, holds) in [(Mode::Evictd, holds), (Mode::Kubelet, vec![])] {
        let mut planner = planner(mode, one_gib());
        let mut found = Vec::new();
        for round in 0..9 {
            let second = round * 100;
            let name = format!("agent-{round}");
            let round = step(&mut planner, second, &short(second, &name));
            assert_eq!(names(&round.evictions), [name.as_str()]);
            found.extend(round.recreations.iter().map(|r| r.hold.as_secs()));
        }
        assert_eq!(found, holds, "{mode:?}");
        // The last hold outlives the transition period of a minute.
        let round = step(&mut planner, 4300, &Node::with_memory(4000, 4300));
        assert_eq!(!round.conditions.is_empty(), mode == Mode::Evictd);
        let round = step(&mut planner, 4500, &Node::with_memory(4000, 4500));
        assert_eq!(round.conditions, []);
    }
}

/// The node's taint keeps it away for as long as the condition is in force.
// R17, R29
#[test]
fn a_pod_that_comes_back_when_it_may_holds_the_condition_for_longer_each_time() {
    for transition_period in [60, 900] {
        let mut settings = settings(Mode::Evictd, one_gib());
        settings.eviction.pressure_transition_period = Duration::from_secs(transition_period);
        let mut planner = Planner::new(settings);
        let (mut found, mut second) = (Vec::new(), 0);
        for round in 0..8 {
            let name = format!("agent-{round}");
            let short = step(&mut planner, second, &short(second, &name));
            assert_eq!(names(&short.evictions), [name.as_str()]);
            found.extend(short.recreations.iter().map(|r| r.hold.as_secs()));
            loop {
                second += 10;
                let calm = Node::with_memory(4000, second);
                if step(&mut planner, second, &calm).conditions.is_empty() {
                    break;
                }
            }
            // It starts and fills up.
            second += 30;
        }
        assert_eq!(
            found,
            [60, 120, 240, 480, 960, 1920, 3600],
            "{transition_period} s"
        );
    }
}

/// A Job puts its next pods here whatever was evicted: one takes the place of each evicted pod, and no further one has come back.
// R17, R29
#[test]
fn an_eviction_has_one_recreation() {
    let mut planner = planner(Mode::Evictd, one_gib());
    let job = short(0, "job-0");
    assert_eq!(evicted(&mut planner, 0, &job), ["job-0"]);
    let mut found = Vec::new();
    for second in [10, 20, 30] {
        let [one, other] = ["a", "b"].map(|pod| format!("job-{second}-{pod}"));
        let both = calm(second, &one).pod(&other, 1).that(owned);
        found.push(recreations(&mut planner, second, &both).len());
    }
    assert_eq!(found, [1, 0, 0]);
}

/// It was asked to end and killed then: it has two records, and one pod takes its place.
// R17, R29
#[test]
fn a_pod_with_two_records_has_one_recreation() {
    let mut planner = planner(Mode::Evictd, one_gib());
    let eviction = |at: i64| RestoredOwnerEviction {
        at: at * SECOND,
        since: at + 5000,
        uid: "job-0".into(),
        owner_uid: "set".into(),
        condition: NodeCondition::MemoryPressure,
    };
    let evictions = vec![eviction(-40), eviction(-30)];
    planner.restore(
        0,
        &RestoredState {
            evictions,
            ..RestoredState::default()
        },
    );
    step(&mut planner, 1, &Node::with_memory(4000, 1));
    let came = calm(2, "job-1").pod("job-2", 1).that(owned);
    assert_eq!(recreations(&mut planner, 2, &came).len(), 1);
}

/// A budget protects a pod that is chosen again and again: recreations of an hour ago count no more.
// R17, R29
#[test]
fn choices_that_come_to_nothing_keep_no_recreations() {
    let mut planner = planner(Mode::Evictd, one_gib());
    assert_eq!(evicted(&mut planner, 0, &short(0, "a")), ["a"]);
    assert_eq!(recreations(&mut planner, 10, &calm(10, "b")).len(), 1);
    for second in (60..1260).step_by(60) {
        assert_eq!(evicted(&mut planner, second, &short(second, "b")), ["b"]);
        planner.cancel_eviction("b");
    }
    assert_eq!(evicted(&mut planner, 1300, &short(1300, "b")), ["b"]);
    let found = recreations(&mut planner, 1310, &calm(1310, "c"));
    assert_eq!((found.len(), found[0].count), (1, 1));
}

/// Chosen by the manager, and killed by the fast path meanwhile. Another pod has taken its place before, or the manager's
/// choice is cancelled then.
// R17, R29
#[test]
fn a_pod_that_two_loops_evict_has_one_recreation() {
    for comes_before in [true, false] {
        let mut planner = planner(Mode::Evictd, one_gib());
        let job = short(0, "job-0");
        assert_eq!(evicted(&mut planner, 0, &job), ["job-0"]);
        let mut found = 0;
        if comes_before {
            let beside = calm(1, "job-0").pod("job-1", 1).that(owned);
            found += recreations(&mut planner, 1, &beside).len();
        }
        fastpath_kills(&mut planner, 2, &job, "job-0");
        if !comes_before {
            planner.cancel_eviction("job-0");
        }
        let both = calm(10, "job-1").pod("job-2", 1).that(owned);
        found += recreations(&mut planner, 10, &both).len();
        assert_eq!(found, 1, "{comes_before}");
    }
}

// R17, R29: whose cgroup could not be read for a round, dead or alive, is no pod that comes.
#[test]
fn a_pod_that_was_not_seen_for_a_cycle_has_not_come_back() {
    let mut planner = planner(Mode::Evictd, one_gib());
    assert_eq!(evicted(&mut planner, 0, &short(0, "agent-0")), ["agent-0"]);
    step(&mut planner, 10, &Node::with_memory(4000, 10));
    assert_eq!(recreations(&mut planner, 20, &calm(20, "agent-0")), []);
    let found = recreations(&mut planner, 30, &calm(30, "agent-1"));
    assert_eq!(found.len(), 1);
    step(&mut planner, 40, &Node::with_memory(4000, 40));
    assert_eq!(recreations(&mut planner, 50, &calm(50, "agent-1")), []);
}

// R17, R29: the API server names a pod later than its cgroup is seen.
#[test]
fn a_pod_comes_back_when_its_cgroup_does() {
    let mut planner = planner(Mode::Evictd, one_gib());
    let unnamed = Node::with_memory(4000, 0).pod("agent-0", 1);
    step(&mut planner, 0, &unnamed.pod("agent-1", 1));
    let both = short(10, "agent-0").pod("agent-1", 1);
    assert_eq!(evicted(&mut planner, 10, &both), ["agent-0"]);
    let was_here = calm(20, "agent-1");
    assert_eq!(recreations(&mut planner, 20, &was_here), []);
    let comes = was_here.pod("agent-2", 1);
    assert_eq!(recreations(&mut planner, 30, &comes), []);
    assert_eq!(recreations(&mut planner, 40, &comes.that(owned)).len(), 1);
}

// R17, R29
#[test]
fn a_pod_that_is_named_after_its_eviction_comes_back() {
    for is_evicted in [true, false] {
        let mut planner = planner(Mode::Evictd, one_gib());
        let short = Node::with_memory(900, 0).pod("agent-0", 300);
        assert_eq!(evicted(&mut planner, 0, &short), ["agent-0"]);
        if !is_evicted {
            planner.cancel_eviction("agent-0");
        }
        assert_eq!(recreations(&mut planner, 10, &calm(10, "agent-0")), []);
        let found = recreations(&mut planner, 20, &calm(20, "agent-1"));
        assert_eq!(found.len(), usize::from(is_evicted));
    }
}

/// A pod that was chosen and not evicted, for a limit or a budget, leaves no mark: what its owner puts here is no
/// recreation.
// R17, R29
#[test]
fn a_pod_that_was_not_evicted_does_not_come_back() {
    let mut planner = planner(Mode::Evictd, one_gib());
    assert_eq!(evicted(&mut planner, 0, &short(0, "agent-0")), ["agent-0"]);
    planner.cancel_eviction("agent-0");
    assert_eq!(recreations(&mut planner, 10, &calm(10, "agent-1")), []);
    // One that was evicted before that counts all the same.
    let again = evicted(&mut planner, 20, &short(20, "agent-1"));
    assert_eq!(again, ["agent-1"]);
    planner.cancel_eviction("agent-1");
    let again = evicted(&mut planner, 40, &short(40, "agent-1"));
    assert_eq!(again, ["agent-1"]);
    let found = step(&mut planner, 60, &short(60, "agent-2"));
    assert_eq!(
        (names(&found.evictions), found.recreations.len()),
        (vec!["agent-2"], 1)
    );
    planner.cancel_eviction("agent-2");
    assert_eq!(recreations(&mut planner, 70, &calm(70, "agent-3")), []);
}

// R17, R29
#[test]
fn a_manager_goes_on_where_another_one_has_ended() {
    let recreation = |at: i64, uid: &str, count, hold| RestoredRecreation {
        at: at * SECOND,
        recreation: Recreation {
            uid: uid.into(),
            owner_uid: "set".into(),
            condition: NodeCondition::MemoryPressure,
            count,
            hold: Duration::from_secs(hold),
        },
    };
    let eviction = |at: i64, uid: &str| RestoredOwnerEviction {
        at: at * SECOND,
        // The wall clock is some time ahead.
        since: at + 5000,
        uid: uid.into(),
        owner_uid: "set".into(),
        condition: NodeCondition::MemoryPressure,
    };
    let earlier = RestoredState {
        victims: vec![killed_for_memory("agent-2", 0)],
        evictions: vec![eviction(-300, "agent-0"), eviction(-30, "agent-2")],
        recreations: vec![
            recreation(-290, "agent-1", 1, 60),
            recreation(-100, "agent-2", 2, 120),
        ],
        ..RestoredState::default()
    };
    let restored = |mode| {
        let mut planner = planner(mode, one_gib());
        planner.restore(0, &earlier);
        planner
    };
    let mut planner = restored(Mode::Evictd);
    // The last victim still ends, two others were here before, and one of them has no time of creation.
    let created = |at: i64| move |pod: &mut Pod| pod.created = Some(5000 + at);
    let calm = |second| {
        let node = Node::with_memory(1100, second).pod("agent-2", 300);
        let node = node.that(owned).that(created(-100));
        let node = node.pod("agent-old", 1).that(owned).that(created(-900));
        node.pod("agent-nameless", 1).that(owned)
    };
    let round = step(&mut planner, 1, &calm(1));
    assert_eq!(round.recreations, []);
    assert_eq!(round.conditions, [NodeCondition::MemoryPressure], "held");
    let mut short = calm(2);
    short.observe(Signal::MemoryAvailable, 900 * MI as i64, 2);
    let chosen = step(&mut planner, 2, &short).evictions;
    assert_eq!(names(&chosen), [""; 0], "what it holds is on its way back");
    let another = calm(3).pod("agent-3", 1).that(owned);
    let found = step(&mut planner, 3, &another).recreations;
    assert_eq!((found.len(), found[0].count), (1, 3));
    assert_eq!(found[0].hold, Duration::from_secs(240));

    // One that has come while no agent ran is here at the first look.
    let mut planner = restored(Mode::Evictd);
    let late = calm(1).pod("agent-3", 1).that(owned).that(created(-20));
    let found = step(&mut planner, 1, &late).recreations;
    assert_eq!((found.len(), found[0].count), (1, 3));

    // The first look knows only the cgroups of two pods, of which one was here before.
    let mut planner = restored(Mode::Evictd);
    let cgroups = |second| {
        let node = calm(second).pod("agent-3", 1);
        node.pod("agent-4", 1)
    };
    assert_eq!(step(&mut planner, 1, &cgroups(1)).recreations, []);
    let named = calm(2).pod("agent-4", 1).that(owned).that(created(-900));
    let named = named.pod("agent-3", 1).that(owned).that(created(-20));
    let found = step(&mut planner, 2, &named).recreations;
    assert_eq!(
        (found.len(), &*found[0].uid, found[0].count),
        (1, "agent-3", 3)
    );

    // The hold ends when it would have ended.
    let mut planner = restored(Mode::Evictd);
    let conditions = |planner: &mut evictd_engine::Planner, second| {
        step(planner, second, &Node::with_memory(4000, second)).conditions
    };
    assert_eq!(conditions(&mut planner, 19).len(), 1);
    assert_eq!(conditions(&mut planner, 20), []);

    let round = step(&mut restored(Mode::Kubelet), 1, &late);
    assert_eq!((round.recreations, round.conditions), (vec![], vec![]));
}
