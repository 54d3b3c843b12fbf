//! `evictd rank` against 100 orders recorded from the kubelet.

use evictd_tests::vectors::{Files, evictd, read};
use serde_json::{Value, json};

/// Runs `evictd rank` over a case of `rank.jsonl`.
fn rank(files: &Files, case: &Value) -> Value {
    let pods = files.write(
        "pods.json",
        json!({"kind": "PodList", "items": case["pods"]}),
    );
    let summary = files.write("summary.json", json!({"pods": case["podStats"]}));
    let mut arguments = vec![
        "rank",
        "--signal",
        case["signal"].as_str().expect("a signal"),
        "-o",
        "json",
    ];
    for (field, flag) in [
        ("dedicatedImageFs", "--dedicated-image-fs"),
        ("splitContainerImageFs", "--split-image-fs"),
    ] {
        if case[field] == true {
            arguments.push(flag);
        }
    }
    let (pods, summary) = (
        pods.to_str().expect("UTF-8"),
        summary.to_str().expect("UTF-8"),
    );
    arguments.extend(["--pods", pods, "--summary", summary]);
    let outcome = evictd(arguments);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""));
    serde_json::from_str(&outcome.stdout).expect("JSON")
}

#[test]
fn every_order_is_the_kubelets() {
    // R9, R10, R12
    let cases = read("rank.jsonl");
    assert_eq!(cases.len(), 100);
    let files = Files::new();
    for (number, case) in cases.iter().enumerate() {
        let names = case["order"]
            .as_array()
            .expect("an order")
            .iter()
            .map(|name| name.as_str().expect("a name"));
        let expected: Vec<Value> = names.map(|name| format!("default/{name}").into()).collect();
        let ranking = rank(&files, case);
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
    let files = Files::new();
    for case in read("rank.jsonl").iter().take(20) {
        let mut reversed = case.clone();
        for field in ["pods", "podStats"] {
            reversed[field].as_array_mut().expect("a list").reverse();
        }
        assert_eq!(rank(&files, case), rank(&files, &reversed));
    }
}
