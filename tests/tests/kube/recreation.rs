//! A pod that is evicted, comes back to the same node, and is evicted again: seen, told, and damped for longer each time
//! (R17, R29).

use evictd_tests::{
    apiserver::{self, State},
    prelude::*,
};

/// A node whose taint is gone after a second without a recreation.
fn node(name: &str) -> ClusterNode {
    let mut member = ClusterNode::new(name, 256).unwrap();
    member.config["evictionPressureTransitionPeriod"] = "1s".into();
    member.config["cluster"]["taint"] = json!({"setAfter": "0s"});
    member
}

/// Another pod of the same DaemonSet; returns the cgroup of its container.
fn replacement(member: &ClusterNode, number: u64) -> PathBuf {
    let uid = ClusterNode::uid(number);
    let mut pod = apiserver::pod(&format!("wild-{number}"), &uid, "BestEffort", 0, None);
    let owner = json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "wild", "uid": "ds", "controller": true});
    pod["metadata"]["ownerReferences"] = json!([owner]);
    let seconds = jiff::Timestamp::now().as_second();
    let created = jiff::Timestamp::from_second(seconds).unwrap().to_string();
    pod["metadata"]["creationTimestamp"] = created.into();
    member.server.state().put_pod(pod);
    member.cgroup_of(&uid, "BestEffort").unwrap()
}

fn has_taint(state: &State) -> bool {
    state.taints().contains(&"evictd.dev/memory-pressure")
}

#[test]
fn a_pod_that_comes_back_at_once_holds_the_condition_for_longer() {
    let mut member = as_root!(node("comeback"));
    let address = listen(&mut member.config, "metricsAddress");
    let recreations = |count: usize| {
        let line = format!("evictd_recreations_total {count}");
        until(SOON, || shows(&address, &line))
    };
    let mut dir = replacement(&member, 1);
    let _agent = member.start().unwrap();
    for number in 1..=3 {
        // No pod has come back before the second one.
        assert!(recreations(number - 1), "{number}");
        Hog::until_killed(&dir, &["--mib", "1024"]);
        assert_eq!(member.outcomes(number).len(), number);
        if number == 1 {
            let open = member.server.wait(SOON, |s| !has_taint(s));
            assert!(open, "nobody has come back");
        } else {
            // A minute for the first recreation, two for the second.
            std::thread::sleep(Duration::from_secs(4));
            let shut = has_taint(&member.server.state());
            assert!(shut, "it is held for longer than the period");
        }
        dir = replacement(&member, number as u64 + 1);
    }
    assert!(recreations(3));
}

/// What the journal says of recreations: how often, and for how long they are held.
fn recreations(member: &ClusterNode) -> Vec<(u32, u64)> {
    records_of!(member.records(), Record::Recreated(recreation) => (recreation.count, recreation.hold_seconds))
}

// R17, R29
#[test]
fn recreations_are_held_on_when_the_agent_is_killed() {
    let member = as_root!(node("comekill"));
    let mut dir = replacement(&member, 1);
    let mut agent = member.start().unwrap();
    for number in 1..=4 {
        Hog::until_killed(&dir, &["--mib", "1024"]);
        assert_eq!(member.outcomes(number).len(), number);
        // The third pod comes while no agent runs, and its name later than its cgroup.
        agent.kill();
        if number == 3 {
            dir = replacement(&member, number as u64 + 1);
            let slow = InjectedFault::Slow(Duration::from_secs(3));
            member.server.fails("GET", "/api/v1/pods", 1, slow);
        }
        agent = member.start().unwrap();
        if number > 1 {
            // Longer than what an earlier agent has left would stay by itself.
            std::thread::sleep(Duration::from_secs(5));
            assert!(has_taint(&member.server.state()), "{number}");
        }
        if number != 3 {
            dir = replacement(&member, number as u64 + 1);
        }
        assert!(member.wait(SOON, |m| recreations(m).len() == number));
    }
    let doubled = [(1, 60), (2, 120), (3, 240), (4, 480)];
    assert_eq!(recreations(&member), doubled);
}
