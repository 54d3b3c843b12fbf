//! Policies that the API server tells of: in force by watch, with a status that one agent writes (R12, R34, R38).

use evictd_kube::watch::namespaces;
use evictd_tests::{apiserver::State, prelude::*, watch_fixture::WatchFixture};

const NEVER: &str = "Never";

fn spec(evict: &str) -> Value {
    json!({"rules": [{"name": "r", "evict": evict}]})
}

fn start(spread: u64, prepare: impl FnOnce(&mut State)) -> WatchFixture {
    let f = WatchFixture::new(|server| prepare(&mut server.state())).unwrap();
    f.policies(&f.store, Duration::from_millis(spread));
    f
}

fn patches(f: &WatchFixture) -> usize {
    f.server.state().count("PATCH", "/evictionpolicies/")
}

fn one(name: &str, generation: i64) -> Vec<(String, i64)> {
    vec![(name.to_owned(), generation)]
}

#[test]
fn a_policy_comes_changes_and_goes_by_watch() {
    let f = start(100, |_| {});
    f.lists(|count| count == 2);
    f.server.state().put_policy("db", spec(NEVER));
    assert!(f.wait(|f| f.in_force() == one("db", 1)));
    f.accepts("db");
    let accepted = f.server.state().accepted("db");
    assert_eq!(accepted["reason"], "Compiled");
    assert_eq!(accepted["observedGeneration"], 1);
    assert!(accepted["lastTransitionTime"].is_string());
    f.server.state().put_policy("db", spec("Always"));
    assert!(f.wait(|f| f.in_force() == one("db", 2)));
    f.server.state().remove(Collection::Policies, "", "db");
    assert!(f.wait(|f| f.in_force().is_empty()));
    assert_eq!(f.connection.counters.watch_errors.get(), 0);
}

/// Policies that are renamed: the new ones come before the old ones go.
#[test]
fn a_policy_that_was_left_out_is_in_force_once_another_has_gone() {
    let name = |i: usize| format!("p{i:03}");
    let f = start(60_000, |s| {
        (0..256).for_each(|i| s.put_policy(&name(i), spec(NEVER)));
    });
    assert!(f.wait(|f| f.in_force().len() == 256));
    f.lists(|count| count == 2);
    f.server.state().put_policy("late", spec(NEVER));
    assert!(f.wait(|f| f.store.refused().0 == 1));
    f.server.state().remove(Collection::Policies, "", "p007");
    let late = ("late".to_owned(), 1);
    assert!(f.wait(|f| f.in_force().contains(&late)));
    assert_eq!(f.store.refused().0, 0);
    f.lists(|count| count == 4);
    assert_eq!(f.connection.counters.watch_errors.get(), 0);
}

#[test]
fn a_bad_version_is_named_in_the_status_and_the_last_good_one_stays() {
    let f = start(100, |s| s.put_policy("db", spec(NEVER)));
    assert!(f.wait(|f| f.in_force() == one("db", 1)));
    let bad = json!({"name": "r", "evict": "When", "when": "pod.colour == 'red'"});
    f.server.state().put_policy("db", json!({"rules": [bad]}));
    f.refuses("db");
    let accepted = f.server.state().accepted("db");
    assert_eq!(accepted["reason"], "Invalid");
    assert_eq!(accepted["observedGeneration"], 2);
    let message = accepted["message"].as_str().unwrap();
    assert!(
        message.starts_with("spec.rules[0].when: ") && message.contains("pod.colour"),
        "{message}"
    );
    assert_eq!(f.in_force(), one("db", 1));
    assert_eq!(f.store.refused(), (1, false));
    // A selector that nothing can meet is no better.
    let both = json!({"matchLabels": {"app": "a"}, "matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]});
    let mut unseen = spec(NEVER);
    unseen["selector"] = both;
    f.server.state().put_policy("db", unseen);
    assert!(f.wait(|f| f.server.state().accepted("db")["observedGeneration"] == 3));
    let message = f.server.state().accepted("db")["message"].to_string();
    assert!(message.contains("can meet all requirements"), "{message}");
    assert_eq!(f.in_force(), one("db", 1));
}

/// The word of another agent is enough; so it is after a restart.
#[test]
fn a_status_that_is_right_is_not_written_again() {
    let f = start(0, |s| s.put_policy("db", spec(NEVER)));
    f.accepts("db");
    assert_eq!(patches(&f), 1);
    // Four more agents, and a list anew for all of them.
    for _ in 0..4 {
        f.policies(&f.store, Duration::ZERO);
    }
    f.lists(|count| count >= 10);
    f.server.state().expire();
    f.lists(|count| count >= 20);
    // An agent that had something to write would do so at once: this one does, after all the others.
    f.server.state().put_policy("last", spec(NEVER));
    f.accepts("last");
    let state = f.server.state();
    assert_eq!(state.count("PATCH", "/evictionpolicies/db/"), 1);
}

/// Of many agents that see the same at once all but a few see the first one's word before it is their turn, and none of them
/// writes twice.
#[test]
fn many_agents_write_once() {
    let f = WatchFixture::new(|_| {}).unwrap();
    for _ in 0..20 {
        f.policies(&f.store, Duration::from_secs(2));
    }
    f.lists(|count| count == 40);
    f.server.state().put_policy("db", spec(NEVER));
    f.accepts("db");
    // After this time every agent's turn would have come.
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(f.connection.counters.policy_statuses.get(), 1);
}

#[test]
fn a_conflict_means_another_look() {
    let f = start(50, |s| {
        s.fails("PATCH", "/evictionpolicies/db/status", 2, 409);
        s.put_policy("db", spec(NEVER));
    });
    f.accepts("db");
    assert_eq!(patches(&f), 3);
    let state = f.server.state();
    let patch = state.all("PATCH", "/evictionpolicies/").next().unwrap();
    assert_eq!(patch.content_type, "application/merge-patch+json");
    assert_eq!(patch.body["metadata"]["uid"], "uid-of-db");
    assert!(patch.body["metadata"]["resourceVersion"].is_string());
}

/// Conditions of others stay, and two agents that differ do not write against each other.
#[test]
fn two_opinions_do_not_fight() {
    let theirs = json!({"type": "Audited", "status": "True"});
    let f = start(0, |s| {
        s.put_policy("db", spec(NEVER));
        let mut policy = s.policy("db");
        policy["status"] = json!({"conditions": [theirs]});
        s.put(Collection::Policies, policy);
    });
    f.accepts("db");
    let mut policy = f.server.state().policy("db");
    assert_eq!(policy["status"]["conditions"][0], theirs);
    // An agent of another version thinks otherwise.
    policy["status"]["conditions"][1]["status"] = "False".into();
    policy["status"]["conditions"][1]["reason"] = "Invalid".into();
    f.server.state().put(Collection::Policies, policy);
    f.server.state().put_policy("other", spec(NEVER));
    f.accepts("other");
    assert_eq!(f.server.state().accepted("db")["status"], "False");
    // But a status that was lost is written again.
    let mut policy = f.server.state().policy("db");
    policy["status"] = Value::Null;
    f.server.state().put(Collection::Policies, policy);
    f.accepts("db");
}

/// No definition, no error: asked again rarely, found when it comes.
#[test]
fn without_the_definition_it_is_asked_for_rarely() {
    let f = start(100, |s| {
        s.crd = false;
        s.put_policy("db", spec(NEVER));
    });
    f.lists(|count| count == 1);
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(f.server.state().count("GET", "/evictionpolicies"), 1);
    assert_eq!(f.connection.counters.watch_errors.get(), 0);
    f.server.state().crd = true;
    assert!(f.wait(|f| f.in_force() == one("db", 1)));
}

/// Without the right the policies that are known stay.
#[test]
fn what_is_forbidden_changes_nothing() {
    let f = start(100, |s| s.put_policy("db", spec(NEVER)));
    assert!(f.wait(|f| f.in_force() == one("db", 1)));
    f.server.state().fails("GET", "/evictionpolicies", 1, 403);
    f.server.state().expire();
    f.lists(|count| count >= 3);
    assert_eq!(f.in_force(), one("db", 1));
}

/// A policy of namespaces with this label.
fn of_namespaces(label: &str, value: &str) -> Value {
    let mut spec = spec(NEVER);
    spec["namespaceSelector"] = json!({"matchLabels": {label: value}});
    spec
}

/// Labels of namespaces: watched while a policy asks for them, of their metadata only, and no longer.
#[test]
fn namespaces_are_watched_while_a_policy_asks_for_them() {
    let f = start(100, |s| {
        let shop = json!({"metadata": {"name": "shop", "labels": {"tier": "gold", "other": "x"}}});
        s.put(Collection::Namespaces, shop);
        s.put_policy(
            "own-name",
            of_namespaces("kubernetes.io/metadata.name", "shop"),
        );
    });
    let evaluator = Arc::clone(f.store.evaluator());
    let (settled, _) = tokio::sync::watch::channel(None);
    f.spawn(namespaces::run(
        Arc::clone(&f.connection),
        Arc::clone(&evaluator),
        settled,
    ));
    assert!(f.wait(|f| !f.in_force().is_empty()));
    let asked = |f: &WatchFixture| f.server.state().count("GET", "/api/v1/namespaces");
    assert_eq!(asked(&f), 0, "the name needs no watch");

    let by_tier = of_namespaces("tier", "gold");
    f.server.state().put_policy("by-tier", by_tier);
    let tier = |f: &WatchFixture, namespace: &str| {
        let known = f.store.evaluator().namespaces().labels;
        known.get(namespace).cloned().unwrap_or_default()
    };
    assert!(f.wait(|f| tier(f, "shop").get("tier").is_some_and(|t| t == "gold")));
    assert_eq!(tier(&f, "shop").len(), 1, "of the others nothing is kept");
    let late = json!({"metadata": {"name": "late", "labels": {"tier": "tin"}}});
    f.server.state().put(Collection::Namespaces, late);
    assert!(f.wait(|f| tier(f, "late").get("tier").is_some_and(|t| t == "tin")));
    f.server.state().remove(Collection::Namespaces, "", "late");
    assert!(f.wait(|f| tier(f, "late").is_empty()));

    let watching = |f: &WatchFixture| f.server.state().watches();
    assert_eq!(watching(&f), 2);
    f.server.state().remove(Collection::Policies, "", "by-tier");
    assert!(f.wait(|f| watching(f) == 1));
}
