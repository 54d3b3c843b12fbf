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

fn resized(spec: Value, status: Value) -> Pod {
    read_pod("pod", &json!({ "spec": spec, "status": status })).expect("a pod")
}

#[test]
fn a_sidecar_is_no_ordinary_init_container() {
    let of = |name: &str, policy: Value| json!({"name": name, "restartPolicy": policy});
    let pod = pod(json!({
        "containers": [of("app", json!("Always"))],
        "initContainers": [of("setup", json!(null)), of("mesh", json!("Always"))],
    }));
    let kinds = pod.containers.iter().map(|c| (c.kind, c.restartable));
    use ContainerKind::{Init, Regular};
    let expected = [(Regular, false), (Init, false), (Init, true)];
    assert_eq!(kinds.collect::<Vec<_>>(), expected);
}

// R9: a resize that no node can meet does not make a pod the last one.
#[test]
fn what_is_allocated_counts_and_not_what_is_asked_for() {
    let named = |name: &str, memory: &str| {
        let requests = json!({"memory": memory, "ephemeral-storage": "3Mi"});
        json!({"name": name, "resources": {"requests": requests}})
    };
    let spec = json!({
        "containers": [named("web", "10Ti"), named("proxy", "2Mi")],
        "initContainers": [{"name": "mesh", "restartPolicy": "Always", "resources": {"requests": {"memory": "9Ti"}}}],
        "overhead": {"memory": "7Mi"},
    });
    let allocated =
        |name: &str, memory: &str| json!({"name": name, "allocatedResources": {"memory": memory}});
    let status = json!({
        "containerStatuses": [allocated("proxy", "2Mi"), allocated("web", "5Mi")],
        "initContainerStatuses": [allocated("mesh", "1Mi")],
    });
    let pod = resized(spec.clone(), status.clone());
    assert_eq!(pod.memory_request, 15 * MI);
    assert_eq!(pod.storage_request, 6 * MI);
    let own: Vec<u64> = pod
        .containers
        .iter()
        .map(|c| c.memory_request.floor() / MI)
        .collect();
    assert_eq!(own, [5, 2, 1]);
    // A status of another container, or none yet: the specification. The whole pod's figure knows better.
    let status =
        json!({"containerStatuses": [allocated("proxy", "2Mi"), allocated("other", "5Mi")]});
    assert!(resized(spec.clone(), status.clone()).memory_request > 19 << 40);
    let mut status = status;
    status["allocatedResources"] = json!({"cpu": "1", "memory": "15Mi"});
    assert_eq!(resized(spec, status).memory_request, 15 * MI);
}

#[test]
fn the_status_names_containers_by_their_ids() {
    let of = |name: &str, id: Value| json!({"name": name, "containerID": id});
    let status = json!({
        "containerStatuses": [of("web", json!("containerd://c0ffee")), of("waits", json!("")), of("new", json!(null))],
        "initContainerStatuses": [of("mesh", json!("cri-o://beef")), {"name": "old"}],
        "ephemeralContainerStatuses": [of("debugger", json!("containerd://d0"))],
    });
    let names = resized(json!({}), status).container_names;
    let expected = [("beef", "mesh"), ("c0ffee", "web"), ("d0", "debugger")];
    let expected = expected.map(|(id, name)| (id.to_owned(), name.to_owned()));
    assert_eq!(names, expected.into());
    let none = resized(json!({}), json!({"ephemeralContainerStatuses": null}));
    assert!(none.container_names.is_empty());
}

/// A Job's pod that has completed would be evicted, and run again, while its phase is late.
#[test]
fn a_pod_may_complete_unless_a_container_waits_to_be_started() {
    let waits = |reason: &str| json!([{"name": "c", "state": {"waiting": {"reason": reason}}}]);
    let crashed = json!({"containerStatuses": waits("CrashLoopBackOff")});
    let behind = |exit_code: i32| {
        let ended = json!([{"name": "i", "state": {"terminated": {"exitCode": exit_code}}}]);
        json!({"initContainerStatuses": ended, "containerStatuses": waits("PodInitializing")})
    };
    let init = json!({"initContainerStatuses": waits("CrashLoopBackOff"), "containerStatuses": waits("PodInitializing")});
    let runs = json!({"containerStatuses": [{"name": "c", "state": {"running": {}}}, {"name": "d", "state": null}]});
    for (policy, status, expected) in [
        (json!(null), json!(null), false),
        (json!("Always"), runs.clone(), false),
        (json!("Never"), json!(null), true),
        (json!("Never"), behind(1), true),
        // It may wait for an image.
        (json!("Never"), behind(0), false),
        (json!("OnFailure"), runs, true),
        (json!("OnFailure"), crashed, false),
        (json!("OnFailure"), init, false),
    ] {
        let document = json!({"spec": {"restartPolicy": policy}, "status": status});
        let PodDocument(kept) = serde_json::from_value(document.clone()).unwrap();
        let pod = read_pod("pod", &kept).expect("a pod");
        assert_eq!(pod.may_complete, expected, "{document}");
    }
}

/// All static pods of a node would share the limits of an owner.
#[test]
fn the_node_is_no_owner_of_its_mirror_pods() {
    for (kind, expected) in [("Node", None), ("ReplicaSet", Some("x"))] {
        let owner = json!({"kind": kind, "name": "x", "uid": "u", "controller": true});
        let pod = json!({"metadata": {"ownerReferences": [owner]}});
        let pod = read_pod("pod", &pod).expect("a pod");
        assert_eq!(pod.owner.as_ref().map(|owner| &*owner.name), expected);
    }
}

#[test]
fn where_nothing_is_allocated_nothing_is_requested() {
    let spec = |overhead| {
        let requests = json!({"cpu": "1", "memory": "10Ti"});
        json!({"containers": [container(requests, json!({}))], "overhead": overhead})
    };
    let status = |status: Value| json!({"containerStatuses": [status]});
    for (told, expected) in [
        // Kubelets before 1.33, a container that was not started yet, or null.
        (status(json!({"name": "c"})), 10 << 40),
        (
            status(json!({"name": "c", "allocatedResources": null, "resources": null})),
            10 << 40,
        ),
        (
            json!({"containerStatuses": null, "initContainerStatuses": null, "allocatedResources": null}),
            10 << 40,
        ),
        // Kubelets before 1.35.
        (
            status(json!({"name": "c", "resources": {"requests": {"memory": "5Mi"}}})),
            5 * MI,
        ),
        (status(json!({"name": "c", "resources": {}})), 0),
        (
            status(json!({"name": "c", "allocatedResources": {"cpu": "1"}, "resources": {}})),
            0,
        ),
        (json!({"allocatedResources": {"cpu": "1"}}), 0),
    ] {
        assert_eq!(
            resized(spec(json!({})), told.clone()).memory_request,
            expected,
            "{told}"
        );
    }
    // The overhead alone is no request.
    let told = json!({"allocatedResources": {"memory": "7Mi"}});
    assert_eq!(
        resized(spec(json!({"memory": "7Mi"})), told).memory_request,
        0
    );
}

#[test]
fn the_resources_of_a_pod_are_resized_too() {
    let spec = |requests: Value| {
        let containers = json!([container(json!({"memory": "1Mi"}), json!({}))]);
        json!({"containers": containers, "resources": {"requests": requests}, "overhead": {"memory": "1Mi"}})
    };
    let told = json!({"allocatedResources": {"memory": "6Mi"}});
    let level = |pod: &Pod| {
        pod.pod_level_memory_request
            .as_ref()
            .map(ToString::to_string)
    };
    let pod = resized(spec(json!({"memory": "10Ti"})), told.clone());
    assert_eq!(
        (pod.memory_request, level(&pod).as_deref()),
        (6 * MI, Some("5Mi"))
    );
    // What was not resized is printed as it was written.
    let pod = resized(spec(json!({"memory": "5242880"})), told.clone());
    assert_eq!(
        (pod.memory_request, level(&pod).as_deref()),
        (6 * MI, Some("5242880"))
    );
    let pod = resized(spec(json!({"cpu": "1"})), told);
    assert_eq!((pod.memory_request, level(&pod)), (0, None));
    let pod = resized(
        spec(json!({"memory": "10Ti"})),
        json!({"allocatedResources": {"cpu": "1"}}),
    );
    assert_eq!((pod.memory_request, level(&pod).as_deref()), (0, Some("0")));
    let pod = resized(spec(json!({"memory": "5Mi"})), json!({}));
    assert_eq!(pod.memory_request, 6 * MI);
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
