//! PodEvictionPolicies through a running agent: a namespace can have its own pods go earlier, and nothing more than the cluster grants.

use evictd_tests::prelude::*;

/// Two BestEffort pods of the namespace `default`, created just now.
fn two(name: &str) -> (ClusterNode, PathBuf, PathBuf) {
    let mut member = ClusterNode::new(name, 256).unwrap();
    member.config["cluster"]["tenantPolicies"] = json!({"maxGrace": "1h"});
    let big = member.best_effort("big", 1);
    let small = member.best_effort("small", 2);
    (member, big, small)
}

fn tenant(member: &ClusterNode, namespace: &str, app: &str, spec: Value) {
    let mut spec = spec;
    spec["selector"] = json!({"matchLabels": {"app": app}});
    let metadata = json!({"namespace": namespace, "name": app});
    let policy = json!({"metadata": metadata, "spec": spec});
    member
        .server
        .state()
        .put(Collection::TenantPolicies, policy);
}

/// Fills the node: `big` uses most, so that it goes unless a policy says otherwise. Answers with the pods that went.
fn goes(member: &ClusterNode, big: &Path, small: &Path) -> String {
    let first = Hog::start(big, &["--mib", "120"]).unwrap();
    assert!(member.cgroup.holds(115));
    let second = Hog::start(small, &["--mib", "100"]).unwrap();
    assert!(member.wait(SOON, |m| !m.evictions().is_empty()));
    drop((first, second));
    member.evictions().remove(0).name
}

#[test]
fn a_pod_goes_earlier_by_its_own_namespaces_word() {
    let (member, big, small) = as_root!(two("tenantorder"));
    tenant(&member, "default", "small", json!({"order": -10}));
    // Another namespace has no say.
    tenant(&member, "other", "big", json!({"order": -1000}));
    let agent = member.start().unwrap();
    assert!(
        member
            .server
            .wait(SOON, |s| s.count("GET", "/podevictionpolicies") >= 2)
    );
    assert_eq!(goes(&member, &big, &small), "small", "{}", agent.log());
}

#[test]
fn without_the_clusters_consent_they_mean_nothing() {
    let (mut member, big, small) = as_root!(two("tenantoff"));
    member.config["cluster"]["tenantPolicies"] = Value::Null;
    tenant(&member, "default", "small", json!({"order": -10}));
    let agent = member.start().unwrap();
    assert_eq!(goes(&member, &big, &small), "big", "{}", agent.log());
    assert_eq!(
        member.server.state().count("GET", "/podevictionpolicies"),
        0
    );
}

/// What was known of them holds until the API server answers.
#[test]
fn they_are_remembered_over_a_restart() {
    let (mut member, big, small) = as_root!(two("tenantkept"));
    tenant(&member, "default", "small", json!({"order": -10}));
    let agent = member.start().unwrap();
    let is_kept = |m: &ClusterNode| {
        let kept = fs::read_to_string(m.dir().join("state/cluster.jsonl"));
        kept.is_ok_and(|text| text.contains("PodEvictionPolicy") && text.contains("policiesKnown"))
    };
    assert!(member.wait(SOON, is_kept), "{}", agent.log());
    drop(agent);
    member.server.go_away();
    let agent = member.start().unwrap();
    assert_eq!(goes(&member, &big, &small), "small", "{}", agent.log());
}

/// A pod must not be judged without what its namespace says.
#[test]
fn a_start_waits_for_them() {
    let (member, _, _) = as_root!(two("tenantslow"));
    let late = Duration::from_secs(2);
    let slow = InjectedFault::Slow(late);
    member
        .server
        .state()
        .fails("GET", "/podevictionpolicies", 1, slow);
    let begun = Instant::now();
    let _agent = member.start().unwrap();
    assert!(begun.elapsed() >= late);
}
