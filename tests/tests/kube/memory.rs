//! What a full node costs the agent in memory of its own.

use evictd_tests::{apiserver::pod, prelude::*, text::number};

/// Pods of a full node: the kubelet's default maximum.
const PODS: u64 = 110;
/// The most that they may cost, in KiB: descriptors are the kernel's, and of an object only what is needed is kept.
const COST_KIB: u64 = 6 << 10;
const SETTLED: Duration = Duration::from_secs(2);

/// Resident memory in KiB (`VmRSS`) of an agent that has seen so many pods twice: in a list, and each of them changed.
fn resident_with(pods: u64) -> u64 {
    let member = ClusterNode::new("full", 256).unwrap();
    for n in 0..pods {
        let uid = ClusterNode::uid(n);
        let mut pod = pod(&format!("p{n}"), &uid, "Burstable", 0, Some("1Mi"));
        // As much as others usually write there.
        pod["metadata"]["annotations"] = json!({"last": "x".repeat(2000)});
        pod["metadata"]["managedFields"] = json!([{"fieldsV1": {"f": "x".repeat(4000)}}]);
        member.server.state().put_pod(pod);
        for container in ["c1", "c2"] {
            let path = format!("kubepods/burstable/pod{uid}/{container}");
            member.cgroup.child(&path).unwrap();
        }
    }
    let agent = member.start().unwrap();
    // The agent keeps what the API server has told of pods.
    let knows = |what: &str| {
        let is_known = |m: &ClusterNode| {
            let kept = fs::read_to_string(m.dir().join("state/cluster.jsonl"));
            let kept = kept.unwrap_or_default();
            kept.lines().filter(|line| line.contains(what)).count() as u64 >= pods
        };
        assert!(member.wait(SOON, is_known), "{what}");
    };
    knows("{\"pod\":");
    let state = member.server.state();
    let known: Vec<_> = state.all_of(Collection::Pods).cloned().collect();
    drop(state);
    for mut pod in known {
        pod["metadata"]["labels"]["changed"] = "yes".into();
        member.server.state().put_pod(pod);
    }
    knows("\"changed\":\"yes\"");
    std::thread::sleep(SETTLED);
    let status = fs::read_to_string(format!("/proc/{}/status", agent.pid())).unwrap();
    number(&status, "VmRSS:").unwrap()
}

#[test]
fn a_full_node_costs_little() {
    skip_if!(not_root());
    let (empty, full) = (resident_with(0), resident_with(PODS));
    let found = format!("{empty} KiB without pods, {full} KiB with {PODS}");
    println!("{found}");
    assert!(full < empty + COST_KIB, "{found}");
}
