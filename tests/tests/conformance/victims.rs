//! Which pods go, how many at once, and what counts as on its way back, side by side with the kubelet's way
//! (docs/differences.md).

use evictd_engine::{
    Cause, NodeReclaim, Planner, PlannerSettings, ReclaimUnderWay, model::quantity::Quantity,
    node_reclaim::ReclaimBy,
};
use evictd_tests::{
    engine::{
        MI, Node, Round, SECOND, evicted, first, mib, names, one_gib, planner, planner_of, plays,
        reclaimed, settings, step,
    },
    prelude::*,
};

#[test]
fn a_deficit_that_does_not_grow_takes_one_pod_in_ten_seconds() {
    // R43: 924Mi are missing, and there is time to see what each pod's end brings.
    let mut node = Node::with_memory(100, 1)
        .pod("a", 300)
        .pod("b", 500)
        .pod("c", 450)
        .pod("d", 10);
    for (mode, second) in [(Mode::Evictd, 11), (Mode::Kubelet, 11)] {
        let mut planner = planner(mode, one_gib());
        node.observe(Signal::MemoryAvailable, 100 * MI as i64, 1);
        assert_eq!(evicted(&mut planner, 1, &node), ["b"]);
        let mut later = node.clone();
        later.pods.retain(|pod| pod.name != "b");
        if mode == Mode::Evictd {
            later.observe(Signal::MemoryAvailable, 600 * MI as i64, 2);
            assert_eq!(evicted(&mut planner, 2, &later), [""; 0]);
        }
        later.observe(Signal::MemoryAvailable, 600 * MI as i64, second);
        assert_eq!(evicted(&mut planner, second, &later), ["c"]);
    }
}

#[test]
fn a_growth_takes_as_many_pods_as_it_takes_to_live_until_their_memory_is_back() {
    // R43: 300Mi a second, so that the next pod goes while the first one still dies.
    let mut planner = planner(Mode::Evictd, one_gib());
    let mut node = Node::with_memory(1030, 1)
        .pod("a", 300)
        .pod("b", 200)
        .pod("c", 100);
    let rounds: &[Round] = &[
        (1, mib(1030), &[]),
        (2, mib(700), &["a"]),
        (3, mib(400), &[]),
        (4, mib(100), &["b"]),
    ];
    plays(&mut planner, &mut node, Signal::MemoryAvailable, rounds);
}

#[test]
fn memory_on_its_way_back_counts() {
    // R43: the victims are still there, what they use is still missing, and no other pod dies for it.
    let mut planner = planner(Mode::Evictd, one_gib());
    let mut node = Node::with_memory(800, 1).pod("a", 300).pod("b", 200);
    let rounds: &[Round] = &[
        (1, mib(800), &["a"]),
        (2, mib(800), &[]),
        // Only the part of a new deficit that is not on its way takes another victim, when the kubelet would have looked again.
        (3, mib(700), &[]),
        (10, mib(700), &[]),
        (11, mib(700), &["b"]),
    ];
    plays(&mut planner, &mut node, Signal::MemoryAvailable, rounds);
}

#[test]
fn a_victim_that_does_not_die_does_not_block_the_next() {
    // R43, kubernetes/kubernetes#124081: after its grace period and ten seconds it is not counted on any more, and it
    // is not evicted a second time either.
    let mut planner = planner(Mode::Evictd, one_gib());
    let mut node = Node::with_memory(800, 1).pod("stuck", 300).pod("next", 250);
    let rounds: &[Round] = &[
        (1, mib(800), &["stuck"]),
        (11, mib(800), &[]),
        (12, mib(800), &["next"]),
        (13, mib(800), &[]),
    ];
    plays(&mut planner, &mut node, Signal::MemoryAvailable, rounds);
}

#[test]
fn pods_that_use_nothing_of_what_is_short_are_left_alone() {
    // R43: the kubelet takes pods without numbers first, whatever that brings.
    let mut node = Node::with_memory(900, 1)
        .pod("unknown", 0)
        .pod("known", 300);
    node.usages.remove("unknown");
    assert_eq!(first(Mode::Kubelet, &node), ["unknown"]);
    assert_eq!(first(Mode::Evictd, &node), ["known"]);
}

/// Nor are they asked in place of the pod that was chosen.
#[test]
fn pods_that_use_nothing_of_what_is_short_are_not_asked() {
    // R43
    let config = json!({
        "evictionHard": {},
        "evictionSoft": {"memory.available": "1Gi"},
        "evictionSoftGracePeriod": {"memory.available": "1s"},
        "rankingStrategy": "qos",
    });
    let qos = |class| move |pod: &mut Pod| pod.qos = class;
    let mut node = Node::with_memory(900, 1)
        .pod("idle", 0)
        .that(qos(QosClass::BestEffort))
        .pod("big", 300)
        .that(qos(QosClass::Burstable))
        .pod("bigger", 400)
        .that(qos(QosClass::Guaranteed));
    let mut planner = planner(Mode::Evictd, config);
    step(&mut planner, 1, &node);
    node.observe(Signal::MemoryAvailable, 900 * MI as i64, 20);
    let evictions = step(&mut planner, 20, &node).evictions;
    assert_eq!(names(&evictions), ["big"]);
    let asked = planner.alternatives(node.snapshot(), &evictions[0]);
    assert_eq!(names(&asked), ["big", "bigger"]);
}

/// A minimum reclaim counts for a threshold that was met for as long as the kubelet needs to see it, and means nothing before.
#[test]
fn a_threshold_presses_from_when_it_is_met_until_it_is_resolved() {
    let mut config = one_gib();
    config["evictionMinimumReclaim"] = json!({"memory.available": "500Mi"});
    let settings = settings(Mode::Evictd, config.clone());
    let (mut planner, threshold) = (
        planner(Mode::Evictd, config),
        &settings.eviction.thresholds[0],
    );
    for (second, available, expected) in [
        (1, 1200, false),
        (2, 900, true),
        (3, 1200, false),
        (4, 900, true),
        (15, 1200, true),
        (16, 1600, false),
        (17, 1200, false),
    ] {
        step(&mut planner, second, &Node::with_memory(available, second));
        assert_eq!(planner.is_under_pressure(threshold), expected, "{second}");
    }
}

#[test]
fn a_sample_is_acted_on_once() {
    // R28: the same measurement, seen again, evicts no pod; one without a time always counts as new.
    for mode in [Mode::Evictd, Mode::Kubelet] {
        let mut planner = planner(mode, one_gib());
        let node = Node::with_memory(900, 1).pod("a", 300);
        assert_eq!(evicted(&mut planner, 1, &node), ["a"]);
        let mut later = Node::with_memory(900, 1).pod("b", 300);
        assert_eq!(evicted(&mut planner, 10, &later), [""; 0], "{mode:?}");
        later.observe(Signal::MemoryAvailable, 900 * MI as i64, 2);
        assert_eq!(evicted(&mut planner, 20, &later), ["b"], "{mode:?}");
    }
}

/// A hard threshold on the disk with a minimum reclaim, and one on memory.
fn disk_and_memory() -> Value {
    json!({
        "evictionHard": {"nodefs.available": "1Gi", "memory.available": "1Gi"},
        "evictionMinimumReclaim": {"nodefs.available": "1Gi"},
    })
}

#[test]
fn memory_does_not_wait_for_the_disk() {
    // R8: collecting images takes seconds, which a node without memory does not have.
    let mut node = Node::with_memory(900, 1).pod("a", 300);
    node.observe(Signal::NodeFsAvailable, 0, 1);
    let round = step(&mut planner(Mode::Evictd, disk_and_memory()), 1, &node);
    assert_eq!(names(&round.evictions), ["a"]);
    assert_eq!(
        round.node_reclaim,
        [NodeReclaim::Containers, NodeReclaim::Images]
    );
    // The kubelet does one thing a round, and memory comes first there too.
    let round = step(&mut planner(Mode::Kubelet, disk_and_memory()), 1, &node);
    assert_eq!(names(&round.evictions), ["a"]);
    assert_eq!(round.node_reclaim, []);
}

#[test]
fn after_a_reclaim_what_is_the_case_then_decides() {
    // R28, R40: before the reclaim `a` used the most, after it `b` does.
    let disk = |node: Node, usages: [u64; 2]| {
        let mut node = node.pod("a", 0).pod("b", 0);
        for (name, used) in ["a", "b"].into_iter().zip(usages) {
            node.logs(name, used * MI, 0);
        }
        node
    };
    let mut before = disk(Node::default(), [600, 500]);
    before.observe(Signal::NodeFsAvailable, 900 * MI as i64, 1);
    let mut after = disk(Node::default(), [100, 500]);
    after.observe(Signal::NodeFsAvailable, 1000 * MI as i64, 2);
    for (mode, expected) in [(Mode::Kubelet, "a"), (Mode::Evictd, "b")] {
        let (round, evictions) =
            reclaimed(&mut planner(mode, disk_and_memory()), 1, &before, &after);
        assert_eq!((round.node_reclaim.len(), round.evictions.len()), (2, 0));
        assert_eq!(names(&evictions), [expected], "{mode:?}");
    }
    // R11: enough for the threshold and its minimum reclaim, and no pod goes; nor for the minimum reclaim alone after a look.
    for (mode, enough) in [
        (Mode::Kubelet, 2048),
        (Mode::Evictd, 2048),
        (Mode::Evictd, 1600),
    ] {
        after.observe(Signal::NodeFsAvailable, enough * MI as i64, 2);
        let (_, evictions) = reclaimed(&mut planner(mode, disk_and_memory()), 1, &before, &after);
        assert_eq!(names(&evictions), [""; 0], "{mode:?}");
    }
}

// R8: the others wait on.
#[test]
fn only_pods_that_a_reclaim_under_way_helps_wait_for_it() {
    use NodeReclaim::{Containers, Images};
    let config = json!({"evictionHard": {
        "nodefs.available": "1Gi", "nodefs.inodesFree": "1000", "imagefs.available": "1Gi",
    }});
    let goes_in = |mode, split, left: [i64; 2], by, what: &[NodeReclaim]| {
        let mut settings = settings(mode, config.clone());
        (
            settings.layout.dedicated_image_fs,
            settings.layout.split_image_fs,
        ) = (split, split);
        let mut planner = Planner::new(settings);
        let mut node = Node::default().pod("a", 0).pod("b", 0);
        for name in ["a", "b"] {
            node.logs(name, 900 * MI, 900);
        }
        node.observe(Signal::NodeFsAvailable, mib(left[0]), 1);
        node.observe(Signal::NodeFsInodesFree, left[1], 1);
        let plan = step(&mut planner, 1, &node);
        assert_eq!(names(&plan.evictions), [""; 0]);
        let seen = node.snapshot();
        let before = seen.observations;
        let reclaim = ReclaimUnderWay { by, what, before };
        let evicted = planner.evict_without_reclaim(SECOND, seen, &plan, reclaim);
        let causes = evicted.into_iter().map(|eviction| eviction.cause);
        causes.collect::<Vec<_>>()
    };
    let goes = |split, left, by, what: &[NodeReclaim]| goes_in(Mode::Evictd, split, left, by, what);
    let bytes = Cause::Pressure(Signal::NodeFsAvailable);
    let inodes = Cause::Pressure(Signal::NodeFsInodesFree);
    let all = &[Containers, Images][..];
    let (runtime, kubelet) = (ReclaimBy::Runtime, ReclaimBy::Kubelet);
    assert_eq!(goes(false, [900, 1], runtime, all), []);
    // Where nothing is left, and for that alone.
    assert_eq!(goes(false, [900, 0], runtime, all), [inodes]);
    // It is not known when the kubelet looks.
    assert_eq!(goes(false, [900, 501], kubelet, all), []);
    assert_eq!(goes(false, [500, 900], kubelet, all), [bytes]);
    // The kubelet's mode waits until nothing is left.
    let in_its_mode = |left| goes_in(Mode::Kubelet, false, [left, 2000], kubelet, all);
    assert_eq!(in_its_mode(500), []);
    assert_eq!(in_its_mode(0), [bytes]);
    // Images do not lie on this disk.
    assert_eq!(goes(true, [900, 2000], runtime, &[Containers]), []);
    assert_eq!(goes(true, [900, 2000], runtime, &[Images]), [bytes]);
    // It looks at every threshold, but for that of the images' disk it was waited for before.
    assert_eq!(goes(true, [900, 2000], kubelet, all), []);
    assert_eq!(goes(true, [900, 2000], kubelet, &[Images]), [bytes]);
}

#[test]
fn a_reclaim_is_judged_by_the_threshold_that_asked_for_it() {
    // R8: the kubelet evicts for the disk although the disk has enough again, because memory is short as well.
    let config = json!({
        "evictionHard": {"nodefs.available": "1Gi"},
        "evictionSoft": {"memory.available": "1Gi"},
        "evictionSoftGracePeriod": {"memory.available": "1h"},
    });
    let mut before = Node::with_memory(900, 1).pod("a", 300);
    before.observe(Signal::NodeFsAvailable, 0, 1);
    let mut after = before.clone();
    after.observe(Signal::NodeFsAvailable, 4 << 30, 2);
    for (mode, expected) in [(Mode::Kubelet, vec!["a"]), (Mode::Evictd, vec![])] {
        let (_, evictions) = reclaimed(&mut planner(mode, config.clone()), 1, &before, &after);
        assert_eq!(names(&evictions), expected, "{mode:?}");
    }
}

#[test]
fn a_pod_over_its_own_limit_counts_for_the_round() {
    // R43: `over` exceeds the size of its emptyDir and goes for that; the 300Mi that it uses are then on their way.
    let mut node = Node::with_memory(800, 1).pod("over", 300).pod("big", 500);
    node.empty_dir("over", MI, 2 * MI);
    for mode in [Mode::Kubelet, Mode::Evictd] {
        let round = step(&mut planner(mode, one_gib()), 1, &node);
        assert_eq!(names(&round.evictions), ["over"], "{mode:?}");
        assert_eq!(
            round.evictions[0].cause,
            Cause::LocalStorage("emptydirfs.limit")
        );
    }
    // Where it is not enough, the kubelet's round is over all the same.
    node.observe(Signal::MemoryAvailable, 600 * MI as i64, 1);
    for (mode, expected) in [
        (Mode::Kubelet, vec!["over"]),
        (Mode::Evictd, vec!["over", "big"]),
    ] {
        assert_eq!(first(mode, &node), expected, "{mode:?}");
    }
}

// R10: `localStorageCapacityIsolation: false` of the kubelet.
#[test]
fn limits_on_local_storage_may_be_left_alone() {
    let mut node = Node::with_memory(2048, 1).pod("over", 300);
    node.empty_dir("over", MI, 2 * MI);
    for mode in [Mode::Kubelet, Mode::Evictd] {
        let mut settings = settings(mode, one_gib());
        let mut planner = planner_of(settings.clone());
        // They are no answer to a shortage of the node, which these bound.
        (node.bounds.allows_paced, node.bounds.rate.left) = (false, 0);
        let round = step(&mut planner, 1, &node);
        assert_eq!(names(&round.evictions), ["over"], "{mode:?}");
        settings.eviction.limits_local_storage = false;
        let round = step(&mut planner_of(settings), 1, &node);
        assert!(round.evictions.is_empty(), "{mode:?}");
    }
}

#[test]
fn what_the_dead_leave_behind_is_still_to_come() {
    // R43: tasks wait to be reaped, files to be removed; the pod is gone and nothing has come back yet.
    let config = json!({
        "evictionHard": {"pid.available": "1000"},
    });
    let mut planner = planner(Mode::Evictd, config);
    let mut node = Node::default().pod("a", 0).pod("b", 0);
    node.processes("a", 300);
    node.processes("b", 200);
    let rounds: &[Round] = &[(1, 900, &[]), (12, 900, &["a"])];
    plays(&mut planner, &mut node, Signal::PidAvailable, rounds);
    node.pods.remove(0);
    // Part of it comes; the rest alone is waited for. After ten seconds nothing more is expected.
    let rounds: &[Round] = &[
        (13, 900, &[]),
        (14, 980, &[]),
        (22, 980, &[]),
        (24, 980, &["b"]),
    ];
    plays(&mut planner, &mut node, Signal::PidAvailable, rounds);
}

/// R43: the files of each pod come back twelve seconds after it has gone, or not at all. What has come of one is none of another's.
#[test]
fn files_of_one_victim_are_not_those_of_the_next() {
    let others: &[Round] = &[
        (1, mib(500), &["a"]),
        (11, mib(500), &["b"]),
        (13, mib(2500), &[]),
        (22, mib(2500), &[]),
        (23, mib(4500), &[]),
    ];
    // By then the first one is no longer waited for.
    let never: &[Round] = &[
        (1, mib(500), &["a"]),
        (11, mib(500), &["b"]),
        (13, mib(2500), &[]),
        (33, mib(2500), &[]),
        (41, mib(2500), &[]),
        (42, mib(2500), &["c"]),
    ];
    // Others have written since those of the first one came.
    let written: &[Round] = &[
        (1, mib(500), &["a"]),
        (5, mib(2500), &[]),
        (11, mib(500), &["b"]),
        (13, mib(2500), &[]),
        (21, mib(2500), &["c"]),
    ];
    // Others have removed files and written them again.
    let by_turns: &[Round] = &[
        (1, mib(2500), &["a"]),
        (3, mib(3500), &[]),
        (11, mib(2500), &[]),
        (31, mib(2500), &[]),
        (32, mib(2500), &["b"]),
    ];
    // Part of the first one's has come when the second one goes.
    let in_parts: &[Round] = &[
        (1, mib(500), &["a"]),
        (5, mib(2000), &[]),
        (11, mib(2000), &["b"]),
        (12, mib(2500), &[]),
        (13, mib(4500), &[]),
        (20, mib(3900), &[]),
        (22, mib(3900), &["c"]),
    ];
    // No file is removed, by no kubelet: a third one's would stay as well. In the next shortage it is as before.
    let stay: &[Round] = &[
        (1, mib(500), &["a"]),
        (11, mib(500), &["b"]),
        (42, mib(500), &[]),
        (300, mib(500), &[]),
        (310, mib(4500), &[]),
        (320, mib(500), &["c"]),
    ];
    for rounds in [others, never, written, by_turns, in_parts, stay] {
        let config = json!({"evictionHard": {"nodefs.available": "4000Mi"}});
        let mut planner = planner(Mode::Evictd, config);
        let mut node = Node::default();
        for name in ["a", "b", "c"] {
            node = node.pod(name, 0);
            node.logs(name, 2000 * MI, 0);
        }
        for round in rounds {
            plays(&mut planner, &mut node, Signal::NodeFsAvailable, &[*round]);
            node.pods.retain(|pod| !round.2.contains(&&*pod.name));
        }
    }
}

#[test]
fn a_victim_that_dies_during_a_reclaim_still_counts() {
    // R43: it is among the pods when the round begins, and no longer when the reclaim is over; its files are still there.
    let mut planner = planner(Mode::Evictd, disk_and_memory());
    let mut alive = Node::default().pod("a", 0).pod("b", 0);
    alive.logs("a", 2000 * MI, 0);
    alive.logs("b", 500 * MI, 0);
    for (second, expected) in [(1, vec!["a"]), (2, vec![])] {
        alive.observe(Signal::NodeFsAvailable, 900 * MI as i64, second);
        let mut after = alive.clone();
        if second == 2 {
            after.pods.remove(0);
        }
        let (_, evictions) = reclaimed(&mut planner, second, &alive, &after);
        assert_eq!(names(&evictions), expected, "second {second}");
    }
}

/// Two pods on a disk that is short: of `known` it is known what it uses.
fn half_walked() -> Node {
    let mut node = Node::default().pod("known", 0).pod("unwalked", 0);
    node.logs("known", 8192, 2);
    node.usages.get_mut("unwalked").unwrap().ephemeral_storage = None;
    node
}

// R10: as long as it is not known which pods use the disk no pod goes that happens to be known.
#[test]
fn a_disk_waits_until_all_pods_were_walked() {
    for (signal, short) in [
        (Signal::NodeFsAvailable, 400 * MI as i64),
        (Signal::NodeFsInodesFree, 400),
    ] {
        let config = json!({
            "evictionHard": {"nodefs.available": "1Gi", "nodefs.inodesFree": "1000"},
        });
        let planner = || planner(Mode::Evictd, config.clone());
        let mut node = half_walked();
        let mut one = planner();
        node.observe(signal, short, 1);
        assert_eq!(evicted(&mut one, 1, &node), [""; 0], "{signal}");
        let mut walked = node.clone();
        let usage = walked.usages.get_mut("unwalked").unwrap();
        usage.ephemeral_storage = Some(800 * MI);
        walked.logs("unwalked", 800 * MI, 800);
        walked.observe(signal, short, 3);
        assert_eq!(evicted(&mut one, 3, &walked), ["unwalked"], "{signal}");

        // A walk that does not end is not waited for any longer.
        let rounds: &[Round] = &[(1, short, &[]), (30, short, &[]), (31, short, &["known"])];
        plays(&mut planner(), &mut node, signal, rounds);

        // Nor is one that says nothing: the pod may not go.
        let mut protected = node.clone();
        protected.pods[1].priority = 2_000_001_000;
        assert_eq!(evicted(&mut planner(), 31, &protected), ["known"]);

        // Nor for so long where the disk is full at once.
        let rounds: &[Round] = &[
            (1, short, &[]),
            (3, short / 2, &[]),
            (4, short / 4, &["known"]),
        ];
        plays(&mut planner(), &mut node, signal, rounds);
    }
}

// R12: on a cluster the kubelet starts a static pod again, with all its files: on a disk its end brings nothing.
#[test]
fn a_static_pod_that_keeps_its_files_does_not_go_for_them() {
    for (keeps, expected) in [(true, "other"), (false, "static")] {
        let config = json!({
            "evictionHard": {"nodefs.available": "1Gi", "memory.available": "1Gi"},
        });
        let planner = || {
            Planner::new(PlannerSettings {
                has_api_server: keeps,
                ..settings(Mode::Evictd, config.clone())
            })
        };
        let limited = |pod: &mut Pod| pod.storage_limit = Some(Quantity::bytes(100 * MI));
        let mut node = Node::with_memory(4000, 1)
            .pod("static", 300)
            .that(limited)
            .that(|pod| pod.is_static = true)
            .pod("other", 200)
            .that(limited);
        let fill = |node: &mut Node, name: &str, used: u64| {
            node.usages.get_mut(name).unwrap().ephemeral_storage = Some(used * MI);
            node.logs(name, used * MI, 0);
        };
        // Under pressure.
        fill(&mut node, "static", 90);
        fill(&mut node, "other", 80);
        node.observe(Signal::NodeFsAvailable, 1000 * MI as i64, 1);
        assert_eq!(evicted(&mut planner(), 1, &node), [expected]);
        // Above limits of their own.
        for name in ["static", "other"] {
            fill(&mut node, name, 150);
        }
        node.observe(Signal::NodeFsAvailable, 4 << 30, 1);
        let over = step(&mut planner(), 1, &node).evictions;
        let expected: &[&str] = match keeps {
            true => &["other"],
            false => &["static", "other"],
        };
        assert_eq!(names(&over), expected);
        // Killed for memory it gives back its memory, and no files that others would wait for.
        fill(&mut node, "other", 80);
        node.observe(Signal::MemoryAvailable, 900 * MI as i64, 1);
        node.observe(Signal::NodeFsAvailable, 1000 * MI as i64, 1);
        let (round, next) = reclaimed(&mut planner(), 1, &node, &node);
        assert_eq!(names(&round.evictions), ["static"]);
        let waited: &[&str] = if keeps { &["other"] } else { &[] };
        assert_eq!(names(&next), waited);
    }
}

// R12: where an API server is asked, no pod is chosen that it cannot end, and none in place of another one.
#[test]
fn a_soft_threshold_chooses_what_can_be_asked() {
    let config = json!({
        "evictionSoft": {"memory.available": "1Gi"},
        "evictionSoftGracePeriod": {"memory.available": "1ms"},
    });
    for (has_api_server, first, all) in [
        (true, "other", &["other"][..]),
        (false, "static", &["static", "nameless", "other"]),
    ] {
        let mut planner = Planner::new(PlannerSettings {
            has_api_server,
            ..settings(Mode::Evictd, config.clone())
        });
        let mut node = Node::with_memory(900, 1)
            .pod("static", 300)
            .that(|pod| pod.is_static = true)
            .pod("nameless", 200)
            .that(|pod| pod.namespace.clear())
            .pod("other", 100);
        step(&mut planner, 1, &node);
        node.observe(Signal::MemoryAvailable, 900 * MI as i64, 2);
        let chosen = step(&mut planner, 2, &node).evictions;
        assert_eq!(names(&chosen), [first]);
        assert_eq!(
            names(&planner.alternatives(node.snapshot(), &chosen[0])),
            all
        );
    }
}
