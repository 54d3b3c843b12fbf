use serde_json::{Value, json};

use super::*;

const MI: u64 = 1 << 20;

fn pod(spec: Value) -> Pod {
    read_pod("pod", &json!({ "spec": spec })).expect("a pod")
}

fn container(requests: Value, limits: Value) -> Value {
    json!({"name": "c", "resources": {"requests": requests, "limits": limits}})
}

#[test]
fn requests_add_up_over_containers_that_run_side_by_side() {
    // R9, KEP-753
    let memory = |amount: &str| container(json!({"memory": amount}), json!({}));
    let sidecar = |amount: &str| {
        let mut container = memory(amount);
        container["restartPolicy"] = json!("Always");
        container
    };
    for (containers, init, expected) in [
        (json!([memory("1Mi"), memory("2Mi")]), json!(null), 3),
        (
            json!([memory("1Mi"), memory("2Mi")]),
            json!([memory("5Mi"), memory("4Mi")]),
            5,
        ),
        (json!([memory("1Mi")]), json!([sidecar("2Mi")]), 3),
        // The init container starts beside the sidecar before it, not beside the one after it.
        (
            json!([memory("1Mi")]),
            json!([sidecar("2Mi"), memory("4Mi"), sidecar("1Mi")]),
            6,
        ),
        (
            json!([memory("9Mi")]),
            json!([sidecar("2Mi"), memory("4Mi"), sidecar("1Mi")]),
            12,
        ),
        (json!([]), json!([]), 0),
    ] {
        let pod = pod(json!({"containers": containers, "initContainers": init}));
        assert_eq!(pod.memory_request, expected * MI, "{containers} {init}");
    }
}

#[test]
fn overhead_is_added_to_what_is_requested_and_to_nothing_else() {
    let overhead = json!({"memory": "7Mi"});
    let with = |requests| {
        pod(json!({"containers": [container(requests, json!({}))], "overhead": overhead}))
    };
    assert_eq!(with(json!({"memory": "1Mi"})).memory_request, 8 * MI);
    assert_eq!(with(json!({})).memory_request, 0);
}

#[test]
fn resources_of_the_pod_replace_those_of_its_containers() {
    let pod = pod(json!({
        "containers": [container(json!({"memory": "1Mi", "ephemeral-storage": "3Mi"}), json!({"memory": "1Mi"}))],
        "resources": {"requests": {"memory": "5Mi", "cpu": "1"}, "limits": {"memory": "5Mi", "cpu": "1"}},
        "overhead": {"memory": "1Mi"},
    }));
    assert_eq!(pod.memory_request, 6 * MI);
    assert_eq!(
        pod.pod_level_memory_request
            .map(|q| q.to_string())
            .as_deref(),
        Some("5Mi")
    );
    // Ephemeral storage cannot be requested for the pod, and then its containers are not asked.
    assert_eq!(pod.storage_request, 0);
    assert_eq!(pod.qos, QosClass::Guaranteed);
}

#[test]
fn limits_bound_memory_only_where_every_container_has_one() {
    // R45
    let limited = container(
        json!({}),
        json!({"memory": "1Mi", "ephemeral-storage": "2Mi"}),
    );
    let free = container(json!({}), json!({}));
    let all = pod(json!({"containers": [limited, limited]}));
    assert_eq!(all.qos, QosClass::Burstable);
    let some = pod(json!({"containers": [limited, free]}));
    assert_eq!(
        some.storage_limit.map(|q| q.to_string()).as_deref(),
        Some("2Mi")
    );
}

#[test]
fn only_volumes_on_the_nodes_disk_are_local() {
    // R10
    let pod = pod(json!({"volumes": [
        {"name": "host", "hostPath": {"path": "/x"}},
        {"name": "scratch", "emptyDir": {"sizeLimit": "1Gi"}},
        {"name": "memory", "emptyDir": {"medium": "Memory"}},
        {"name": "config", "configMap": {"name": "c"}},
        {"name": "claim", "persistentVolumeClaim": {"claimName": "c"}},
        {"name": "nothing", "emptyDir": null},
    ]}));
    let local: Vec<&str> = pod
        .volumes
        .iter()
        .filter(|v| v.is_local)
        .map(|v| v.name.as_str())
        .collect();
    assert_eq!(local, ["host", "scratch", "config"]);
    let limits: Vec<bool> = pod.volumes.iter().map(|v| v.empty_dir.is_some()).collect();
    assert_eq!(limits, [false, true, true, false, false, false]);
}

#[test]
fn static_and_mirror_pods_are_known_by_their_annotations() {
    // R12
    for (annotations, is_static, is_mirror) in [
        (json!({"kubernetes.io/config.source": "file"}), true, false),
        (json!({"kubernetes.io/config.source": "api"}), false, false),
        (json!({"kubernetes.io/config.mirror": ""}), false, true),
        (json!(null), false, false),
    ] {
        let pod =
            read_pod("pod", &json!({"metadata": {"annotations": annotations}})).expect("a pod");
        assert_eq!(
            (pod.is_static, pod.is_mirror),
            (is_static, is_mirror),
            "{annotations}"
        );
        assert_eq!(pod.is_critical(), is_static || is_mirror);
    }
    assert!(pod(json!({"priority": 2_000_001_000})).is_critical());
    assert!(!pod(json!({"priority": 1_999_999_999})).is_critical());
}

#[test]
fn lists_come_in_two_forms_and_errors_say_where() {
    let one = json!({"metadata": {"name": "a", "namespace": "n"}, "unknown": 1, "spec": null, "status": null});
    for document in [json!([one]), json!({"kind": "PodList", "items": [one]})] {
        let pods = read_pods(&document).expect("pods");
        assert_eq!(
            pods.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["n/a"]
        );
    }
    assert_eq!(read_pods(&json!({"items": null})), Ok(Vec::new()));
    for (document, expected) in [
        (json!({}), "items: must be a list of pods"),
        (json!(7), "pods: must be a PodList or a list of pods"),
        (
            json!([7]),
            "pods[0]: invalid type: integer `7`, expected struct PodJson",
        ),
        (
            json!([{"spec": {"containers": [container(json!({"memory": "1Gib"}), json!({}))]}}]),
            "pods[0].spec.containers[0].resources.requests.memory: \"1Gib\": is not a quantity: a number with an \
             optional suffix such as Ki, Mi, Gi, k, M, G, m or e3",
        ),
    ] {
        assert_eq!(
            read_pods(&document).map_err(|e| e.to_string()),
            Err(expected.to_owned())
        );
    }
}
