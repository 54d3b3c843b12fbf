//! Shadow mode: what would be done is told and written down, and nothing is changed, neither on the node nor in the cluster.

use evictd_kube::policy_status::SPREAD;
use evictd_store::incident::files;
use evictd_tests::{
    apiserver::{self, State},
    prelude::*,
};

fn events(state: &State, reason: &str) -> usize {
    let events = state.all("POST", "/events");
    events.filter(|e| e.body["reason"] == reason).count()
}

/// What was sent that is neither a question nor an Event.
fn writes(state: &State) -> Vec<String> {
    let methods = ["POST", "PUT", "PATCH", "DELETE"];
    let sent = methods.iter().flat_map(|method| state.all(method, "/"));
    let is_write = |path: &str| !path.contains("/events") && !path.ends_with("accessreviews");
    sent.filter(|r| is_write(&r.path))
        .map(|r| format!("{} {}", r.method, r.path))
        .collect()
}

// R47
#[test]
fn shadow_mode_sends_nothing_but_events() {
    let mut member = as_root!(ClusterNode::new("shadow", 256).unwrap());
    member.config["shadow"] = true.into();
    member.config["cluster"]["taint"] = json!({"setAfter": "0s"});
    let wild = member.best_effort("wild", 1);
    let policy = json!({"rules": [{"name": "r", "evict": "Always"}]});
    member.server.state().put_policy("all", policy);
    let agent = member.start().unwrap();
    let mut hog = Hog::start(&wild, &["--mib", "210"]).unwrap();
    let told = member.server.wait(SOON, |s| {
        events(s, "WouldEvict") == 1 && events(s, "WouldSetConditions") > 0
    });
    assert!(told);
    assert!(member.wait(SOON, |m| m.reported().len() == 1));
    assert!(hog.is_alive(), "nothing was killed");
    // The kubelet finds the shortage too.
    let mut evicted = apiserver::pod("other", &ClusterNode::uid(2), "BestEffort", 0, None);
    evicted["status"] = json!({"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."});
    member.server.state().put_pod(evicted);
    let written =
        |m: &ClusterNode| records_of!(m.records(), Record::KubeletEvicted(e) if e.name == "other");
    assert!(member.wait(SOON, |m| !written(m).is_empty()));
    // By then the turn of this agent to write the policy's status would have come.
    std::thread::sleep(SPREAD + Duration::from_secs(1));
    drop(hog);
    drop(agent);
    let state = member.server.state();
    assert_eq!(writes(&state), [""; 0]);
    assert_eq!(state.policy("all")["status"], Value::Null);
    drop(state);
    assert!(wild.exists(), "the pod's cgroup is there");

    let report = ["report", "--shadow", "-o", "json", "--since", "1h"];
    let output = agent::evictd(&report, &[("--state-dir", &member.dir().join("state"))]);
    let compared = agent::json(&output);
    let decision = &compared["wouldEvict"][0];
    assert_eq!(decision["pod"], "default/wild");
    assert_eq!(decision["kubelet"]["pod"], "default/other");
    assert_eq!(compared["kubeletActed"], 1);
    assert_eq!(compared["nothingFollowed"], 0);
    assert!(compared["nodeChanges"].as_u64() > Some(0), "{compared}");
}

/// The API server cannot end a static pod: it is passed over, and the incident says so.
// R49
#[test]
fn a_static_pod_is_not_held_against_the_pod_that_would_be_asked() {
    let mut member = as_root!(ClusterNode::new("softshadow", 256).unwrap());
    member.config["shadow"] = true.into();
    set_soft(&mut member.config, "120Mi");
    let (fixed, wild) = (member.static_pod(2), member.best_effort("wild", 1));
    let agent = member.start().unwrap();
    let _fixed = Hog::start(&fixed, &["--mib", "90"]).unwrap();
    let _wild = Hog::start(&wild, &["--mib", "60"]).unwrap();
    assert!(member.wait(SOON, |m| requests(m.records()).len() == 1));
    let asked = requests(member.records()).remove(0);
    assert_eq!(asked.name, "wild");
    let said = |s: &State| events(s, "WouldEvict") == 1;
    assert!(member.server.wait(SOON, said));
    drop(agent);
    let event = member
        .server
        .state()
        .events_of("WouldEvict", "Pod")
        .remove(0);
    assert_eq!(event["regarding"]["name"], "wild");
    has(&event["note"].to_string(), &["It would have 1 s to end."]);
    let incident = files::read(&member.dir().join("state"), &asked.id).unwrap();
    let incident = incident.expect("an incident");
    let shown: Vec<_> = incident
        .pods
        .iter()
        .map(|pod| (&*pod.pod, pod.protected))
        .collect();
    assert_eq!(
        shown,
        [("default/static-node-1", true), ("default/wild", false)]
    );
    assert_eq!(incident.went_first(), Some(true));
}
