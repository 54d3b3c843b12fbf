//! `evictd rank` against 100 orders recorded from the kubelet.

use evictd_tests::{
    prelude::*,
    vectors::{rank, read},
};

/// Runs `evictd rank` over a case of `rank.jsonl`.
fn ranked(case: &Value) -> Value {
    let pods = json!({"kind": "PodList", "items": case["pods"]});
    let summary = json!({"node": {}, "pods": case["podStats"]});
    let signal = case["signal"].as_str().expect("a signal");
    let mut arguments = vec!["--signal", signal, "-o", "json"];
    for (field, flag) in [
        ("dedicatedImageFs", "--dedicated-image-fs"),
        ("splitContainerImageFs", "--split-image-fs"),
    ] {
        if case[field] == true {
            arguments.push(flag);
        }
    }
    rank(pods, summary, &arguments).json()
}

// R9: the kubelet ranks by what it has allocated (`getAllocatedPods`).
#[test]
fn a_resize_that_the_node_refuses_moves_no_pod() {
    let mut moved = 0;
    let cases = read("rank.jsonl");
    let of_memory = |case: &&Value| case["signal"] == "memory.available";
    for case in cases.iter().filter(of_memory) {
        let mut asked = case.clone();
        for pod in asked["pods"].as_array_mut().expect("pods") {
            let mut statuses = Vec::new();
            for container in pod["spec"]["containers"]
                .as_array_mut()
                .expect("containers")
            {
                let requests = container["resources"]["requests"].take();
                container["resources"]["requests"] = json!({"memory": "10Ti"});
                let name = &container["name"];
                statuses
                    .push(json!({"name": name, "resources": {}, "allocatedResources": requests}));
            }
            pod["status"]["containerStatuses"] = statuses.into();
        }
        assert_eq!(ranked(&asked)["order"], ranked(case)["order"]);
        for pod in asked["pods"].as_array_mut().expect("pods") {
            pod["status"]["containerStatuses"].take();
        }
        moved += usize::from(ranked(&asked)["order"] != ranked(case)["order"]);
    }
    assert!(
        moved > 5,
        "without its status a pod ranks by what it asks for"
    );
}

#[test]
fn every_order_is_the_kubelets() {
    // R9, R10, R12
    let cases = read("rank.jsonl");
    assert_eq!(cases.len(), 100);
    for (number, case) in cases.iter().enumerate() {
        let names = case["order"]
            .as_array()
            .expect("an order")
            .iter()
            .map(|name| name.as_str().expect("a name"));
        let expected: Vec<Value> = names.map(|name| format!("default/{name}").into()).collect();
        let ranking = ranked(case);
        assert_eq!(
            ranking["order"],
            Value::from(expected),
            "line {}: {}",
            number + 1,
            case["signal"]
        );
    }
}

#[test]
fn the_order_does_not_depend_on_that_of_the_input() {
    for case in read("rank.jsonl").iter().take(20) {
        let mut reversed = case.clone();
        for field in ["pods", "podStats"] {
            reversed[field].as_array_mut().expect("a list").reverse();
        }
        assert_eq!(ranked(case), ranked(&reversed));
    }
}

#[test]
fn people_are_told_why() {
    // R9, R12, R13
    let pod = |name: &str, priority: i32, request: &str| {
        json!({
            "metadata": {"name": name, "namespace": "shop", "uid": name},
            "spec": {"priority": priority, "containers": [{"resources": {"requests": {"memory": request}}}]},
        })
    };
    let pods = json!([
        pod("web", 0, "64Mi"),
        pod("cache", 1000, "1Gi"),
        pod("dns", 2_000_001_000, "0"),
        pod("new", 5, "1Mi")
    ]);
    let used = |name: &str, mi: u64| json!({"podRef": {"uid": name}, "memory": {"workingSetBytes": mi << 20}});
    let summary = json!({
        "node": {"memory": {"availableBytes": 1u64 << 30, "workingSetBytes": 3u64 << 30}},
        "pods": [used("web", 96), used("cache", 1536), used("dns", 10)],
    });
    let outcome = rank(pods, summary, &["--signal", "memory.available"]);
    assert_eq!(
        outcome.stdout,
        "#  POD            USAGE   REQUEST     EXCESS    PRIORITY  QOS         OOM ADJ  NOTE\n\
         1  shop/new           -   1.0 MiB          -           5  Burstable       999  evicted first, no numbers\n\
         2  shop/web    96.0 MiB  64.0 MiB   32.0 MiB           0  Burstable       985\n\
         3  shop/cache   1.5 GiB   1.0 GiB  512.0 MiB        1000  Burstable       750  the OOM killer's choice\n\
         4  shop/dns    10.0 MiB       0 B   10.0 MiB  2000001000  BestEffort     -997  protected\n"
    );
}

#[test]
fn bad_input_is_named() {
    for [pods, summary, arguments, expected] in rows(
        r#"
        [] | {} | memory.free | unsupported eviction signal
        [] | {} | memory.available --strategy fair | must be one of kubelet, qos, usage
        { | {} | memory.available | pods.json: EOF while parsing
        {} | {} | memory.available | pods.json: items: must be a list of pods
        [{"spec": {"priority": "high"}}] | {} | memory.available | pods.json: pods[0].spec.priority: invalid type
        [] | {"pods": [{"memory": 7}]} | memory.available | summary.json: summary.pods[0].memory: invalid type
        [] | {"kind": "PodList", "items": []} | memory.available | summary.json: summary: is a list of objects
        "#,
    ) {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let outcome = rank(pods, summary, &[&["--signal"], &arguments[..]].concat());
        // The command line's own words are several lines.
        assert_eq!((outcome.code, &*outcome.stdout), (2, ""), "{pods}");
        has(&outcome.stderr, &[expected]);
    }
    // Unknown fields and nulls are no mistake.
    let pods = r#"{"kind": "PodList", "new": 1, "items": [{"spec": null, "metadata": {"name": "a", "labels": null}}]}"#;
    let summary = r#"{"node": {"swap": {}}, "pods": null, "new": []}"#;
    let told = rank(pods, summary, &["--signal", "pid.available", "-o", "json"]).good();
    begins(&told, r#"{"order":["/a"]"#);
}
