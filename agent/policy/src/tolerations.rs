//! Tolerations, which a pod must have from its creation: a MutatingAdmissionPolicy for each rule that says how long its
//! pods stay on a lost node. The API server evaluates it by itself; no webhook has to run.

use serde_json::{Value, json};

use super::{
    model::{EvictionPolicy, Rule, Wait},
    selector::Selector,
};

const API_VERSION: &str = "admissionregistration.k8s.io/v1";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const NOT_READY: &str = "node.kubernetes.io/not-ready";
/// The pod's labels in an admission expression.
const LABELS: &str = "(has(object.metadata.labels) ? object.metadata.labels : {})";

/// Leaves out mirror pods: a static pod belongs to the kubelet.
const NO_MIRROR: &str = "!(has(object.metadata.annotations) && 'kubernetes.io/config.mirror' in \
    object.metadata.annotations)";

/// The admission policy and its binding for each rule with `noExecute`. A policy in shadow mode has none.
pub fn admission(policy: &EvictionPolicy) -> Vec<Value> {
    let mut objects = Vec::new();
    if policy.shadow {
        return objects;
    }
    for (i, rule) in policy.rules.iter().enumerate() {
        if let Some(patch) = patch(rule) {
            // A rule's name has no dot, so that each name is unique.
            let name = format!("evictd-{}.{}", policy.name, rule.name);
            let earlier: Vec<&Selector> = policy.rules[..i].iter().map(|r| &r.pods).collect();
            objects.push(admission_policy(&name, policy, rule, &earlier, &patch));
            objects.push(json!({
                "apiVersion": API_VERSION,
                "kind": "MutatingAdmissionPolicyBinding",
                "metadata": {"name": name},
                "spec": {"policyName": name},
            }));
        }
    }
    objects
}

fn admission_policy(
    name: &str,
    policy: &EvictionPolicy,
    rule: &Rule,
    earlier: &[&Selector],
    patch: &str,
) -> Value {
    let mut labels = policy.pods.to_json();
    labels.extend(rule.pods.to_json());
    // 63 earlier rules and this condition: the API server allows 64 conditions.
    let static_pods = json!({"name": "no-static-pod", "expression": NO_MIRROR});
    let conditions = earlier.iter().enumerate().map(|(i, selector)| {
        json!({"name": format!("not-of-rule-{i}"), "expression": format!("!({})", selector.to_cel(LABELS))})
    });
    let conditions = [static_pods].into_iter().chain(conditions);
    json!({
        "apiVersion": API_VERSION,
        "kind": "MutatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            // Where the API server cannot evaluate the policy, pods must still start.
            "failurePolicy": "Ignore",
            "reinvocationPolicy": "IfNeeded",
            "matchConstraints": {
                "namespaceSelector": {"matchExpressions": policy.namespaces.to_json()},
                "objectSelector": {"matchExpressions": labels},
                "resourceRules": [{
                    "apiGroups": [""],
                    "apiVersions": ["v1"],
                    "operations": ["CREATE"],
                    "resources": ["pods"],
                }],
            },
            "matchConditions": conditions.collect::<Vec<_>>(),
            "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": patch}}],
        },
    })
}

/// Puts the rule's tolerations before all others and removes other tolerations of the same taints.
///
/// Of several tolerations of a taint the first one counts (`GetMatchingTolerations`), also before a toleration of all
/// taints. Before this patch the API server has added tolerations of 300 s (`DefaultTolerationSeconds`). If it runs
/// again, because another webhook has changed the pod, it finds the rule's tolerations and adds none. A second
/// evaluation of this patch changes nothing.
///
/// The patch has maps, not `Object.spec.tolerations{}`: the API server cannot turn a list of such objects into JSON.
/// The values of a CEL map have one type, hence `dyn`.
fn patch(rule: &Rule) -> Option<String> {
    let waits = [
        (UNREACHABLE, rule.no_execute.unreachable),
        (NOT_READY, rule.no_execute.not_ready),
    ];
    let waits: Vec<(&str, Wait)> = waits
        .into_iter()
        .filter_map(|(key, wait)| Some((key, wait?)))
        .collect();
    if waits.is_empty() {
        return None;
    }
    let keys: Vec<String> = waits.iter().map(|(key, _)| format!("'{key}'")).collect();
    let own: Vec<String> = waits
        .iter()
        .map(|(key, wait)| toleration(key, *wait))
        .collect();
    let (keys, own) = (keys.join(", "), own.join(", "));
    Some(format!(
        "[JSONPatch{{op: \"add\", path: \"/spec/tolerations\", value: \
         dyn([{own}]) + dyn(has(object.spec.tolerations) ? object.spec.tolerations.filter(t, \
         !(has(t.key) && t.key in [{keys}] && (!has(t.effect) || t.effect == 'NoExecute'))) : [])}}]"
    ))
}

fn toleration(key: &str, wait: Wait) -> String {
    let seconds = match wait {
        Wait::Seconds(seconds) => format!(", \"tolerationSeconds\": dyn({seconds})"),
        Wait::Forever => String::new(),
    };
    format!(
        "{{\"key\": dyn('{key}'), \"operator\": dyn('Exists'), \"effect\": dyn('NoExecute'){seconds}}}"
    )
}
