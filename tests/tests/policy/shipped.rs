//! The shipped policies for what is no ArangoDB (see `arangodb.rs`): each rule of them.

use evictd_policy::{Namespaces, file, gate::Secrets};
use evictd_tests::{
    deploy,
    policy_fixture::{PolicyFixture, labels, owner},
    prelude::*,
    scripted::Scripted,
};

/// One policy each for a leader-based database, for batch jobs, and for DaemonSets.
#[test]
fn the_other_policies_say_what_they_are_for() {
    skip_if!(not_root());
    let server = Scripted::start(77).unwrap();
    server.json("/health", json!({"role": "follower", "inSync": false}));
    let text = fs::read_to_string(deploy::policy("leader-based-database.yaml")).unwrap();
    let text = text
        .replace("port: 8008", &format!("port: {}", server.port()))
        .replace("interval: 2s", "interval: 100ms")
        .replace("path: /health}", "path: /health, hosts: [127.0.0.0/8]}");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p.yaml");
    fs::write(&path, text).unwrap();
    let files = [
        path,
        deploy::policy("batch-jobs.yaml"),
        deploy::policy("daemonsets.yaml"),
        deploy::policy("long-running-jobs.yaml"),
    ];
    let policies = file::load(&files).unwrap();
    let pod = |name: &str, given: &[(&str, &str)]| Pod {
        name: name.into(),
        ip: server.ip(),
        labels: labels(given),
        ..Pod::default()
    };
    let of_daemon_set = |name: &str, request| Pod {
        owner: Some(owner("DaemonSet", "d")),
        memory_request: request,
        ..pod(name, &[("pod-template-generation", "1")])
    };
    let now = std::time::SystemTime::UNIX_EPOCH
        .elapsed()
        .unwrap()
        .as_secs()
        .cast_signed();
    let long = |name: &str, age: i64| Pod {
        created: Some(now - age),
        ..pod(
            name,
            &[
                ("batch.kubernetes.io/job-name", "j"),
                ("evictd.io/long-running", "true"),
            ],
        )
    };
    let pods = vec![
        pod("db", &[("evictd.io/kind", "leader-based-database")]),
        pod("job", &[("batch.kubernetes.io/job-name", "j")]),
        long("young", 60),
        long("working", 3600),
        of_daemon_set("modest", 1 << 30),
    ];
    let kept = PolicyFixture::new("adbothers", pods, policies, Secrets::default());
    // Without the administrator's labels only the policy for all namespaces holds.
    assert!(
        ["db", "young", "working", "modest"]
            .iter()
            .all(|pod| kept.may_go(pod))
    );
    let enabled = labels(&[
        ("kubernetes.io/metadata.name", "kube-system"),
        ("evictd.io/leader-based-database", "enabled"),
        ("evictd.io/long-running-jobs", "enabled"),
    ]);
    kept.evaluator.set_namespaces(Namespaces {
        keys: Some(enabled.keys().cloned().collect()),
        labels: BTreeMap::from([("default".to_owned(), enabled)]),
    });
    kept.wait("it is not in sync", |k| {
        k.explain("db").rules[0].gates[0].answer == Some(false)
    });
    assert!(!kept.may_go("db"));
    assert_eq!(
        (kept.may_go("job"), kept.explain("job").order),
        (true, -100)
    );
    assert_eq!(
        (kept.may_go("young"), kept.may_go("working")),
        (true, false)
    );
    // R17
    assert_eq!(
        (kept.may_go("modest"), kept.explain("modest").order),
        (false, 500)
    );
    server.json("/health", json!({"role": "follower", "inSync": true}));
    kept.wait("it is in sync", |k| k.may_go("db"));
}
