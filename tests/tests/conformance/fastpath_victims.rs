//! What the fast path kills counts for everything else that is short, as what the manager kills does, and goes once.

use evictd_engine::{
    Planner, RestoredState, Timing,
    pace::{Decision, PaceInputs, PaceProfile},
    record::KillOutcome,
};
use evictd_tests::{
    engine::{
        MI, Node, Round, SECOND, decided, evicted, fastpath_kills, killed_for_memory, planner,
        plays,
    },
    prelude::*,
};

/// Hard thresholds on everything and a soft one on memory, which is met at once.
fn everything() -> Value {
    json!({
        "evictionHard": {"pid.available": "1000", "nodefs.available": "1Gi", "nodefs.inodesFree": "1000"},
        "evictionSoft": {"memory.available": "1Gi"},
        "evictionSoftGracePeriod": {"memory.available": "1ms"},
    })
}

/// A bomb, which is larger in everything, and an innocent pod. Plenty is left of all.
fn bomb_and_innocent() -> Node {
    let mut node = Node::default().pod("bomb", 500).pod("innocent", 100);
    for (name, times) in [("bomb", 5), ("innocent", 1)] {
        node.processes(name, 100 * times);
        node.logs(name, 100 * MI * times, 100 * times);
    }
    for (signal, plenty) in all_short(0).map(|(signal, _)| (signal, 4 << 30)) {
        node.observe(signal, plenty, 1);
    }
    node
}

/// Each signal with less than its threshold, by 50 or less.
fn all_short(more: i64) -> [(Signal, i64); 4] {
    let (bytes, count) = ((974 + more) * MI as i64, 950 + more);
    [
        (Signal::MemoryAvailable, bytes),
        (Signal::PidAvailable, count),
        (Signal::NodeFsAvailable, bytes),
        (Signal::NodeFsInodesFree, count),
    ]
}

/// A planner that is told of a kill of the bomb for memory when one signal is short.
fn told(node: &mut Node, signal: Signal, available: i64) -> Planner {
    let mut planner = planner(Mode::Evictd, everything());
    node.observe(signal, available, 2);
    fastpath_kills(&mut planner, 2, node, "bomb");
    planner
}

// R43: zombies hold their numbers, and an emptyDir waits for the kubelet; no other pod goes for them.
#[test]
fn what_a_victim_of_the_fast_path_leaves_behind_is_still_to_come() {
    for (signal, available) in all_short(0).into_iter().skip(1) {
        let patience = if signal == Signal::PidAvailable {
            10
        } else {
            30
        };
        let mut node = bomb_and_innocent();
        let mut planner = told(&mut node, signal, available);
        node.pods.remove(0);
        // A part of it comes; the rest alone is waited for.
        let part = all_short(25).into_iter().find(|(s, _)| *s == signal);
        let part = part.expect("a signal").1;
        let rounds: &[Round] = &[
            (3, available, &[]),
            (4, part, &[]),
            (1 + patience, part, &[]),
            (4 + patience, part, &["innocent"]),
        ];
        plays(&mut planner, &mut node, signal, rounds);
    }
}

// R43: it still dies, and what has ended of it is counted nowhere until it is reaped.
#[test]
fn a_victim_of_the_fast_path_that_still_dies_counts() {
    for (signal, available) in all_short(0) {
        let mut node = bomb_and_innocent();
        let mut planner = told(&mut node, signal, available);
        if signal == Signal::PidAvailable {
            node.processes("bomb", 1);
        }
        plays(&mut planner, &mut node, signal, &[(3, available, &[])]);
    }
}

// R43: stuck, it is not taken again by whatever is short, nor for its own limit; the next one goes.
#[test]
fn a_victim_of_the_fast_path_goes_once() {
    for (signal, available) in all_short(0) {
        let mut node = bomb_and_innocent();
        let mut planner = told(&mut node, signal, available);
        let rounds: &[Round] = &[
            (3, available, &[]),
            (50, available, &["innocent"]),
            (100, available, &[]),
        ];
        plays(&mut planner, &mut node, signal, rounds);
    }
    let mut node = bomb_and_innocent();
    let mut planner = told(&mut node, Signal::MemoryAvailable, 4 << 30);
    node.empty_dir("bomb", MI, 2 * MI);
    assert_eq!(evicted(&mut planner, 3, &node), [""; 0]);
    // Should the kubelet start it again, it is another one.
    let bomb = node.pods.remove(0);
    assert_eq!(evicted(&mut planner, 4, &node), [""; 0]);
    node.pods.insert(0, bomb);
    assert_eq!(evicted(&mut planner, 5, &node), ["bomb"]);
}

// R43: its files stay.
#[test]
fn what_the_fast_path_may_not_kill_is_not_waited_for() {
    for (signal, available) in all_short(0).into_iter().skip(2) {
        let mut node = bomb_and_innocent();
        let mut planner = told(&mut node, signal, available);
        planner.note_outcome("bomb", KillOutcome::Refused(1));
        let rounds: &[Round] = &[(3, available, &["innocent"]), (60, available, &[])];
        plays(&mut planner, &mut node, signal, rounds);
    }
}

// R43: its kill is seen before it is told of, and what has come meanwhile is not expected twice.
#[test]
fn a_kill_counts_as_soon_as_it_is_seen() {
    let mut node = bomb_and_innocent();
    let mut planner = planner(Mode::Evictd, everything());
    let signal = Signal::PidAvailable;
    node.observe(signal, 500, 2);
    planner.note_fastpath_kill(2 * SECOND, node.snapshot(), "bomb");
    assert_eq!(evicted(&mut planner, 2, &node), [""; 0], "it is awaited");
    // All of it has come, and others need more.
    node.observe(signal, 999, 3);
    fastpath_kills(&mut planner, 3, &node, "bomb");
    node.pods.remove(0);
    assert_eq!(evicted(&mut planner, 3, &node), [""; 0], "one is missing");
    node.observe(signal, 998, 4);
    assert_eq!(evicted(&mut planner, 4, &node), [""; 0], "two are");
    node.observe(signal, 900, 13);
    assert_eq!(evicted(&mut planner, 13, &node), ["innocent"]);
}

// R43: an agent that was started again decides as the one before.
#[test]
fn the_next_agent_knows_the_same_victims() {
    let decide = |planner: &mut Planner| {
        let mut node = bomb_and_innocent();
        let mut all = Vec::new();
        for second in [3, 8, 14, 40] {
            for (signal, available) in all_short(0) {
                node.observe(signal, available, second);
            }
            all.push(evicted(planner, second, &node));
        }
        all
    };
    let mut live = told(&mut bomb_and_innocent(), Signal::PidAvailable, 950);
    let mut restarted = planner(Mode::Evictd, everything());
    restarted.restore(
        2 * SECOND,
        &RestoredState {
            victims: vec![killed_for_memory("bomb", 2 * SECOND)],
            last: vec![(Signal::MemoryAvailable, 2 * SECOND)],
            ..RestoredState::default()
        },
    );
    let decided = decide(&mut live);
    assert_eq!(decided, decide(&mut restarted));
    assert!(decided.concat().iter().all(|name| name == "innocent"));
    // It would be asked for memory at the look at which it goes for process ids.
    assert_eq!(decided.concat().len(), 1);
}

// R49: what an eviction is decided from says the same again.
#[test]
fn what_a_decision_was_made_from_makes_it_again() {
    for (signal, available) in all_short(0) {
        let mut node = bomb_and_innocent();
        node.observe(signal, available, 2);
        let mut planner = planner(Mode::Evictd, everything());
        // A soft threshold waits for its grace period, process ids until the kubelet has seen it.
        let mut evictions = Vec::new();
        for second in [2, 13] {
            if evictions.is_empty() {
                node.observe(signal, available, second);
                evictions = decided(&mut planner, second, &node);
            }
        }
        let [eviction] = &evictions[..] else {
            panic!("{signal}: {evictions:?}");
        };
        let Timing {
            urgency,
            pace_inputs,
            ..
        } = **eviction.timing.as_ref().expect("a time");
        let text = serde_json::to_string(&pace_inputs).expect("JSON");
        let read: PaceInputs = serde_json::from_str(&text).expect("the same");
        assert_eq!(read, pace_inputs);
        let Decision::Evict { urgency: again } = read.decide() else {
            panic!("{signal}: {pace_inputs:?}");
        };
        let is_soft = signal == Signal::MemoryAvailable;
        let rule = match signal {
            Signal::MemoryAvailable => PaceProfile::Soft,
            Signal::PidAvailable => PaceProfile::Pids,
            _ => PaceProfile::Immediate,
        };
        assert_eq!(
            (again, pace_inputs.profile, eviction.is_soft),
            (urgency, rule, is_soft)
        );
    }
}

#[test]
fn a_pod_that_is_not_known_spares_none() {
    let mut node = bomb_and_innocent();
    let mut planner = told(&mut node, Signal::PidAvailable, 950);
    node.pods.remove(0);
    node = node.pod("late", 0);
    node.processes("late", 1);
    node = node.that(|pod| pod.priority = -1);
    fastpath_kills(&mut planner, 3, &node, "gone");
    let rounds: &[Round] = &[(39, 300, &[]), (50, 300, &["late"])];
    plays(&mut planner, &mut node, Signal::PidAvailable, rounds);
}
