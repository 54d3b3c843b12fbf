//! The ValidatingAdmissionPolicies of the manifests, evaluated on what an agent sends and on what it must not.

mod policy;
mod requests;

use evictd_tests::{
    deploy::{
        Chart,
        helm::{self, helm},
    },
    prelude::*,
};
use policy::{Policies, Request};
use requests::{
    AGENT, NODE, config_map, deletion, disruption_target, event, eviction, node_change, on_pods,
    pod_status, policy_status, push, recorded, set, unchanged, user,
};

fn policies() -> Policies {
    Policies::new(&Chart::plain().unwrap().0)
}

/// Those of a release whose evicted pods stay.
fn policies_of_failing() -> Policies {
    let values = json!({"config": {"cluster": {"evictedPods": "Fail"}}});
    Policies::new(&helm::objects(&values).unwrap())
}

/// What an agent makes of a pod that it lets fail.
fn fail(pod: &mut Value) {
    let status = &mut pod["status"];
    status["phase"] = "Failed".into();
    status["reason"] = "Evicted".into();
    status["message"] = "The node was low on resource: memory. ".into();
    disruption_target(pod);
}

/// Everything that an agent does.
fn own() -> Vec<(&'static str, Request)> {
    let taint = json!({"key": "evictd.dev/memory-pressure", "effect": "NoSchedule"});
    let condition = json!({"type": "EvictdMemoryPressure", "status": "True"});
    let mut with_condition = recorded("node-condition-patch");
    let mut without = with_condition.clone();
    let conditions = without["status"]["conditions"].as_array_mut().unwrap();
    let before = conditions.len();
    conditions.retain(|c| c["type"] != "EvictdMemoryPressure");
    assert_eq!(conditions.len() + 1, before);
    with_condition["metadata"]["resourceVersion"] = "9".into();
    vec![
        ("deletes a pod", deletion()),
        ("sets DisruptionTarget", pod_status(disruption_target)),
        ("asks whether a pod may be evicted", eviction(true)),
        (
            "tells of its evictions, and forgets old ones",
            config_map(
                "evictd-fleet-evictions",
                json!({"other": "1", "old": "0"}),
                json!({"other": "1", NODE: "2"}),
            ),
        ),
        (
            "sets the fleet's pace",
            config_map(
                "evictd-fleet",
                json!({}),
                json!({"pace": "slow", "until": "t", "nodes": "10", "by": NODE}),
            ),
        ),
        (
            "sets its taint",
            node_change("nodes", |node| push(&mut node["spec"]["taints"], taint)),
        ),
        (
            "sets its condition",
            node_change("nodes/status", |node| {
                push(&mut node["status"]["conditions"], condition)
            }),
        ),
        (
            "sets its condition, as recorded",
            on_pods(
                "UPDATE",
                "nodes/status",
                with_condition.clone(),
                without.clone(),
            ),
        ),
        (
            "takes its condition back",
            on_pods("UPDATE", "nodes/status", without, with_condition),
        ),
        ("tells an Event", event("CREATE", NODE, Value::Null)),
        (
            "counts an Event",
            event("UPDATE", NODE, recorded("event-created")),
        ),
        ("accepts a policy", policy_status(|_| {})),
    ]
}

#[test]
fn every_policy_is_bound_and_every_expression_compiles() {
    let policies = policies();
    assert_eq!(policies.len(), 6);
    assert!(policies.compile() >= 20);
}

#[test]
fn an_agent_may_do_its_work_on_its_node() {
    let policies = policies();
    for (what, request) in own() {
        policies.admits(what, &request);
    }
}

#[test]
fn an_agent_of_another_node_may_do_none_of_it() {
    let policies = policies();
    for (what, mut request) in own() {
        // A question changes nothing, and a policy is of no node.
        if ["pods/eviction", "evictionpolicies/status"].contains(&request.resource) {
            continue;
        }
        request.user = user(AGENT, Some("n1"));
        policies.refuses(what, &request, "n1");
    }
}

// The API takes no more of the name.
#[test]
fn a_node_of_a_long_name_may_create_its_events() {
    let policies = policies();
    let node = "n".repeat(200);
    for (instance, is_its_own) in [(128, true), (127, false), (1, false)] {
        let mut request = event("CREATE", &node[..instance], Value::Null);
        request.user = user(AGENT, Some(&node));
        let what = format!("{instance} characters");
        if is_its_own {
            policies.admits(&what, &request);
        } else {
            policies.refuses(&what, &request, "reportingInstance");
        }
    }
}

#[test]
fn a_token_without_a_node_may_do_nothing() {
    let policies = policies();
    for (what, mut request) in own() {
        request.user = user(AGENT, None);
        policies.refuses(what, &request, "");
        request.user = json!({"username": AGENT});
        policies.refuses(what, &request, "");
    }
}

#[test]
fn a_pod_may_fail_as_evicted_where_that_is_wanted_and_in_no_other_way() {
    skip_if!(helm().err());
    let policies = policies_of_failing();
    assert!(policies.compile() >= 20);
    for (what, request) in own() {
        policies.admits(what, &request);
    }
    let failed = pod_status(fail);
    policies.admits("a pod", &failed);
    let mut again = failed.clone();
    fail(&mut again.old);
    policies.admits("once more, as an answer was lost", &again);
    let mut ended = failed.clone();
    ended.old["status"]["phase"] = "Failed".into();
    policies.admits("a pod whose own containers failed", &ended);
    self::policies().refuses("by default", &failed, "DisruptionTarget");
    let mut elsewhere = failed.clone();
    elsewhere.user = user(AGENT, Some("n1"));
    policies.refuses("on another node", &elsewhere, "n1");
    for [what, pointer, value] in rows(
        r#"
        another reason | /status/reason | Other
        success | /status/phase | Succeeded
        an address beside it | /status/podIP | 10.0.0.1
        a container's status beside it | /status/containerStatuses | [{name: c, ready: false}]
        a label beside it | /metadata/labels/app | other
        "#,
    ) {
        let changed = pod_status(|pod| {
            fail(pod);
            set(pod, pointer, yaml(value));
        });
        policies.refuses(what, &changed, "");
    }
    for (what, change) in [
        (
            "a phase alone",
            (|pod| pod["status"]["phase"] = "Failed".into()) as fn(&mut Value),
        ),
        ("a message alone", |pod| {
            pod["status"]["message"] = "m".into()
        }),
        ("no phase", |pod| {
            pod["status"].as_object_mut().unwrap().remove("phase");
        }),
    ] {
        policies.refuses(what, &pod_status(change), "");
    }
    for (what, before) in [
        ("what has succeeded has", json!({"phase": "Succeeded"})),
        (
            "another's reason stays",
            json!({"phase": "Failed", "reason": "DeadlineExceeded"}),
        ),
    ] {
        let mut request = failed.clone();
        let status = request.old["status"].as_object_mut().unwrap();
        status.extend(before.as_object().unwrap().clone());
        policies.refuses(what, &request, "");
    }
    // One pool is enough: the policy is of all agents.
    let pool = json!({"nodePools": [{
        "name": "a", "nodeLabel": {"key": "k", "values": ["v"]}, "config": {"cluster": {"evictedPods": "Fail"}},
    }]});
    let of_pool = Policies::new(&helm::objects(&pool).unwrap());
    of_pool.admits("a pool's", &failed);
}

#[test]
fn a_taint_that_evicts_pods_is_denied() {
    let taint = json!({"key": "evictd.dev/memory-pressure", "effect": "NoExecute"});
    let set = node_change("nodes", |node| push(&mut node["spec"]["taints"], taint));
    policies().refuses("NoExecute", &set, "but for NoExecute");
}

#[test]
fn others_are_none_of_the_policies_business() {
    let policies = policies();
    for (what, mut request) in own() {
        for name in [
            "system:node:n1",
            "system:serviceaccount:default:evictd",
            "kubernetes-admin",
        ] {
            request.user = user(name, None);
            policies.admits(&format!("{what}, {name}"), &request);
        }
    }
}

#[test]
fn an_agent_may_do_nothing_else_on_its_node() {
    let policies = policies();
    let refused = |what: &str, request, expected: &str| policies.refuses(what, &request, expected);
    for [what, resources, pointer, value, expected] in rows(
        r#"
        a label | pods, pods/status | /metadata/labels/app | other | may not change a pod's metadata or specification
        a finalizer | pods, pods/status | /metadata/finalizers | [] | may not change a pod's metadata or specification
        an owner | pods, pods/status | /metadata/ownerReferences | [{uid: u}] | may not change a pod's metadata or specification
        an image | pods, pods/status | /spec/containers/0/image | other | may not change a pod's metadata or specification
        a phase | pods, pods/status | /status/phase | Succeeded | may set the condition DisruptionTarget in a pod's status and nothing else
        an address | pods, pods/status | /status/podIP | 10.0.0.1 | may set the condition DisruptionTarget in a pod's status and nothing else
        a container's status | pods, pods/status | /status/containerStatuses | [{name: c, ready: false}] | may set the condition DisruptionTarget in a pod's status and nothing else
        another condition | pods, pods/status | /status/conditions/- | {type: Ready, status: "False"} | may set the condition DisruptionTarget in a pod's status and nothing else
        a policy's specification | evictionpolicies/status | /spec/precedence | 7 | may write the status of policies and nothing else
        another's condition | evictionpolicies/status | /status/conditions/- | {type: Audited, status: "True"} | its own three conditions
        immutable | evictd-fleet, evictd-fleet-evictions | /immutable | true | nothing else of them
        a finalizer | evictd-fleet, evictd-fleet-evictions | /metadata/finalizers | [a.example/stays] | nothing else of them
        an owner | evictd-fleet, evictd-fleet-evictions | /metadata/ownerReferences | [{uid: u}] | nothing else of them
        labels | evictd-fleet, evictd-fleet-evictions | /metadata/labels | {a: b} | nothing else of them
        another's taint | nodes, nodes/status | /spec/taints/- | {key: a, effect: NoExecute} | may set taints whose key begins with evictd.dev/
        a cordon | nodes, nodes/status | /spec/unschedulable | true | may set taints whose key begins with evictd.dev/
        the kubelet's condition | nodes, nodes/status | /status/conditions/0/status | "True" | may set conditions whose type begins with Evictd
        capacity | nodes, nodes/status | /status/capacity | {memory: 1Ti} | may set conditions whose type begins with Evictd
        a label | nodes, nodes/status | /metadata/labels | {a: b} | may not change a Node's metadata
        "#,
    ) {
        for resource in resources.split(", ") {
            let mut request = unchanged(resource);
            set(&mut request.object, pointer, yaml(value));
            refused(&format!("{what} of {resource}"), request, expected);
        }
    }
    let long = "2".repeat(65);
    for [what, name, before, after, expected] in rows(
        r#"
        another node's evictions | evictd-fleet-evictions | {other: "1"} | {other: "2"} | evictions of its own node only
        evictions of a node that told of none | evictd-fleet-evictions | {} | {other: "2"} | evictions of its own node only
        an entry that fills the ConfigMap | evictd-fleet-evictions | {} | {n2: "LONG"} | evictions of its own node only, by a time
        a pace in another's name | evictd-fleet | {} | {pace: paused, by: other} | in the name of its own node only
        a pace that there is not | evictd-fleet | {} | {pace: halted, by: n2} | normal, slow or paused
        a word that fills the ConfigMap | evictd-fleet | {pace: slow, by: n2} | {pace: slow, until: "LONG", by: n2} | what it says of it is short
        the pause | evictd-pause | {} | {paused: "true"} | the two ConfigMaps of its fleet brake only
        the configuration | evictd | {} | {config.yaml: ""} | the two ConfigMaps of its fleet brake only
        "#,
    ) {
        let after = yaml(&after.replace("LONG", &long));
        refused(what, config_map(name, yaml(before), after), expected);
    }
    // Of whatever node: an Eviction does not say it.
    refused("an eviction", eviction(false), "in a dry run only");
    // What a server-side apply with force does to the taints of others, as it was recorded.
    let mut applied = unchanged("nodes");
    applied.object = recorded("node-taint-apply");
    let taints = "may set taints whose key begins with evictd.dev/";
    refused("an applied taint", applied, taints);
    for [what, status, resource, expected] in rows(
        "
        a policy itself | evictionpolicies/status | evictionpolicies | may write the status of policies and nothing else
        the node itself | nodes | nodes | its own Node only
        ",
    ) {
        let mut deleted = unchanged(status);
        (deleted.operation, deleted.resource, deleted.object) = ("DELETE", resource, Value::Null);
        refused(what, deleted, expected);
    }
    let foreign = {
        let mut old = recorded("event-created");
        old["reportingInstance"] = "n1".into();
        event("UPDATE", NODE, old)
    };
    refused(
        "another's Event",
        foreign,
        "only the Events of its own node",
    );
    let mut posing = event("CREATE", NODE, Value::Null);
    posing.object["reportingController"] = "kubelet".into();
    refused("another's name", posing, "reportingController 'evictd'");
}

/// What the API server itself writes at each change, and what has these fields in it.
const OF_THE_SERVER: [&str; 4] = [
    "/metadata",
    "/metadata/managedFields",
    "/metadata/resourceVersion",
    "/metadata/generation",
];

/// Every field of every object that an agent may patch: each that is there and each that a later version may add, changed,
/// added and taken away. A list of fields would forget some.
#[test]
fn no_field_can_be_changed_but_the_agents_own() {
    let policies = policies();
    let mut checked = 0;
    let mut entry = unchanged("evictd-fleet-evictions");
    (entry.object["data"], entry.old["data"]) = (json!({NODE: "1"}), json!({}));
    let node: &[&str] = &["/spec/taints", "/status/conditions"];
    for (request, own) in [
        (unchanged("evictd-fleet"), &["/data"][..]),
        (entry, &["/data"]),
        (unchanged("pods/status"), &["/status/conditions"]),
        (unchanged("nodes"), node),
        (unchanged("nodes/status"), node),
        (
            unchanged("evictionpolicies/status"),
            &["/status/conditions"],
        ),
        (unchanged("events"), &["/series"]),
    ] {
        policies.admits("as it is", &request);
        let mut parts = vec!["", "/metadata", "/status"];
        if request.object.get("spec").is_some() {
            parts.push("/spec");
        }
        if ["events", "configmaps"].contains(&request.resource) {
            parts.retain(|part| *part != "/status");
        } else {
            // Other parts than these are no field that the API server keeps.
            parts.remove(0);
        }
        for part in parts {
            let mut names: Vec<String> = match request.object.pointer(part) {
                Some(Value::Object(fields)) => fields.keys().cloned().collect(),
                _ => Vec::new(),
            };
            names.extend(["fieldOfALaterVersion".to_owned()]);
            for name in names {
                let path = format!("{part}/{name}");
                if own.contains(&path.as_str()) || OF_THE_SERVER.contains(&path.as_str()) {
                    continue;
                }
                let mut changed = request.clone();
                changed.object.pointer_mut(part).unwrap()[&name] = "changed".into();
                let what = format!("{} of {}", path, request.resource);
                policies.refuses(&what, &changed, "");
                let mut gone = request.clone();
                let fields = gone.object.pointer_mut(part).unwrap().as_object_mut();
                if fields.unwrap().remove(&name).is_some() {
                    policies.refuses(&what, &gone, "");
                }
                checked += 1;
            }
        }
    }
    assert!(checked > 60, "{checked}");
    // What the API server itself writes at each change.
    let mut written = pod_status(disruption_target);
    written.object["metadata"]["resourceVersion"] = "9".into();
    written.object["metadata"]["managedFields"] = json!([{"manager": "evictd"}]);
    policies.admits("what the API server writes", &written);
}
