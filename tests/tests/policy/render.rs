//! `evictd policy render`: the MutatingAdmissionPolicies have the form of `admissionregistration.k8s.io/v1`, and what they
//! make of a pod's tolerations is what the rule says, whatever else sets them (R30 to R37).

use cel::{Context, Program, to_value};
use evictd_tests::{deploy, policies::document, prelude::*, vectors::evictd};
use k8s_openapi::api::admissionregistration::v1::{
    MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding,
};
use serde::{Serialize, de::DeserializeOwned};

const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const NOT_READY: &str = "node.kubernetes.io/not-ready";

/// What changes a pod on its way, in this order.
type Steps<'a> = &'a [&'a dyn Fn(&mut Value)];

/// What stands around the value of the patch.
const BEFORE: &str = "[JSONPatch{op: \"add\", path: \"/spec/tolerations\", value: ";
const AFTER: &str = "}]";

fn render(file: &Path) -> Vec<Value> {
    let arguments = ["policy".as_ref(), "render".as_ref(), file];
    let list = evictd(arguments).json();
    assert_eq!(
        (&list["apiVersion"], &list["kind"]),
        (&json!("v1"), &json!("List"))
    );
    list["items"].as_array().unwrap().clone()
}

fn shipped() -> Vec<Value> {
    render(&deploy::policy("arangodb.yaml"))
}

/// The same of one policy that a test writes.
fn rendered(spec: &Value) -> Vec<Value> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p.json");
    fs::write(&path, document("p", spec.clone()).to_string()).unwrap();
    render(&path)
}

fn policy_of(items: &[Value], name: &str) -> Value {
    let is_it =
        |i: &&Value| i["metadata"]["name"] == name && i["kind"] == "MutatingAdmissionPolicy";
    items.iter().find(is_it).expect(name).clone()
}

fn evaluate(expression: &str, pod: &Value) -> Value {
    let program = Program::compile(expression).unwrap_or_else(|e| panic!("{expression}: {e}"));
    let mut context = Context::default();
    context.add_variable_from_value("object", to_value(pod).unwrap());
    let value = program.execute(&context);
    let value = value.unwrap_or_else(|e| panic!("{expression}: {e}"));
    to_json(&value)
}

fn to_json(value: &cel::Value) -> Value {
    match value {
        cel::Value::List(list) => list.iter().map(to_json).collect(),
        cel::Value::Map(map) => {
            let fields = map.map.iter();
            let fields = fields.map(|(key, value)| (key.to_string(), to_json(value)));
            Value::Object(fields.collect())
        }
        cel::Value::String(text) => text.as_str().into(),
        cel::Value::Int(number) => (*number).into(),
        cel::Value::UInt(number) => (*number).into(),
        cel::Value::Bool(yes) => (*yes).into(),
        other => panic!("{other:?} has no place in a pod"),
    }
}

/// What the API server makes of a pod: the policy's conditions, then its patch.
fn admit(policy: &Value, pod: &mut Value) {
    let conditions = policy["spec"]["matchConditions"].as_array().unwrap();
    let holds = |c: &Value| evaluate(c["expression"].as_str().unwrap(), pod) == true;
    if !conditions.iter().all(holds) {
        return;
    }
    let patch = &policy["spec"]["mutations"][0]["jsonPatch"]["expression"];
    let value = patch.as_str().unwrap().strip_prefix(BEFORE).unwrap();
    pod["spec"]["tolerations"] = evaluate(value.strip_suffix(AFTER).unwrap(), pod);
}

/// The plugin DefaultTolerationSeconds: it comes before every admission policy, and again when one has changed the pod and
/// that makes others look at it again.
fn add_defaults(pod: &mut Value) {
    let known = pod["spec"]["tolerations"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let mut all = known.clone();
    for key in [NOT_READY, UNREACHABLE] {
        let empty = |t: &Value, field: &str| t[field].as_str().unwrap_or_default().is_empty();
        let speaks_of_it = |t: &Value| {
            (t["key"] == key || empty(t, "key"))
                && (t["effect"] == "NoExecute" || empty(t, "effect"))
        };
        if !known.iter().any(speaks_of_it) {
            all.push(json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}));
        }
    }
    pod["spec"]["tolerations"] = all.into();
}

/// For how long a pod stays on a node with this taint, as the taint eviction controller finds it: by the first toleration that
/// tolerates it. `None`: not at all. `Some(None)`: for ever.
fn stays(pod: &Value, key: &str) -> Option<Option<i64>> {
    let tolerations = pod["spec"]["tolerations"].as_array().unwrap();
    let tolerates = |t: &&Value| {
        let text = |field: &str| t[field].as_str().unwrap_or_default().to_owned();
        let of_effect = ["", "NoExecute"].contains(&text("effect").as_str());
        let of_key = text("key").is_empty() || text("key") == key;
        of_effect && of_key && text("operator") == "Exists"
    };
    let first = tolerations.iter().find(tolerates)?;
    Some(first["tolerationSeconds"].as_i64())
}

/// Reads it as the API's own type: what that does not know is lost, and seen.
fn has_the_form_of<T: DeserializeOwned + Serialize>(object: &Value) {
    let typed: T = serde_json::from_value(object.clone()).unwrap();
    assert_eq!(serde_json::to_value(typed).unwrap(), *object);
}

#[test]
fn the_objects_have_the_apis_form() {
    let items = shipped();
    assert_eq!(items.len(), 16, "a policy and a binding for each rule");
    for pair in items.chunks(2) {
        let [policy, binding] = pair else {
            panic!("a policy and its binding")
        };
        has_the_form_of::<MutatingAdmissionPolicy>(policy);
        has_the_form_of::<MutatingAdmissionPolicyBinding>(binding);
        assert_eq!(binding["spec"]["policyName"], policy["metadata"]["name"]);
        let spec = &policy["spec"];
        assert_eq!(spec["failurePolicy"], "Ignore");
        assert_eq!(spec["reinvocationPolicy"], "IfNeeded");
        let conditions = spec["matchConditions"].as_array().unwrap();
        assert!(conditions.len() <= 64, "the API allows no more");
        let patch = spec["mutations"][0]["jsonPatch"]["expression"]
            .as_str()
            .unwrap();
        // Its `Object.spec.tolerations{}` cannot become JSON as an element of a list.
        assert!(patch.starts_with(BEFORE) && patch.ends_with(AFTER) && !patch.contains("Object."));
        let labels = &spec["matchConstraints"]["objectSelector"]["matchExpressions"];
        assert_eq!(
            labels[0],
            json!({"key": "app", "operator": "In", "values": ["arangodb"]})
        );
    }
}

// R30 to R37: the tolerations of every type, where "waits for ever" is one without seconds.
#[test]
fn every_type_stays_for_as_long_as_its_rule_says() {
    let items = shipped();
    for (rule, seconds) in [
        ("image-id", Some(5)),
        ("coordinator", Some(15)),
        ("db-server", Some(300)),
        ("agent", Some(300)),
        ("single", None),
        ("single-active-failover", Some(300)),
        ("sync-master", Some(15)),
        ("sync-worker", Some(60)),
    ] {
        let policy = policy_of(&items, &format!("evictd-arangodb.{rule}"));
        let mut pod = json!({"metadata": {"labels": {"app": "arangodb"}}, "spec": {}});
        add_defaults(&mut pod);
        admit(&policy, &mut pod);
        for key in [UNREACHABLE, NOT_READY] {
            assert_eq!(stays(&pod, key), Some(seconds), "{rule}: {pod}");
        }
        let tolerations = pod["spec"]["tolerations"].as_array().unwrap();
        assert_eq!(tolerations.len(), 2, "those of the API server are replaced");
    }
}

#[test]
fn a_pods_own_tolerations_of_these_taints_are_replaced_and_others_stay() {
    let rule = json!({"name": "r", "evict": "Always", "noExecute": {"unreachable": "15s", "notReady": "Forever"}});
    let items = rendered(&json!({"rules": [rule]}));
    let policy = policy_of(&items, "evictd-p.r");
    for [what, own, left] in rows(
        r#"
        none | [] | 0
        another taint | [{key: gpu, operator: Equal, value: x, effect: NoSchedule}] | 1
        a shorter one | [{key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 1}] | 0
        one for ever | [{key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute}, {key: gpu, operator: Equal, value: x, effect: NoSchedule}] | 1
        of all effects | [{key: node.kubernetes.io/not-ready, operator: Exists}] | 0
        of another effect | [{key: node.kubernetes.io/unreachable, operator: Exists, effect: NoSchedule}] | 1
        of all taints | [{operator: Exists}, {key: gpu, operator: Equal, value: x, effect: NoSchedule}] | 2
        of all taints, in seconds | [{operator: Exists, effect: NoExecute, tolerationSeconds: 1}] | 1
        "#,
    ) {
        let (own, left) = (yaml(own), left.parse::<usize>().unwrap());
        let own = own.as_array().unwrap();
        let pod = || {
            let mut pod = json!({"metadata": {"name": "x"}, "spec": {}});
            if !own.is_empty() {
                pod["spec"]["tolerations"] = own.clone().into();
            }
            pod
        };
        let orders: [(&str, Steps<'_>); 3] = [
            ("defaults first", &[&add_defaults, &|p| admit(&policy, p)]),
            ("defaults last", &[&|p| admit(&policy, p), &add_defaults]),
            (
                "all again",
                &[&add_defaults, &|p| admit(&policy, p), &add_defaults, &|p| {
                    admit(&policy, p)
                }],
            ),
        ];
        for (order, steps) in orders {
            let mut pod = pod();
            steps.iter().for_each(|step| step(&mut pod));
            assert_eq!(
                stays(&pod, UNREACHABLE),
                Some(Some(15)),
                "{what}, {order}: {pod}"
            );
            assert_eq!(stays(&pod, NOT_READY), Some(None), "{what}, {order}: {pod}");
            let all = pod["spec"]["tolerations"].as_array().unwrap();
            assert_eq!(all.len(), 2 + left, "{what}, {order}: {pod}");
            // They stay as they were, in their order.
            let kept: Vec<_> = all.iter().filter(|t| own.contains(t)).collect();
            assert_eq!(kept.len(), left, "{what}, {order}: {pod}");
        }
    }
}

#[test]
fn of_a_taint_that_the_rule_does_not_name_the_default_stays() {
    let rule = json!({"name": "r", "evict": "Always", "noExecute": {"unreachable": "15s"}});
    let items = rendered(&json!({"rules": [rule]}));
    let mut pod = json!({"metadata": {"name": "x"}, "spec": {}});
    add_defaults(&mut pod);
    admit(&policy_of(&items, "evictd-p.r"), &mut pod);
    assert_eq!(stays(&pod, UNREACHABLE), Some(Some(15)));
    assert_eq!(stays(&pod, NOT_READY), Some(Some(300)));
}

/// The first rule that matches decides, there as here; static pods are left alone, and a policy in shadow mode says nothing.
#[test]
fn a_pod_of_another_rule_is_left_alone() {
    let items = shipped();
    let single = policy_of(&items, "evictd-arangodb.single");
    let pod = |labels: Value, annotations: Value| {
        let metadata = json!({"labels": labels, "annotations": annotations});
        let mut pod = json!({"metadata": metadata, "spec": {"tolerations": []}});
        admit(&single, &mut pod);
        pod["spec"]["tolerations"].as_array().unwrap().len()
    };
    let (alone, failover) = (
        json!({"app": "arangodb", "role": "single"}),
        json!({"app": "arangodb", "role": "single", "evictd.io/arangodb-mode": "active-failover"}),
    );
    assert_eq!(pod(alone.clone(), json!({"a": "b"})), 2);
    assert_eq!(pod(failover, json!({})), 0);
    assert_eq!(pod(alone, json!({"kubernetes.io/config.mirror": "x"})), 0);
    let rule = json!({"name": "r", "evict": "Always", "noExecute": {"unreachable": "15s"}});
    assert_eq!(
        rendered(&json!({"shadow": true, "rules": [rule]})),
        [Value::Null; 0]
    );
}
