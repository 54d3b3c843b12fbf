//! What a running agent shows and writes: `/metrics`, names in the state directory, `cluster.jsonl`.

use evictd_policy::PAUSED;
use evictd_tests::prelude::*;

use super::{
    check,
    shown::{families, series},
};

/// A pod with all that is kept of one.
fn pod(name: &str, uid: &str) -> Value {
    json!({
        "metadata": {
            "name": name, "namespace": "shop", "uid": uid,
            "labels": {"app": "db"}, "annotations": {"a": "b"},
            "creationTimestamp": "2026-11-21T02:51:55Z",
            "ownerReferences": [{"kind": "StatefulSet", "name": "db", "uid": "o1", "controller": true}],
        },
        "spec": {
            "nodeName": NODE,
            "priority": 7,
            "terminationGracePeriodSeconds": 3,
            "containers": [{"name": "c", "resources": {
                "requests": {"memory": "100Mi", "ephemeral-storage": "1.5G"},
                "limits": {"memory": "200Mi", "ephemeral-storage": "2G"},
            }}],
            "initContainers": [{"name": "i"}],
            "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "10Mi"}}],
        },
        "status": {
            "phase": "Running", "podIP": "10.0.0.7", "qosClass": "Burstable",
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    })
}

#[test]
fn a_daemon_shows_and_writes_as_ever() {
    let mut member = with_bpf!(ClusterNode::new("golden", 256).unwrap());
    let uid = ClusterNode::uid(1);
    {
        let mut state = member.server.state();
        state.put_pod(pod("db-0", &uid));
        let shop = json!({"metadata": {"name": "shop", "labels": {"tier": "gold"}}});
        state.put(Collection::Namespaces, shop);
        let spec = json!({
            "namespaceSelector": {"matchLabels": {"tier": "gold"}},
            "rules": [{"name": "db", "evict": "Never"}],
        });
        state.put_policy("db", spec);
        state.annotate_node(PAUSED, Some("true"));
    }
    member.cgroup_of(&uid, "Burstable").unwrap();
    let address = listen(&mut member.config, "metricsAddress");
    member.config["cluster"]["fleetBrake"] = json!({"configMap": "evictd/evictd-fleet"});
    let state = member.dir().join("state");
    fs::create_dir(&state).unwrap();
    fs::write(state.join("pause"), "").unwrap();
    fs::write(state.join("policies.asked"), "").unwrap();
    let mut agent = member.start().unwrap();
    let wanted = ["journal.jsonl", "cluster.jsonl", "policies.json"];
    let is_there = |name: &&str| state.join(name).exists();
    let written = until(SOON, || wanted.iter().all(is_there));
    assert!(written);
    let asked = until(SOON, || !state.join("policies.asked").exists());
    assert!(asked, "policies.asked is taken away when it is answered");
    let has_looked = || {
        metrics(&address).is_ok_and(|text| {
            ["signal_available{", "policy_pods{"]
                .iter()
                .all(|name| text.contains(name))
        })
    };
    assert!(until(SOON, has_looked));
    let text = metrics(&address).unwrap();
    let (_, text) = text.split_once("\r\n\r\n").unwrap();
    check("metrics.txt", &families(text));
    check("metrics-series.txt", &series(text));

    let remembered = || fs::read_to_string(state.join("cluster.jsonl")).unwrap();
    let lines = ["version", "paused", "policy", "namespace", "pod", "end"];
    let is_whole = || {
        let text = remembered();
        lines
            .iter()
            .all(|line| text.contains(&format!("{{\"{line}\":")))
            && text.contains("policiesKnown")
    };
    assert!(until(SOON, is_whole), "{}", remembered());
    check("cluster.jsonl", &remembered());
    let by_file = agent.log().contains("by=\"file\"") || agent.log().contains("by=file");
    assert!(by_file, "the file `pause` pauses: {}", agent.log());
    assert_eq!(agent.terminate().unwrap(), Some(0));
    let mut names: Vec<String> = fs::read_dir(&state)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort_unstable();
    check("state-directory.txt", &(names.join("\n") + "\n"));
}
