//! What the status of a policy says that takes a pod to know: conflicts, and whether it selects a pod. Agents on many
//! nodes see different pods and must end with the same words (R38).

use evictd_node::pods::table::PodEntry;
use evictd_policy::PolicyStore;
use evictd_tests::{
    policy_fixture::labels,
    prelude::*,
    watch_fixture::{WatchFixture, store},
};

const SOON: Duration = Duration::from_millis(300);

fn by_app(app: &str, evict: &str) -> Value {
    json!({"selector": {"matchLabels": {"app": app}}, "rules": [{"name": "r", "evict": evict}]})
}

fn condition(f: &WatchFixture, name: &str, of_type: &str) -> Value {
    f.server.state().condition(name, of_type)
}

/// Shows one pod with these labels to an agent, or none.
fn present(store: &PolicyStore, cgroup: &TestCgroup, given: &[(&str, &str)]) {
    let pod = Pod {
        uid: "uid-of-pod".into(),
        namespace: "default".into(),
        name: "pod".into(),
        labels: labels(given),
        ..Pod::default()
    };
    let dir = cgroup.child("pod").unwrap();
    let entry = PodEntry::open(pod, &dir, Mode::Evictd).unwrap();
    store.evaluator().set_pods(&[Arc::new(entry)]);
}

/// Twenty agents, one of which has a pod: no other one takes back what that one has seen.
#[test]
fn one_agent_that_sees_a_pod_is_enough() {
    let cgroup = as_root!(TestCgroup::new("psselects", 64 << 20).unwrap());
    let f = WatchFixture::new(|_| {}).unwrap();
    for _ in 0..19 {
        f.policies(&store(), SOON);
    }
    f.lists(|count| count >= 38);
    f.server.state().put_policy("db", by_app("db", "Never"));
    f.server.state().put_policy("slip", by_app("bd", "Never"));
    let selects = |f: &WatchFixture, name: &str| condition(f, name, "SelectsPods");
    let says = |f: &WatchFixture, name: &str, status: &str| selects(f, name)["status"] == status;
    assert!(f.wait(|f| says(f, "db", "Unknown") && says(f, "slip", "Unknown")));
    assert_eq!(selects(&f, "slip")["reason"], "NoPodSeen");
    present(&f.store, &cgroup, &[("app", "db")]);
    f.policies(&f.store, SOON);
    assert!(f.wait(|f| says(f, "db", "True")));
    assert_eq!(selects(&f, "db")["reason"], "PodSeen");
    // A list anew for all: an agent that had something to say about these two would say it now.
    let about = |f: &WatchFixture, name: &str| {
        let path = format!("/evictionpolicies/{name}/");
        f.server.state().count("PATCH", &path)
    };
    let before = (about(&f, "db"), about(&f, "slip"));
    f.server.state().expire();
    f.lists(|count| count >= 80);
    f.server.state().put_policy("last", by_app("x", "Never"));
    assert!(f.wait(|f| says(f, "last", "Unknown")));
    assert_eq!((about(&f, "db"), about(&f, "slip")), before);
    assert!(says(&f, "db", "True") && says(&f, "slip", "Unknown"));
    // Of another version it is not known yet.
    f.server.state().put_policy("db", by_app("dbs", "Never"));
    assert!(f.wait(|f| says(f, "db", "Unknown") && selects(f, "db")["observedGeneration"] == 2));
    assert_eq!(f.server.state().accepted("db")["status"], "True");
}

/// Two policies say different things about a pod of one node: both statuses tell where, until one of them is changed.
#[test]
fn a_contradiction_stands_in_both_statuses_until_it_is_over() {
    let cgroup = as_root!(TestCgroup::new("pscontra", 64 << 20).unwrap());
    let f = WatchFixture::new(|server| {
        let member = json!({"name": "member", "selector": {"matchLabels": {"role": "member"}}, "evict": "Always"});
        let rest = json!({"name": "rest", "evict": "Never"});
        let db = json!({"selector": {"matchLabels": {"app": "db"}}, "rules": [member, rest]});
        server.state().put_policy("db", db);
    })
    .unwrap();
    for _ in 0..5 {
        f.policies(&store(), SOON);
    }
    f.policies(&f.store, SOON);
    let told = |f: &WatchFixture, name: &str| condition(f, name, "Contradicts");
    let because = |f: &WatchFixture, name: &str, reason: &str| told(f, name)["reason"] == reason;
    assert!(f.wait(|f| because(f, "db", "Consistent")));
    // It can contradict, and no agent has seen such a pod.
    let all = json!({"rules": [{"name": "r", "evict": "Always"}]});
    f.server.state().put_policy("all", all.clone());
    assert!(f.wait(|f| because(f, "db", "NoPodSeen") && because(f, "all", "NoPodSeen")));
    assert_eq!(told(&f, "db")["status"], "False");
    present(&f.store, &cgroup, &[("app", "db")]);
    assert!(f.wait(|f| because(f, "db", "PodSeen") && because(f, "all", "PodSeen")));
    let db = told(&f, "db");
    assert_eq!(
        (&db["status"], &db["observedGeneration"]),
        (&json!("True"), &json!(1))
    );
    assert_eq!(
        db["message"],
        "spec.rules[1] (rest) says Never, policy all (generation 1) in spec.rules[0] (r) says Always with order 0, \
         about pods that both select, with the same precedence 0: the more sparing one decides"
    );
    let message = told(&f, "all")["message"].to_string();
    let of_db = "policy db (generation 1) in spec.rules[1] (rest)";
    has(&message, &["spec.rules[0] (r) says Always", of_db]);
    assert_eq!(
        f.server.state().accepted("db")["status"],
        "True",
        "it can be used all the same"
    );
    // Another precedence decides, and both hear of it.
    let mut higher = all.clone();
    higher["precedence"] = 1.into();
    f.server.state().put_policy("all", higher);
    assert!(f.wait(|f| because(f, "db", "Consistent") && because(f, "all", "Consistent")));
    // It comes back, is seen again, and ends with the other policy.
    f.server.state().put_policy("all", all);
    assert!(f.wait(|f| because(f, "db", "PodSeen") && because(f, "all", "PodSeen")));
    f.server.state().remove(Collection::Policies, "", "all");
    assert!(f.wait(|f| because(f, "db", "Consistent")));
    // A version that cannot be used is compared with no other.
    let bad = json!({"rules": [{"name": "r", "evict": "Sometimes"}]});
    f.server.state().put_policy("all", bad);
    f.refuses("all");
    assert!(told(&f, "all").is_null() && because(&f, "db", "Consistent"));
}
