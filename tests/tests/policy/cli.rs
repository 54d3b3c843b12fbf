//! `evictd policy`: what it prints, and what it says of mistakes.

use evictd_policy::{API_VERSION, KIND};
use evictd_tests::{
    deploy,
    prelude::*,
    vectors::{Outcome, evictd},
};

fn run(arguments: &[&str]) -> Outcome {
    evictd(["policy"].iter().chain(arguments))
}

/// It ends with the exit code of mistakes, and one line says why.
#[track_caller]
fn refuses(arguments: &[&str], why: &str) {
    let said = run(arguments).refused();
    begins(&said, "evictd: ");
    has(&said, &[why]);
}

#[test]
fn the_shipped_policies_are_good() {
    let out = run(&["check", deploy::dir().join("policies").to_str().unwrap()]).good();
    for name in [
        "arangodb",
        "leader-based-database",
        "batch-jobs",
        "daemonsets",
    ] {
        assert!(out.lines().any(|l| l.starts_with(name)), "{name}: {out}");
    }
}

// R38
#[test]
fn a_mistake_has_a_place() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p.yaml");
    let file = path.to_str().unwrap();
    let policy = |name: &str, when: &str| {
        format!(
            "apiVersion: {API_VERSION}\nkind: {KIND}\nmetadata: {{name: {name}}}\nspec:\n  rules:\n  \
             - {{name: r, evict: When, when: {}}}\n",
            json!(when)
        )
    };
    for (text, expected) in [
        (
            policy("a", "pod.lables.x == 'y'"),
            "a: spec.rules[0].when: \"pod.lables.x == 'y'\": unknown field pod.lables",
        ),
        (
            policy("a", "pod.labels["),
            "a: spec.rules[0].when: \"pod.labels[\": line 1, column",
        ),
        (
            policy("a", "pod.priority > 0") + "---\n" + &policy("a", "pod.priority > 1"),
            "policy a is in another document already",
        ),
        (
            policy(r#""a\nb\e[31m""#, "pod.labels["),
            r"p.yaml: a\nb\u{1b}[31m: spec.rules[0].when: ",
        ),
        ("a: [".to_owned(), "p.yaml: "),
        (String::new(), "holds no policy"),
        (
            "apiVersion: v1\nkind: Pod\n".to_owned(),
            "document 1: apiVersion: \"v1\": must be evictd.io/v1alpha1",
        ),
    ] {
        fs::write(&path, &text).unwrap();
        refuses(&["check", file], expected);
    }
    refuses(&["check", "/nowhere.yaml"], "evictd: /nowhere.yaml: ");
}

/// Owners of a namespace check theirs as operators do; an agent takes no such policy from a file.
#[test]
fn a_policy_of_a_namespace_is_checked_too() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tenant.json");
    let file = path.to_str().unwrap();
    let write = |spec: Value| {
        let policy = json!({
            "apiVersion": API_VERSION,
            "kind": "PodEvictionPolicy",
            "metadata": {"namespace": "shop", "name": "batch"},
            "spec": spec,
        });
        fs::write(&path, policy.to_string()).unwrap();
    };
    write(json!({"order": -5}));
    has(
        &run(&["check", file]).good(),
        &["shop/batch", "of its namespace"],
    );
    refuses(
        &["render", file],
        "kind: \"PodEvictionPolicy\": must be EvictionPolicy",
    );
    refuses(
        &["check", file, file],
        "policy shop/batch is in another document already",
    );
    write(json!({"order": 5}));
    refuses(&["check", file], "batch: spec.order: 5: must lie between");
}

/// Policies that can say different things about the same pods are named with their places; they can be used all the same.
// R38
#[test]
fn a_contradiction_has_a_place() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, precedence: i32, evict: &str| {
        let policy = json!({
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": name},
            "spec": {"precedence": precedence, "rules": [{"name": "r", "evict": evict}]},
        });
        fs::write(dir.path().join(format!("{name}.json")), policy.to_string()).unwrap();
    };
    let notes = || {
        let out = run(&["check", dir.path().to_str().unwrap()]).good();
        let notes = out.lines().filter(|l| l.starts_with("note: "));
        notes.map(str::to_owned).collect::<Vec<_>>()
    };
    file("a", 0, "Never");
    file("b", 0, "Always");
    let expected = "note: a: spec.rules[0] (r) says Never, policy b in spec.rules[0] (r) says Always with order 0, \
                    about pods that both select, with the same precedence 0: the more sparing one decides";
    assert_eq!(notes(), [expected]);
    file("b", 1, "Always");
    assert_eq!(notes(), [""; 0]);
}

// R38
#[test]
fn a_pod_is_explained() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    fs::create_dir(&state).unwrap();
    let config = dir.path().join("config.json");
    fs::write(&config, json!({"stateDir": state}).to_string()).unwrap();
    let config = config.to_str().unwrap();
    // No agent has ever run.
    refuses(&["explain", "db-0", "--config", config], "policies.json");
    let told = json!([{
        "pod": "shop/db-0",
        "uid": "u1",
        "mayGo": false,
        "reason": "gates.drained is false",
        "order": 5,
        "rules": [{
            "rule": "arangodb/db-server",
            "evict": "When gates.drained",
            "shadow": false,
            "saysYes": false,
            "gates": [{"gate": "drained", "ageSeconds": 2.5, "error": "no answer within 2s", "onUnknown": "deny"}],
        }],
    }]);
    fs::write(state.join("policies.json"), told.to_string()).unwrap();
    let out = run(&["explain", "db-0", "--config", config]).good();
    for line in [
        "  could not be evicted: gates.drained is false",
        "  order 5",
        "  rule arangodb/db-server: When gates.drained: no",
        "    gate drained: unknown, which means deny, answered 2.5 s ago (no answer within 2s)",
    ] {
        assert!(out.lines().any(|l| l == line), "{line}: {out}");
    }
    has(&out, &["s ago: no agent answers"]);
    let left = fs::read_dir(&state).unwrap().count();
    assert_eq!(left, 1, "the question is taken back");
    let json = run(&["explain", "u1", "--config", config, "-o", "json"]).json();
    assert_eq!(json, told);
    // The installed agent's, as of `top` and `report`.
    refuses(&["explain", "no-such-pod"], "policies.json: ");
    let unknown = "db-1: no such pod on this node";
    refuses(&["explain", "db-1", "--config", config], unknown);
}
