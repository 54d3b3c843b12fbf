use std::time::Duration;

use serde_json::{Value, json};

use super::*;

/// A policy that holds everywhere unless it says otherwise.
fn policy(mut spec: Value) -> Result<EvictionPolicy, String> {
    if spec.get("namespaceSelector").is_none() && spec.get("allNamespaces").is_none() {
        spec["allNamespaces"] = "a test".into();
    }
    read(spec)
}

fn read(spec: Value) -> Result<EvictionPolicy, String> {
    let document = json!({
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": "p", "generation": 3, "labels": {}},
        "spec": spec,
        "status": {"whatever": 1},
    });
    EvictionPolicy::read(document).map_err(|e| e.to_string())
}

fn rule(rule: Value) -> Result<EvictionPolicy, String> {
    let mut rule = rule;
    if rule["name"].is_null() {
        rule["name"] = "r".into();
    }
    policy(json!({ "rules": [rule] }))
}

#[test]
fn everything_is_read() {
    let read = policy(json!({
        "precedence": 5,
        "shadow": true,
        "namespaceSelector": {"matchLabels": {"team": "db"}},
        "selector": {"matchLabels": {"app": "db"}},
        "gates": [
            {"name": "config", "interval": "2s", "timeout": "1s", "http": {"port": 8529, "path": "/config?x=1"}},
            {
                "name": "follower",
                "maxAge": "1m",
                "onUnknown": "allow",
                "http": {"port": 80, "host": "answers.config.leader", "hosts": ["*.$(namespace).svc"], "redirects": 0},
                "check": "answer.ok && status == 200",
            },
        ],
        "rules": [
            {
                "name": "member",
                "selector": {"matchLabels": {"role": "member"}},
                "evict": "When",
                "when": "gates.follower && pod.labels.role == 'member'",
                "order": -3,
                "limits": [{"groupBy": "deployment", "maxEvictedAtOnce": 1, "minAvailable": 2, "period": "1m"}],
                "noExecute": {"unreachable": "5m", "notReady": "Forever"},
            },
            {"name": "others", "evict": "Never"},
        ],
    }))
    .expect("a policy");
    assert_eq!(
        (read.precedence, read.shadow, read.generation),
        (5, true, Some(3))
    );
    let member = &read.rules[0];
    let asked: Vec<&str> = read
        .gates_of(member)
        .iter()
        .map(|g| g.name.as_str())
        .collect();
    assert_eq!(
        asked,
        ["config", "follower"],
        "the answer of one is needed to ask the other"
    );
    assert_eq!(read.gates[0].max_age, Duration::from_secs(6));
    assert_eq!(member.order, -3);
    let limit = Limit {
        group_by: Some("deployment".into()),
        max_evicted_at_once: Some(1),
        period: Duration::from_secs(60),
        min_available: Some(2),
    };
    assert_eq!(member.limits, [limit]);
    let no_execute = NoExecute {
        unreachable: Some(Wait::Seconds(300)),
        not_ready: Some(Wait::Forever),
    };
    assert_eq!(member.no_execute, no_execute);
    assert_eq!(read.rules[1].evict, Evict::Never);
}

/// A shorter age would end before a slow answer comes, or before the next question is asked.
// R38
#[test]
fn an_answer_counts_until_the_next_one_can_be_there() {
    let max_age = |given: Value| {
        let mut gate = json!({"name": "g", "http": {"port": 80}});
        let fields = given.as_object().unwrap().clone();
        gate.as_object_mut().unwrap().extend(fields);
        let rule = json!({"name": "r", "evict": "When", "when": "gates.g"});
        let read = policy(json!({"gates": [gate], "rules": [rule]}));
        read.unwrap().gates[0].max_age.as_millis()
    };
    for (given, expected) in [
        (json!({}), 30_000),
        (json!({"interval": "100ms"}), 2100),
        (json!({"interval": "1s", "timeout": "10s"}), 11_000),
        (json!({"interval": "30m"}), 3_600_000),
        (json!({"interval": "1h"}), 3_602_000),
        // What is said counts.
        (json!({"interval": "100ms", "maxAge": "200ms"}), 200),
    ] {
        assert_eq!(max_age(given.clone()), expected, "{given}");
    }
}

#[test]
fn every_mistake_names_its_field() {
    for (read, expected) in [
        (
            policy(json!({})),
            "spec.rules: null: must have at least one rule",
        ),
        (policy(json!({"rules": 1})), "spec.rules: 1: must be a list"),
        (
            policy(json!({"colour": 1, "rules": [{"name": "r", "evict": "Always"}]})),
            "spec.colour: unknown field",
        ),
        (rule(json!({})), "spec.rules[0].evict: null: is missing"),
        (
            rule(json!({"evict": "Maybe"})),
            "spec.rules[0].evict: \"Maybe\": must be one of Always, Never, When",
        ),
        (
            rule(json!({"evict": "When"})),
            "spec.rules[0].when: null: is missing",
        ),
        (
            rule(json!({"evict": "Never", "when": "true"})),
            "spec.rules[0].when: \"true\": means nothing",
        ),
        (
            rule(json!({"evict": "When", "when": "1 > 2"})),
            "spec.rules[0].when: \"1 > 2\": can never be true",
        ),
        (
            rule(json!({"evict": "When", "when": "true"})),
            "spec.rules[0].when: \"true\": is always true",
        ),
        (
            policy(json!({
                "gates": [{"name": "a", "http": {"port": 1}}, {"name": "b", "http": {"port": 1}}],
                "rules": [{"name": "r", "evict": "When",
                    "when": "pod.priority > 0 && gates.a && !(gates.a || gates.b)"}],
            })),
            "spec.rules[0].when: \"pod.priority > 0 && gates.a && !(gates.a || gates.b)\": can never be true, whatever",
        ),
        (
            rule(json!({"name": "No Name", "evict": "Always"})),
            "spec.rules[0].name: \"No Name\": must be a DNS label",
        ),
        (
            rule(json!({"evict": "When", "when": "gates.x"})),
            "spec.rules[0].when: \"gates.x\": unknown field gates.x; there is nothing",
        ),
        (
            rule(json!({"evict": "When", "when": "pod.label.x"})),
            "spec.rules[0].when: \"pod.label.x\": unknown field pod.label",
        ),
        (
            rule(json!({"evict": "Always", "order": 5000})),
            "spec.rules[0].order: 5000: must lie between -1000 and 1000",
        ),
        (
            rule(json!({"evict": "Always", "limits": [{}]})),
            "spec.rules[0].limits[0].maxEvictedAtOnce: null: is missing",
        ),
        (
            rule(json!({"evict": "Always", "limits": [{"maxEvictedAtOnce": 0}]})),
            "spec.rules[0].limits[0].maxEvictedAtOnce: 0: must be",
        ),
        (
            rule(json!({"evict": "Always", "noExecute": {"unreachable": 5}})),
            "spec.rules[0].noExecute.unreachable: 5: must be a duration",
        ),
        (
            rule(json!({"evict": "Always", "noExecute": {"notReady": "1500ms"}})),
            "spec.rules[0].noExecute.notReady: \"1500ms\": must be whole seconds",
        ),
        (
            policy(
                json!({"rules": [{"name": "a", "evict": "Always"}, {"name": "b", "evict": "Never"}]}),
            ),
            "spec.rules[1].selector: \"b\": can never apply: rule a takes all its pods before",
        ),
        (
            policy(json!({"rules": [
                {"name": "a", "selector": {"matchExpressions": [{"key": "x", "operator": "In", "values": ["1", "2"]}]},
                    "evict": "Never"},
                {"name": "b", "selector": {"matchLabels": {"x": "1", "y": "1"}}, "evict": "Always"},
            ]})),
            "spec.rules[1].selector: \"b\": can never apply: rule a takes all its pods before",
        ),
        (
            policy(json!({"selector": {"matchLabels": {"x": "1"}}, "rules": [
                {"name": "a", "selector": {"matchLabels": {"y": "1"}}, "evict": "Never"},
                {"name": "b", "selector": {"matchExpressions": [{"key": "y", "operator": "NotIn", "values": ["1"]}]},
                    "evict": "Never"},
                {"name": "c", "selector": {"matchLabels": {"z": "1"}}, "evict": "Always"},
            ]})),
            "spec.rules[2].selector: \"c\": can never apply: the rules before it take all its pods",
        ),
        (
            policy(
                json!({"selector": {"matchLabels": {"app": "db"}}, "rules": [
                    {"name": "a", "selector": {"matchLabels": {"app": "web"}}, "evict": "Always"},
                ]}),
            ),
            "spec.rules[0].selector: \"app\": no value of this label can meet all requirements",
        ),
        (
            policy(
                json!({"rules": [{"name": "a", "evict": "Always"}], "gates": [{"name": "g", "http": {"port": 1}}]}),
            ),
            "spec.gates[0].name: \"g\": is asked by no rule",
        ),
    ] {
        let error = read.expect_err(expected);
        assert!(
            error.starts_with(expected),
            "{error} should start with {expected}"
        );
    }
    let error =
        EvictionPolicy::read(json!({"apiVersion": "v1", "kind": KIND})).expect_err("it is wrong");
    assert_eq!(
        error.to_string(),
        "apiVersion: \"v1\": must be evictd.io/v1alpha1"
    );
}

#[test]
fn a_gate_has_limits() {
    let gate = |gate: Value| {
        let mut gate = gate;
        gate["name"] = "g".into();
        policy(
            json!({"gates": [gate], "rules": [{"name": "r", "evict": "When", "when": "gates.g"}]}),
        )
    };
    for (read, expected) in [
        (
            gate(json!({})),
            "spec.gates[0].http: null: a gate asks either http or object",
        ),
        (
            gate(json!({"http": {}})),
            "spec.gates[0].http.port: null: must be a port",
        ),
        (
            gate(json!({"http": {"port": 80, "path": "x"}})),
            "spec.gates[0].http.path: \"x\": must be a path",
        ),
        (
            gate(json!({"http": {"port": 80, "path": "/a b"}})),
            "spec.gates[0].http.path: \"/a b\": must be a path",
        ),
        (
            gate(json!({"http": {"port": 80, "maxBytes": 1 << 30}})),
            "spec.gates[0].http.maxBytes: 1073741824: must be",
        ),
        (
            gate(json!({"http": {"port": 80, "redirects": 1}})),
            "spec.gates[0].http.redirects: 1: must be left out: no redirect is followed",
        ),
        (
            gate(json!({"http": {"port": 80, "token": "t"}})),
            "spec.gates[0].http.token: \"t\": is sent only to a server that proves who it is: set scheme: https and \
            ca, or allowInsecure: true",
        ),
        (
            gate(
                json!({"http": {"port": 80, "scheme": "https", "insecureSkipVerify": true, "token": "t"}}),
            ),
            "spec.gates[0].http.token: \"t\": is sent only to a server that proves who it is",
        ),
        (
            gate(
                json!({"http": {"port": 80, "scheme": "https", "ca": "c", "token": "t", "allowInsecure": true}}),
            ),
            "spec.gates[0].http.allowInsecure: true: contradicts ca",
        ),
        (
            gate(json!({"http": {"port": 80, "allowInsecure": true}})),
            "spec.gates[0].http.allowInsecure: true: means nothing without token",
        ),
        (
            gate(json!({"http": {"port": 80, "token": "t", "allowInsecure": true}})),
            "spec.namespaceSelector: null: is missing: gate g sends a token; name the namespaces",
        ),
        (
            gate(json!({"http": {"port": 80, "host": "pod.name"}})),
            "spec.gates[0].http.hosts: null: is missing: host and serverName come from",
        ),
        (
            gate(json!({"http": {"port": 80, "serverName": "pod.name"}})),
            "spec.gates[0].http.serverName: true: means nothing without scheme: https and ca",
        ),
        (
            gate(json!({"http": {"port": 80, "clusterIPs": true}})),
            "spec.gates[0].http.clusterIPs: true: means nothing without host",
        ),
        (
            gate(json!({"http": {"port": 80, "scheme": "https"}})),
            "spec.gates[0].http.ca: null: is missing",
        ),
        (
            gate(json!({"http": {"port": 80, "token": "../x"}})),
            "spec.gates[0].http.token: \"../x\": must be the name",
        ),
        (
            gate(json!({"http": {"port": 80}, "interval": "1ms"})),
            "spec.gates[0].interval: \"1ms\": must lie between",
        ),
        (
            gate(json!({"http": {"port": 80}, "timeout": "1h"})),
            "spec.gates[0].timeout: \"3600s\": must lie between",
        ),
        (
            gate(json!({"http": {"port": 80}, "check": "answers.g"})),
            "spec.gates[0].check: \"answers.g\": unknown field answers.g",
        ),
        (
            gate(json!({"http": {"port": 80}, "check": "status == 200 && 1 > 2"})),
            "spec.gates[0].check: \"status == 200 && 1 > 2\": can never be true",
        ),
        (
            gate(json!({"http": {"port": 80}, "onUnknown": "hope"})),
            "spec.gates[0].onUnknown: \"hope\": must be one of",
        ),
    ] {
        let error = read.expect_err(expected);
        assert!(
            error.starts_with(expected),
            "{error} should start with {expected}"
        );
    }
}

/// A policy that depends on labels has to name namespaces, or say why it holds in all of them.
#[test]
fn a_policy_that_depends_on_labels_says_where_it_holds() {
    let rules = json!([{"name": "r", "evict": "Never"}]);
    let app = json!({"matchLabels": {"app": "db"}});
    let missing =
        "spec.namespaceSelector: null: is missing: each author of a pod can give it the labels";
    for spec in [
        json!({"selector": app, "rules": rules}),
        json!({"namespaceSelector": {}, "selector": app, "rules": rules}),
        json!({"rules": [{"name": "r", "selector": app, "evict": "Never"}]}),
        json!({"rules": [{"name": "r", "evict": "When", "when": "pod.labels.app == 'db'"}]}),
        json!({"rules": [{"name": "r", "evict": "Always", "limits": [{"groupBy": "app", "minAvailable": 1}]}]}),
        json!({"gates": [{"name": "g", "http": {"port": 1}}],
            "rules": [{"name": "r", "evict": "When", "when": "gates.g"}]}),
    ] {
        let error = read(spec.clone()).expect_err("it says nothing");
        assert!(
            error.starts_with(missing) && error.contains("spec.allNamespaces"),
            "{error}"
        );
        let mut with_reason = spec.clone();
        with_reason["allNamespaces"] = "all of them are ours".into();
        assert!(read(with_reason).is_ok(), "{spec}");
        let mut with_selector = spec;
        with_selector["namespaceSelector"] = json!({"matchLabels": {"team": "db"}});
        assert!(read(with_selector.clone()).is_ok(), "{with_selector}");
        with_selector["allNamespaces"] = "why".into();
        let error = read(with_selector).expect_err("one or the other");
        assert!(
            error.starts_with("spec.allNamespaces: \"why\": cannot be used"),
            "{error}"
        );
    }
    assert!(read(json!({"rules": rules})).is_ok(), "it selects nothing");
    let error = read(json!({"rules": rules, "allNamespaces": " "})).expect_err("no reason");
    assert!(
        error.starts_with("spec.allNamespaces: \" \": must say why"),
        "{error}"
    );
}

#[test]
fn what_is_unsafe_is_told() {
    let gate = |http: Value| {
        read(json!({
            "namespaceSelector": {"matchLabels": {"team": "db"}},
            "gates": [{"name": "g", "http": http}],
            "rules": [{"name": "r", "evict": "When", "when": "gates.g"}],
        }))
        .expect("a policy")
        .warning()
    };
    let safe = gate(json!({"port": 1, "scheme": "https", "ca": "c", "token": "t"}));
    assert_eq!(safe, None);
    let unsafe_ = gate(json!({"port": 1, "token": "t", "allowInsecure": true}));
    let words = "allowInsecure: anyone in the way can read the token of these gates: g";
    assert_eq!(unsafe_.as_deref(), Some(words));
}

/// A condition that can be true for some answers, or handles missing ones, is accepted.
#[test]
fn a_condition_that_may_hold_is_not_refused() {
    for when in [
        "gates.a && pod.priority > 0",
        "gates.a != gates.b",
        "!has(gates.a) && pod.priority > 0 && gates.b",
        "gates.?a.orValue(true) && gates.b",
    ] {
        let read = policy(json!({
            "gates": [{"name": "a", "http": {"port": 1}}, {"name": "b", "http": {"port": 1}}],
            "rules": [{"name": "r", "evict": "When", "when": format!("({when}) || gates.a && !gates.a && gates.b")}],
        }));
        assert_eq!(read.map(|p| p.rules.len()), Ok(1), "{when}");
    }
}
