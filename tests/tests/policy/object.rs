//! Gates on an object of the cluster, through a running agent: while the answer is no, unknown or too old a pod is denied under
//! real pressure, and when it is yes the same pod goes (R38).

use evictd_tests::prelude::*;

/// Where the gate asks: the object's name is a label of the pod.
const PATH: &str = "/apis/example.org/v1/namespaces/default/clusters/db";

fn cluster(settled: &str) -> Value {
    json!({
        "apiVersion": "example.org/v1",
        "kind": "Cluster",
        "metadata": {"namespace": "default", "name": "db"},
        "status": {"conditions": [
            {"type": "Ready", "status": "True"},
            {"type": "Settled", "status": settled},
        ]},
    })
}

/// A pod that may go while its cluster is settled.
fn gated(name: &str) -> (ClusterNode, PathBuf) {
    let member = ClusterNode::new(name, 256).unwrap();
    // The objects of gates are granted by a role of the operator's.
    member.server.state().is_agents_alone = false;
    let db = member.best_effort("db", 1);
    let gate = json!({
        "name": "settled",
        "interval": "100ms",
        "maxAge": "1s",
        "timeout": "500ms",
        "object": {"apiVersion": "example.org/v1", "resource": "clusters", "name": "pod.labels.app"},
        "check": "status == 200 && answer.status.conditions.exists(c, c.type == 'Settled' && c.status == 'True')",
    });
    when(&member, "gates.settled", gate);
    (member, db)
}

/// The pod may go while the condition over this gate holds.
fn when(member: &ClusterNode, condition: &str, gate: Value) {
    let rule = json!({"name": "db", "evict": "When", "when": condition});
    let spec =
        json!({"selector": {"matchLabels": {"app": "db"}}, "gates": [gate], "rules": [rule]});
    member.server.state().put_policy("db", spec);
}

fn answers(member: &ClusterNode, path: &str, cluster: Option<Value>) {
    let mut state = member.server.state();
    state.faults.clear();
    match cluster {
        Some(cluster) => state.objects.insert(path.to_owned(), cluster),
        None => state.objects.remove(path),
    };
}

fn fails(member: &ClusterNode, what: impl Into<InjectedFault>) {
    let mut state = member.server.state();
    state.fails("GET", "/clusters/db", usize::MAX, what);
}

fn explained(member: &ClusterNode) -> Value {
    super::explained(member.dir(), "db")
}

fn gate_of(member: &ClusterNode) -> Value {
    explained(member)["rules"][0]["gates"][0].clone()
}

/// The node is short, the pod may not go, the agent has had time to act, and the pod is there.
fn spared(member: &ClusterNode, hog: &mut Hog, why: &str) {
    assert!(member.cgroup.holds(195), "{why}");
    assert_eq!(explained(member)["mayGo"], false, "{why}");
    std::thread::sleep(Duration::from_millis(500));
    assert!(hog.is_alive() && member.evictions().is_empty(), "{why}");
}

#[test]
fn no_is_no_and_so_is_what_cannot_be_known_until_a_yes_comes() {
    let (member, db) = as_root!(gated("objno"));
    answers(&member, PATH, Some(cluster("False")));
    let _agent = member.start().unwrap();
    let mut hog = Hog::start(&db, &["--mib", "200"]).unwrap();
    assert!(member.wait(SOON, |m| gate_of(m)["answer"] == false));
    spared(&member, &mut hog, "the condition is false");

    fails(&member, 403);
    assert!(
        member.wait(SOON, |m| {
            let gate = gate_of(m);
            gate["answer"].is_null() && gate["error"].to_string().contains("orbidden")
        }),
        "{}",
        gate_of(&member)
    );
    assert_eq!(gate_of(&member)["onUnknown"], "deny");
    spared(&member, &mut hog, "the right to ask is missing");

    answers(&member, PATH, None);
    assert!(member.wait(SOON, |m| gate_of(m)["answer"] == false));
    spared(
        &member,
        &mut hog,
        "the object is gone: an answer that the check refuses",
    );

    // An object of an unexpected form is no yes.
    answers(&member, PATH, Some(json!({"kind": "Cluster"})));
    assert!(member.wait(SOON, |m| gate_of(m)["answer"].is_null()));
    spared(&member, &mut hog, "the object has no conditions");

    answers(&member, PATH, Some(cluster("True")));
    hog.killed();
    assert!(member.wait(SOON, |m| m.evictions().len() == 1));
}

/// Another pod's condition decides: this one may go only while its peer is ready.
#[test]
fn another_pods_condition_decides() {
    let (member, db) = as_root!(gated("objpeer"));
    let gate = json!({
        "name": "peer",
        "interval": "100ms",
        "object": {"apiVersion": "v1", "resource": "pods", "name": "pod.labels.app + '-1'"},
        "check": "status == 200 && answer.status.conditions.exists(c, c.type == 'Ready' && c.status == 'True')",
    });
    when(&member, "gates.peer", gate);
    let peer =
        |ready: &str| json!({"status": {"conditions": [{"type": "Ready", "status": ready}]}});
    let path = "/api/v1/namespaces/default/pods/db-1";
    answers(&member, path, Some(peer("False")));
    let _agent = member.start().unwrap();
    let mut hog = Hog::start(&db, &["--mib", "200"]).unwrap();
    assert!(member.wait(SOON, |m| gate_of(m)["answer"] == false));
    spared(&member, &mut hog, "the peer is not ready");
    answers(&member, path, Some(peer("True")));
    hog.killed();
}

#[test]
fn a_yes_that_is_too_old_is_none() {
    let (member, db) = as_root!(gated("objold"));
    answers(&member, PATH, Some(cluster("True")));
    let _agent = member.start().unwrap();
    assert!(member.wait(SOON, |m| explained(m)["mayGo"] == true));
    assert_eq!(gate_of(&member)["answer"], true);
    fails(&member, InjectedFault::Hang);
    assert!(member.wait(SOON, |m| explained(m)["mayGo"] == false));
    let mut hog = Hog::start(&db, &["--mib", "200"]).unwrap();
    spared(&member, &mut hog, "the last yes has expired");
    let gate = gate_of(&member);
    assert!(
        gate["answer"].is_null() && gate["error"].is_string(),
        "{gate}"
    );
    answers(&member, PATH, Some(cluster("True")));
    hog.killed();
}
