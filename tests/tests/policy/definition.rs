//! The definition of EvictionPolicy (deploy/crds): what the API server refuses by itself, and that it can afford to look.

use cel::{Context, Program, to_value};
use evictd_policy::{API_VERSION, EvictionPolicy, KIND};
use evictd_tests::{deploy, prelude::*};

/// The schema of `spec`.
fn definition() -> Value {
    let text = fs::read_to_string(deploy::dir().join("crds/evictionpolicies.yaml")).unwrap();
    let crd: Value = serde_saphyr::from_str(&text).unwrap();
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"].clone()
}

/// The policies that are shipped, by their `spec`.
fn shipped() -> Vec<Value> {
    let read = |path: PathBuf| -> Value {
        let policy: Value = serde_saphyr::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        policy["spec"].clone()
    };
    let entries = fs::read_dir(deploy::dir().join("policies")).unwrap();
    entries.map(|e| read(e.unwrap().path())).collect()
}

/// The first reason for which the API server would refuse a value: unknown fields, types, sizes, words, numbers, and the rules in
/// CEL. Patterns are the parser's business here.
fn refuses(path: &str, value: &Value, schema: &Value) -> Result<(), String> {
    let no = |why: &str| Err(format!("{path}: {why}"));
    let of_type = match value {
        Value::Object(_) => "object",
        Value::Array(_) => "array",
        Value::String(_) => "string",
        Value::Number(_) => "integer",
        Value::Bool(_) => "boolean",
        Value::Null => "null",
    };
    if schema["type"] != of_type {
        return no("is not in the definition");
    }
    let bound = |name: &str| schema[name].as_i64();
    let size = match value {
        Value::Array(items) => Some(("Items", items.len())),
        Value::Object(fields) => Some(("Properties", fields.len())),
        Value::String(text) => Some(("Length", text.chars().count())),
        _ => None,
    };
    if let Some((of, size)) = size {
        let size = i64::try_from(size).unwrap();
        if bound(&format!("max{of}")).is_some_and(|most| size > most) {
            return no("too much");
        }
        if bound(&format!("min{of}")).is_some_and(|least| size < least) {
            return no("too little");
        }
    }
    if let Some(number) = value.as_i64() {
        let too_low = bound("minimum").is_some_and(|least| number < least);
        if too_low || bound("maximum").is_some_and(|most| number > most) {
            return no("out of range");
        }
    }
    if schema["enum"]
        .as_array()
        .is_some_and(|words| !words.contains(value))
    {
        return no("no such word");
    }
    let required = schema["required"].as_array();
    for field in required.into_iter().flatten() {
        if value[field.as_str().unwrap()].is_null() {
            return no(&format!("{field} is missing"));
        }
    }
    let keys = schema["x-kubernetes-list-map-keys"][0].as_str();
    if let (Some(key), Some(items)) = (keys, value.as_array()) {
        let twice = |(i, item): (usize, &Value)| items[..i].iter().any(|b| b[key] == item[key]);
        if items.iter().enumerate().any(twice) {
            return no("the same name twice");
        }
    }
    for rule in schema["x-kubernetes-validations"]
        .as_array()
        .into_iter()
        .flatten()
    {
        let text = rule["rule"].as_str().unwrap();
        let program = Program::compile(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        let mut context = Context::default();
        context.add_variable_from_value("self", to_value(value).unwrap());
        match program.execute(&context) {
            Ok(cel::Value::Bool(true)) => {}
            Ok(cel::Value::Bool(false)) => return no(rule["message"].as_str().unwrap()),
            other => panic!("{text}: {other:?}"),
        }
    }
    match value {
        Value::Object(fields) => fields.iter().try_for_each(|(name, value)| {
            let below = match &schema["properties"][name] {
                Value::Null => &schema["additionalProperties"],
                below => below,
            };
            refuses(&format!("{path}.{name}"), value, below)
        }),
        Value::Array(items) => (items.iter().enumerate())
            .try_for_each(|(i, item)| refuses(&format!("{path}[{i}]"), item, &schema["items"])),
        _ => Ok(()),
    }
}

/// Each field that they use is in the definition.
#[test]
fn the_shipped_policies_are_let_in() {
    let definition = definition();
    for spec in shipped() {
        assert_eq!(refuses("spec", &spec, &definition), Ok(()));
    }
}

/// What the definition refuses need not be found in a status; and it refuses nothing that agents would take.
// R38
#[test]
fn mistakes_are_refused_before_any_agent_sees_them() {
    let definition = definition();
    let selector = json!({"matchLabels": {"a": "b"}});
    let rule = |more: Value| {
        let mut rule = json!({"name": "r", "evict": "Always"});
        let fields = more.as_object().unwrap().clone();
        rule.as_object_mut().unwrap().extend(fields);
        json!({"namespaceSelector": selector, "rules": [rule]})
    };
    let gate = |more: Value| {
        let mut gate = json!({"name": "g"});
        let fields = more.as_object().unwrap().clone();
        gate.as_object_mut().unwrap().extend(fields);
        let rule = json!({"name": "r", "evict": "When", "when": "gates.g"});
        json!({"namespaceSelector": selector, "gates": [gate], "rules": [rule]})
    };
    let many: Vec<Value> = (0..65)
        .map(|i| json!({"name": format!("r{i}"), "selector": {"matchLabels": {format!("l{i}"): "x"}}, "evict": "Never"}))
        .collect();
    let many = json!({"allNamespaces": "x", "rules": many});
    let table = rows(
        r#"
        spec | {} | spec: "rules" is missing
        spec | {rules: []} | spec.rules: too little
        spec | {rules: [{name: r, evict: Never}, {name: r, evict: Never}]} | spec.rules: the same name twice
        rule | {evict: Maybe} | spec.rules[0].evict: no such word
        rule | {evict: When} | spec.rules[0]: when belongs to evict When
        rule | {when: gates.g} | spec.rules[0]: when belongs to evict When
        rule | {order: 1001} | spec.rules[0].order: out of range
        rule | {limits: [{period: 5m}]} | spec.rules[0].limits[0]: a limit needs
        rule | {limits: [{maxEvictedAtOnce: 17}]} | spec.rules[0].limits[0].maxEvictedAtOnce: out of range
        asks | {key: a, operator: In} | spec.rules[0].selector.matchExpressions[0]: In and NotIn need values
        asks | {key: a, operator: Exists, values: [x]} | spec.rules[0].selector.matchExpressions[0]: In and NotIn need values
        asks | {key: a, operator: Is} | spec.rules[0].selector.matchExpressions[0].operator: no such word
        gate | {} | spec.gates[0]: a gate asks either http or object
        gate | {http: {port: 80}, object: {apiVersion: v1, resource: pods, name: "'x'"}} | spec.gates[0]: a gate asks either http or object
        spec | {gates: [{name: g, http: {port: 80}}], rules: [{name: r, evict: Always}]} | spec: no rule asks a gate
        http | {port: 0} | spec.gates[0].http.port: out of range
        http | {port: 80, redirects: 1} | spec.gates[0].http.redirects: out of range
        http | {port: 80, token: t} | spec.gates[0].http: a token needs https with ca
        http | {port: 80, scheme: https, ca: c, token: t, allowInsecure: true} | spec.gates[0].http: a token needs https with ca
        http | {port: 80, allowInsecure: true} | spec.gates[0].http: a token needs https with ca
        http | {port: 80, host: pod.name} | spec.gates[0].http: host and serverName need hosts
        http | {port: 80, serverName: pod.name, hosts: [a.b]} | spec.gates[0].http: serverName needs https with ca
        http | {port: 80, clusterIPs: true} | spec.gates[0].http: clusterIPs needs host
        spec | {gates: [{name: g, http: {port: 80}}], rules: [{name: r, evict: When, when: gates.g}]} | spec: name the namespaces in namespaceSelector
        spec | {selector: {matchLabels: {a: b}}, rules: [{name: r, evict: Never}]} | spec: name the namespaces in namespaceSelector
        spec | {rules: [{name: r, evict: Always, limits: [{groupBy: a, minAvailable: 1}]}]} | spec: name the namespaces in namespaceSelector
        spec | {namespaceSelector: {matchLabels: {a: b}}, allNamespaces: x, rules: [{name: r, evict: Never}]} | spec: name the namespaces in namespaceSelector
        spec | {allNamespaces: x, gates: [{name: g, http: {port: 80, token: t, allowInsecure: true}}], rules: [{name: r, evict: When, when: gates.g}]} | spec: a policy with a token needs a namespaceSelector
        http | {port: 80, maxBytes: 1073741824} | spec.gates[0].http.maxBytes: out of range
        http | {port: 443, scheme: https} | spec.gates[0].http: https needs either ca
        http | {port: 80, ca: x} | spec.gates[0].http: https needs either ca
        "#,
    );
    let specs = table.map(|[of, value, expected]| {
        let value = yaml(value);
        let spec = match of {
            "spec" => value,
            "rule" => rule(value),
            "asks" => rule(json!({"selector": {"matchExpressions": [value]}})),
            "gate" => gate(value),
            _ => gate(json!({ "http": value })),
        };
        (spec, expected)
    });
    for (spec, expected) in specs.chain([(many, "spec.rules: too much")]) {
        let refused = refuses("spec", &spec, &definition).expect_err(expected);
        assert!(
            refused.starts_with(expected),
            "{refused} should start with {expected}"
        );
        let document = json!({
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": "p"},
            "spec": spec,
        });
        let read = EvictionPolicy::read(document);
        assert!(read.is_err(), "an agent would take it: {expected}");
    }
}

/// The API server estimates the cost of every rule from the largest object that the schema allows, and refuses a definition
/// whose rules may cost too much: nothing that a policy says is without a bound. The costliest rule asks 8 gates times 64
/// rules for a word in 4096 characters of at most 4 bytes, a tenth of a unit each: 0.9 of 10 million units.
#[test]
fn everything_has_a_bound() {
    bounded("spec", &definition());
}

fn bounded(path: &str, schema: &Value) {
    let has = |name: &str| !schema[name].is_null();
    match schema["type"].as_str() {
        Some("string") => assert!(has("maxLength") || has("enum"), "{path} has no end"),
        Some("array") => {
            assert!(has("maxItems"), "{path} has no end");
            bounded(&format!("{path}[]"), &schema["items"]);
        }
        Some("object") if has("additionalProperties") => {
            assert!(has("maxProperties"), "{path} has no end");
            bounded(&format!("{path}.*"), &schema["additionalProperties"]);
        }
        Some("object") => {
            let fields = schema["properties"].as_object().expect(path);
            fields
                .iter()
                .for_each(|(name, below)| bounded(&format!("{path}.{name}"), below));
        }
        Some("integer" | "boolean") => {}
        other => panic!("{path} is {other:?}"),
    }
}
