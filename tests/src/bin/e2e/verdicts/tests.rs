use serde_json::{Value, json};

use super::*;
use crate::install::marks_of;

fn event(reason: &str, uid: &str, by: &str) -> Event {
    let event = json!({
        "metadata": {"name": "e"},
        "involvedObject": {"uid": uid},
        "reason": reason,
        "message": "The node was low on resource: memory.",
        "reportingComponent": by,
        "reportingInstance": "n1",
    });
    serde_json::from_value(event).unwrap()
}

fn pod(uid: &str, status: &Value) -> Pod {
    let pod = json!({"metadata": {"name": "p", "uid": uid}, "status": status});
    serde_json::from_value(pod).unwrap()
}

fn running(restarts: i32) -> Value {
    json!({
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [{
            "name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": restarts,
        }],
    })
}

#[test]
fn only_one_event_and_on_the_hog_is_good() {
    let ours = event("Evicted", "hog", "evictd");
    assert!(evicted_events(std::slice::from_ref(&ours), "hog").good);
    // The kubelet was first.
    assert!(!evicted_events(&[event("Evicted", "hog", "kubelet")], "hog").good);
    assert!(!evicted_events(&[event("Evicted", "db", "evictd")], "hog").good);
    assert!(!evicted_events(&[ours, event("Evicted", "db", "evictd")], "hog").good);
    assert!(!evicted_events(&[], "hog").good);
    assert!(node_events(&[event("EvictionThresholdMet", "n", "evictd")]).good);
    assert!(!node_events(&[event("EvictionThresholdMet", "n", "kubelet")]).good);
}

#[test]
fn events_of_other_nodes_and_of_before_do_not_count() {
    let ours = event("Evicted", "hog", "evictd");
    assert!(is_from(&ours, "n1") && !is_from(&ours, "n2"));
    let mut long = ours.clone();
    long.reporting_instance = Some("n".repeat(128));
    assert!(is_from(&long, &"n".repeat(200)));
    let mut old = ours.clone();
    old.metadata.uid = Some("old".to_owned());
    let before = Before {
        events: vec!["old".to_owned()],
        pods: Vec::new(),
        oom_kills: None,
        installed: false,
    };
    assert_eq!(before.only_new(vec![old, ours.clone()]), [ours]);
}

#[test]
fn a_pod_that_was_hit_in_place_of_the_hog_is_found() {
    let killed = |id: &str| {
        let mut status = running(1);
        status["containerStatuses"][0]["lastState"] =
            json!({"terminated": {"exitCode": 137, "reason": "OOMKilled", "containerID": id}});
        pod("a", &status)
    };
    let evicted = |uid| pod(uid, &json!({"phase": "Failed", "reason": "Evicted"}));
    let whole = [pod("a", &running(0))];
    assert!(spared(&whole, &whole).good);
    assert!(spared(&whole, &[]).good, "it may have ended by itself");
    assert!(spared(&whole, &[evicted("hog")]).good);
    assert!(!spared(&whole, &[evicted("a")]).good);
    assert!(spared(&[evicted("a")], &[evicted("a")]).good);
    assert!(!spared(&whole, &[killed("1")]).good);
    assert!(spared(&[killed("1")], &[killed("1")]).good);
    assert!(!spared(&[killed("1")], &[killed("2")]).good);
}

#[test]
fn a_restart_an_oom_kill_and_a_wrong_condition_are_found() {
    let mut seen = Seen::new("hog".to_owned());
    seen.take(&pod("hog", &json!({"phase": "Pending"})));
    assert!(!about_hog(&seen)[0].good);
    seen.take(&pod("hog", &running(0)));
    assert!(about_hog(&seen).iter().all(|v| v.good));
    let mut status = running(1);
    status["containerStatuses"][0]["lastState"] =
        json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}});
    status["conditions"][0] = json!({
        "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "",
    });
    seen.take(&pod("hog", &status));
    // What is over is not forgotten.
    seen.take(&pod("hog", &json!({"phase": "Failed"})));
    let good: Vec<bool> = about_hog(&seen).iter().map(|v| v.good).collect();
    assert_eq!(good, [true, false, false, false]);
}

#[test]
fn a_kubelet_that_was_first_is_found() {
    let mut seen = Seen::new("hog".to_owned());
    seen.take(&pod("hog", &running(0)));
    let message = "The node was low on resource: memory.";
    seen.take(&pod(
        "hog",
        &json!({"phase": "Failed", "reason": "Evicted", "message": message}),
    ));
    let bad: Vec<_> = about_hog(&seen).into_iter().filter(|v| !v.good).collect();
    assert_eq!(bad.len(), 1, "{bad:?}");
    assert!(bad[0].text.contains("the kubelet has evicted it first"));
}

#[test]
fn oom_kills_are_seen_in_events_and_in_the_kernels_counter() {
    assert!(no_oom(&[], Some(3), Some(3)).good);
    assert!(no_oom(&[], None, None).good);
    assert!(!no_oom(&[], Some(3), Some(4)).good);
    assert!(!no_oom(&[event("SystemOOM", "n", "kubelet")], None, None).good);
}

#[test]
fn a_survivor_must_be_the_same_ready_and_never_restarted() {
    let before = pod("a", &running(0));
    assert!(lives(&before, Some(&pod("a", &running(0)))).good);
    assert!(!lives(&before, Some(&pod("b", &running(0)))).good);
    assert!(!lives(&before, Some(&pod("a", &running(1)))).good);
    assert!(!lives(&before, Some(&pod("a", &json!({"phase": "Running"})))).good);
    assert!(!lives(&before, None).good);
}

#[test]
fn taint_and_condition_are_both_needed() {
    let both = [
        "evictd.dev/memory-pressure".to_owned(),
        "EvictdMemoryPressure".to_owned(),
    ];
    assert!(marked(&both, false).good);
    assert!(!marked(&both[..1], false).good);
    assert!(!marked(&both[1..], false).good);
    assert!(!marked(&[], false).good);
    // With `setAfter` of 10s, the default, the hog is gone before that.
    assert!(marked(&both[1..], true).good);
    assert!(!marked(&both[..1], true).good);
    let node = json!({
        "metadata": {"name": "n"},
        "spec": {"taints": [
            {"key": "evictd.dev/memory-pressure", "effect": "NoSchedule"},
            {"key": "node.kubernetes.io/memory-pressure", "effect": "NoSchedule"},
            {"key": "evictd.dev/pool", "effect": "NoSchedule"},
        ]},
        "status": {"conditions": [
            {"type": "Ready", "status": "True"},
            {"type": "EvictdMemoryPressure", "status": "True"},
        ]},
    });
    assert_eq!(marks_of(serde_json::from_value(node).unwrap()), both);
}
