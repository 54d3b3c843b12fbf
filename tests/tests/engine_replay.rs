//! `evictd replay` against 24 sequences recorded from the kubelet.

use evictd_tests::vectors::{Files, evictd, read};
use serde_json::{Value, json};

/// Runs `evictd replay` over a sequence, without what is expected of it.
fn replay(files: &Files, sequence: &Value, mode: &str) -> Vec<Value> {
    let mut scenario = sequence.clone();
    for step in scenario["steps"].as_array_mut().expect("steps") {
        step.as_object_mut().expect("a step").remove("expect");
    }
    let path = files.write("scenario.json", scenario);
    let outcome = evictd([
        "replay",
        path.to_str().expect("UTF-8"),
        "--mode",
        mode,
        "-o",
        "json",
    ]);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""));
    serde_json::from_str(&outcome.stdout).expect("JSON")
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
    let files = Files::new();
    let mut rounds = 0;
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
            rounds += 1;
        }
    }
    assert_eq!((sequences.len(), rounds), (24, 530));
}
