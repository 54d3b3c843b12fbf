//! Gates against servers that answer, hang, lie, redirect, and say too much.

use evictd_policy::{EvictionPolicy, PolicySet, gate::Secrets};
use evictd_tests::{
    policy_fixture::{PolicyFixture, gated, may_go, pod, policy},
    prelude::*,
    scripted::{Asked, Script, Scripted},
};

/// A pod at this address.
fn keep(name: &str, ip: &str, policy: EvictionPolicy) -> PolicyFixture {
    keep_all(name, &[ip.to_owned()], policy, Secrets::default())
}

/// Pods at these addresses.
fn keep_all(name: &str, ips: &[String], policy: EvictionPolicy, secrets: Secrets) -> PolicyFixture {
    let pods = ips.iter().enumerate().map(|(i, ip)| Pod {
        name: pod(i),
        ip: ip.clone(),
        ..Pod::default()
    });
    PolicyFixture::new(name, pods.collect(), vec![policy], secrets)
}

fn answer(kept: &PolicyFixture, number: usize) -> Option<bool> {
    kept.explain(&pod(number)).rules[0].gates[0].answer
}

fn error_of(kept: &PolicyFixture, number: usize) -> Option<String> {
    kept.explain(&pod(number)).rules[0].gates[0].error.clone()
}

/// A pod at this address is not asked, and these words say why.
#[track_caller]
fn refuses(name: &str, ip: &str, gate: Value, expected: &str) {
    let kept = keep(name, ip, gated(gate));
    kept.wait("it is refused", |k| error_of(k, 0).is_some());
    let error = error_of(&kept, 0).unwrap();
    assert!(error.contains(expected), "{name}: {error}");
}

// R38
#[test]
fn the_pods_own_answer_decides_and_gets_old() {
    let mut server = Scripted::start(21).unwrap();
    server.json("/role", json!({"role": "leader"}));
    let gate = json!({
        "maxAge": "1s",
        "http": {"port": server.port(), "path": "/role"},
        "check": "answer.role == 'follower'",
    });
    let kept = as_root!(keep("gaterole", &server.ip(), gated(gate)));
    assert!(!may_go(&kept, 0), "not before anybody has answered");
    kept.wait("it is asked", |k| answer(k, 0) == Some(false));
    assert!(!may_go(&kept, 0));
    server.json("/role", json!({"role": "follower"}));
    kept.wait("it has become a follower", |k| may_go(k, 0));
    let explained = kept.explain(&pod(0));
    assert!(
        explained.for_seconds.is_some_and(|s| s <= 1),
        "{explained:?}"
    );
    server.go_away();
    kept.wait("the answer gets too old", |k| !may_go(k, 0));
    assert!(error_of(&kept, 0).is_some());
}

/// An answer is one to the question that was asked: a gate that is changed has none, nor has one that asks where its answer points.
#[test]
fn a_changed_gate_is_asked_anew() {
    let server = Scripted::start(23).unwrap();
    server.json("/config", json!({"leader": server.ip()}));
    server.json("/alive", json!({}));
    let (ip, port) = (server.ip(), server.port());
    let changed = |path: &str, check: &str| {
        let gate = |name: &str, http: Value, check: &str| json!({"name": name, "interval": "10m", "maxAge": "30m", "http": http, "check": check});
        let leader =
            json!({"port": port, "path": "/alive", "host": "answers.config.leader", "hosts": [ip]});
        policy(
            "p",
            json!({
                "gates": [
                    gate("config", json!({"port": port, "path": path, "hosts": [ip]}), "true"),
                    gate("leader", leader, check),
                ],
                "rules": [{"name": "r", "evict": "When", "when": "gates.leader"}],
            }),
        )
    };
    let first = changed("/config", "status == 200");
    let kept = as_root!(keep("gatechanged", &ip, first));
    kept.wait("both answer", |k| may_go(k, 0));
    let alive = || server.asked().iter().filter(|a| a.path == "/alive").count();
    let before = alive();
    server.set("/alive", Script::Hang);
    let put = |policy| kept.evaluator.set_policies(PolicySet::new([policy]));
    put(changed("/config", "status == 204"));
    assert!(!may_go(&kept, 0), "the old check has said yes");
    kept.wait("it is asked anew", |_| alive() > before);
    server.json("/alive", json!({}));
    put(changed("/config", "status == 200"));
    kept.wait("the first check again", |k| may_go(k, 0));
    // It may be another leader.
    server.set("/other", Script::Hang);
    put(changed("/other", "status == 200"));
    assert!(!may_go(&kept, 0), "the old leader has said yes");
}

#[test]
fn what_no_answer_means_is_said() {
    skip_if!(not_root());
    for (name, on_unknown, when, expected) in [
        ("gatedeny", "deny", "gates.g", false),
        ("gateallow", "allow", "gates.g", true),
        // Turned round, unknown is not yes either.
        ("gatedenynot", "deny", "!gates.g", false),
        ("gateallownot", "allow", "!gates.g", true),
    ] {
        let gate = json!({"name": "g", "interval": "100ms", "onUnknown": on_unknown, "timeout": "200ms", "http": {"port": 1}});
        let rule = json!({"name": "r", "evict": "When", "when": when});
        let spec = json!({"gates": [gate], "rules": [rule]});
        let kept = keep(name, "127.0.0.22", policy("p", spec));
        kept.wait("it is tried", |k| error_of(k, 0).is_some());
        assert_eq!(may_go(&kept, 0), expected, "{name}");
    }
}

/// Each of these answers is none, each is said, and none of them holds up the pod whose server is well.
#[test]
fn a_bad_server_harms_no_other_gate() {
    skip_if!(not_root());
    let good = Scripted::start(31).unwrap();
    good.json("/x", json!({"ok": true}));
    let bad = |host: u8, script: Script| {
        let server = Scripted::start_at(host, good.port()).unwrap();
        server.set("/x", script);
        server
    };
    let huge = 64 << 20;
    let mut deep = json!(1);
    for _ in 0..2000 {
        deep = json!([deep]);
    }
    let servers = [
        bad(32, Script::Hang),
        bad(33, Script::Huge(huge)),
        bad(34, Script::EndlessHead),
        bad(
            35,
            Script::Redirect(format!("http://{}:{}/x", good.ip(), good.port())),
        ),
        bad(36, Script::Json(500, json!({"ok": true}))),
        bad(37, Script::Json(200, json!({"ok": "true"}))),
        bad(38, Script::Json(200, deep)),
        bad(39, Script::Json(200, json!("not what you think"))),
    ];
    let mut ips = vec![good.ip()];
    ips.extend(servers.iter().map(Scripted::ip));
    let gate = json!({
        "timeout": "300ms",
        "http": {"port": good.port(), "path": "/x", "maxBytes": 1 << 20},
        "check": "status == 200 && answer.ok",
    });
    let kept = keep_all("gatebad", &ips, gated(gate), Secrets::default());
    kept.wait("the good one answers", |k| may_go(k, 0));
    for (pod, expected) in [
        (1, "no answer within 300ms"),
        (2, "longer than 1048576 bytes"),
        (3, ""),
        (6, "status 200"),
        (7, "nested too deep"),
        (8, "status 200"),
    ] {
        // A machine that is busy may answer none of them in time at first.
        let is_found_out =
            |k: &PolicyFixture| error_of(k, pod).is_some_and(|e| e.contains(expected));
        kept.wait(&format!("{pod}: {expected}"), is_found_out);
        let error = error_of(&kept, pod).unwrap();
        assert!(error.len() < 300 && !error.contains('\n'), "{error}");
    }
    // A redirect that is not followed and an error of the server are answers, and they are not yes.
    for pod in [4, 5] {
        kept.wait("it is a no", |k| answer(k, pod) == Some(false));
    }
    assert!((1..=8).all(|pod| !may_go(&kept, pod)));
    assert!(
        servers[1].sent() < huge,
        "an answer that is too long is not read"
    );
    kept.wait("the good one still answers", |k| may_go(k, 0));
}

/// A question waits for a place behind those of slow servers, and its answer does not age meanwhile.
#[test]
fn slow_gates_make_no_other_answer_old() {
    let good = Scripted::start(81).unwrap();
    good.json("/x", json!({"ok": true}));
    let slow = Scripted::start_at(82, good.port()).unwrap();
    slow.set("/x", Script::Hang);
    let mut ips = vec![slow.ip(); 24];
    ips.push(good.ip());
    let gate = json!({
        "timeout": "300ms",
        "maxAge": "500ms",
        "http": {"port": good.port(), "path": "/x"},
    });
    let kept = as_root!(keep_all("gateslow", &ips, gated(gate), Secrets::default()));
    // The first question may have had a place at once.
    std::thread::sleep(Duration::from_secs(2));
    kept.wait("the good one lets its pod go", |k| may_go(k, 24));
}

/// A redirect is an answer like any other: nothing goes where it leads, the token least of all.
#[test]
fn no_redirect_is_followed() {
    let (first, second) = (Scripted::start(41).unwrap(), Scripted::start(42).unwrap());
    let to = format!("http://{}:{}/there", second.ip(), second.port());
    first.set("/here", Script::Redirect(to));
    second.json("/there", json!({"ok": true}));
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("db"), "s3cret\n").unwrap();
    let gate = json!({"http": {"port": first.port(), "path": "/here", "token": "db", "allowInsecure": true}});
    let secrets = Secrets::new(Some(dir.path().to_owned()));
    let kept = as_root!(keep_all(
        "gateredirect",
        &[first.ip()],
        gated(gate.clone()),
        secrets
    ));
    kept.wait("it is a no", |k| answer(k, 0) == Some(false));
    let asked = first.asked();
    let has_token = |a: &Asked| a.authorization.as_deref() == Some("Bearer s3cret");
    assert!(!asked.is_empty() && asked.iter().all(has_token));
    assert!(second.asked().is_empty(), "{:?}", second.asked());
    drop(kept);
    let kept = keep("gatetoken", &first.ip(), gated(gate));
    kept.wait("no token", |k| {
        error_of(k, 0).is_some_and(|e| e == "db: gateSecrets is not set")
    });
}

/// Only what the policy names is asked: a label or an answer that leads elsewhere is refused before a connection is made.
#[test]
fn a_host_must_be_among_those_that_the_policy_names() {
    skip_if!(not_root());
    let server = Scripted::start(43).unwrap();
    server.json("/", json!({}));
    let gate = |host: &str, hosts: Value| {
        let http = json!({"port": server.port(), "host": format!("'{host}'"), "hosts": hosts});
        json!({"timeout": "2s", "http": http})
    };
    let (own, port) = (server.ip(), server.port());
    let other_port = format!("tcp://{own}:{}", port ^ 1);
    for (i, (host, hosts, expected)) in [
        (own.as_str(), json!(["127.0.0.44"]), "is not among hosts"),
        (
            "localhost",
            json!(["*.$(namespace).svc"]),
            "is not among hosts",
        ),
        (
            "localhost",
            json!(["localhost"]),
            "is a loopback address: it is not asked unless hosts names it",
        ),
        (&other_port, json!([own]), "has another port than the gate"),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("gatehost{i}");
        refuses(&name, "10.0.0.1", gate(host, hosts), expected);
    }
    assert!(server.asked().is_empty());
    let kept = keep("gatehostnamed", "10.0.0.1", gated(gate(&own, json!([own]))));
    kept.wait("it is named", |k| may_go(k, 0));
}

/// A pod says itself where it is, and nothing makes it the node's or the cluster's own.
#[test]
fn a_pod_on_loopback_or_without_an_address_is_not_asked() {
    skip_if!(not_root());
    let server = Scripted::start(45).unwrap();
    server.json("/", json!({}));
    let gate = json!({"http": {"port": server.port(), "hosts": ["10.0.0.0/8"]}});
    for (name, ip, expected) in [
        ("gateloopback", &*server.ip(), "is a loopback address"),
        ("gatenoip", "", "no IP yet"),
        ("gatenonsense", "a/b", "is not the name of a host"),
    ] {
        refuses(name, ip, gate.clone(), expected);
    }
    assert!(server.asked().is_empty());
}
