//! `evictd replay` against 24 sequences recorded from the kubelet.

use evictd_tests::{
    prelude::*,
    vectors::{Files, evictd, read},
};

/// Runs `evictd replay` over a sequence, without what is expected of it.
fn replay(files: &Files, sequence: &Value, mode: &str) -> Vec<Value> {
    let mut scenario = sequence.clone();
    for step in scenario["steps"].as_array_mut().expect("steps") {
        step.as_object_mut().expect("a step").remove("expect");
    }
    let path = files.write("scenario.json", scenario);
    let results = evictd(["replay", &path, "--mode", mode, "-o", "json"]).json();
    results.as_array().expect("a list").clone()
}

/// Null and absent are empty lists. Several pods that exceed limits of their own come in the order in which the
/// kubelet happened to list its pods, so that they are compared by name.
fn list(value: &Value) -> Value {
    let mut items = value.as_array().cloned().unwrap_or_default();
    items.sort_by_key(|item| item["pod"].to_string());
    items.into()
}

#[test]
fn every_round_is_the_kubelets() {
    // R4 to R11, R18
    let sequences = read("sync.jsonl");
    let files = Files::default();
    let mut manager = 0;
    for (number, sequence) in sequences.iter().enumerate() {
        let results = replay(&files, sequence, "kubelet");
        let steps = sequence["steps"].as_array().expect("steps");
        assert_eq!(results.len(), steps.len());
        for (step, result) in steps.iter().zip(&results) {
            let expect = &step["expect"];
            let expected = json!({
                "t": step["t"],
                "nodeConditions": expect["nodeConditions"],
                "evicted": list(&expect["evicted"]),
                "nodeReclaim": list(&expect["nodeReclaim"]),
            });
            let mut result = result.clone();
            result["evicted"] = list(&result["evicted"]);
            assert_eq!(result, expected, "line {}, t {}", number + 1, step["t"]);
            manager += 1;
        }
    }
    assert_eq!((sequences.len(), manager), (24, 530));
}

#[test]
fn the_evictd_mode_protects_the_same_pods_as_the_kubelet_and_forecasts() {
    // R12, R44
    let files = Files::default();
    let mut foretold = 0;
    for sequence in &read("sync.jsonl") {
        let critical: Vec<&Value> = sequence["pods"]
            .as_array()
            .expect("pods")
            .iter()
            .filter(|pod| pod["spec"]["priority"].as_i64() >= Some(2_000_000_000))
            .map(|pod| &pod["metadata"]["name"])
            .collect();
        let mut evicted = Vec::new();
        for step in replay(&files, sequence, "evictd") {
            foretold += step["forecast"].as_array().map_or(0, Vec::len);
            for eviction in step["evicted"].as_array().expect("a list") {
                let pod = &eviction["pod"];
                assert!(!critical.contains(&pod));
                assert!(!evicted.contains(pod), "{pod} twice");
                evicted.push(pod.clone());
            }
        }
    }
    assert!(foretold > 0);
}

/// A scenario of one pod on a node that is short of memory.
fn scenario() -> Value {
    json!({
        "config": {"evictionHard": {"memory.available": "1Gi"}, "evictionPressureTransitionPeriodSeconds": 30},
        "pods": [{"metadata": {"name": "a", "namespace": "n", "uid": "u"}}],
        "steps": [{
            "t": 0.5,
            "summary": {"node": {"memory": {"availableBytes": 2000, "workingSetBytes": 1000}}},
            "activePods": ["n/a"],
        }],
    })
}

#[test]
fn people_get_a_table() {
    let files = Files::default();
    let path = files.write("scenario.json", scenario());
    let outcome = evictd(["replay", &path]);
    assert_eq!(
        outcome.stdout,
        "  T  NODE CONDITIONS  RECLAIM  EVICTED  GRACE  MESSAGE\n\
         0.5  MemoryPressure   -        n/a         1s  The node was low on resource: memory. Threshold quantity: 1Gi, available: 2000.\n"
    );
}

#[test]
fn bad_input_is_named() {
    let files = Files::default();
    for [pointer, value, expected] in rows(
        r#"
        / | [] | must be a map of fields
        /steps | 7 | steps: must be a list
        /steps/0/t | now | steps[0].t: "now": must be a time in seconds
        /steps/0/activePods/0 | b | steps[0].activePods[0]: "b": no such pod
        /steps/0/summary | none | steps[0].summary: must be a map of fields
        /steps/0/summary | [] | steps[0].summary: must be a map of fields
        /steps/0/summary | {items: []} | steps[0].summary: is a list of objects
        /steps/0 | 5 | steps[0]: 5: must be a map of fields
        /pods | 7 | pods: must be a PodList
        /steps/0 | {t: 1, sumary: {}} | steps[0].sumary: unknown field
        /steps | [{t: 2}, {t: 3}, {t: 1}] | steps[2].t: 1: is before 3, the time of the last step
        /steps | [{t: -1}, {t: 3}] | steps[0].t: -1: must not be below zero
        / | {steps: [], podz: []} | podz: unknown field
        /config | {evictionHrad: {}} | config.evictionHrad: unknown field
        /config/evictionPressureTransitionPeriodSeconds | -1 | config.evictionPressureTransitionPeriodSeconds: -1: must be a whole number of seconds
        "#,
    ) {
        let mut scenario = scenario();
        let field = scenario.pointer_mut(pointer.trim_end_matches('/'));
        *field.expect("a field") = yaml(value);
        let path = files.write("scenario.json", scenario);
        has(&evictd(["replay", &path]).refused(), &[expected]);
    }
}
