use super::*;

const NAMES: [Name<'static>; 2] = [
    Name {
        variable: "pod",
        fields: Some(&["labels", "items"]),
    },
    Name {
        variable: "answer",
        fields: None,
    },
];

fn value(json: serde_json::Value) -> Value {
    variables::value(&json)
}

fn run(text: &str, pod: serde_json::Value) -> Result<bool, String> {
    let expression = Expression::parse(text, &NAMES).map_err(|e| format!("parse: {e}"))?;
    let variables = [("pod", value(pod)), ("answer", Value::Null)];
    expression.is_true(&variables).map_err(|e| e.to_string())
}

#[test]
fn answers_yes_and_no_over_the_pods_labels() {
    let pod = serde_json::json!({
        "labels": {"role": "leader", "a/b": "1"}, "items": [1, 2, 3, 18446744073709551615u64],
    });
    for (text, expected) in [
        ("pod.labels.role == 'leader'", true),
        ("pod.labels['a/b'] == '1'", true),
        ("'role' in pod.labels && !('x' in pod.labels)", true),
        ("has(pod.labels.x) ? pod.labels.x == 'y' : false", false),
        ("pod.labels[?'x'].orValue('none') == 'none'", true),
        ("pod.items.all(i, i > 0)", true),
        ("pod.items.filter(i, i > 1).size() == 3", true),
        ("pod.items.map(i, i > 2)[3]", true),
        ("pod.items.exists(i, i == 2)", true),
        ("pod.items.exists_one(i, i == 2)", true),
        ("pod.labels.all(k, pod.labels[k] != '')", true),
        ("pod.labels.x == 'y' || pod.labels.role == 'leader'", true),
        (
            "pod.labels.x == 'y' && pod.labels.role == 'follower'",
            false,
        ),
    ] {
        assert_eq!(run(text, pod.clone()), Ok(expected), "{text}");
    }
}

#[test]
fn a_typo_is_found_when_the_expression_is_parsed() {
    for (text, expected) in [
        (
            "pod.lables.x",
            "unknown field pod.lables; there is labels, items",
        ),
        ("pod['lables'].x", "unknown field pod.lables"),
        ("pods.labels", "unknown variable pods; there is pod, answer"),
        ("pod.items.all(i, j > 0)", "unknown variable j"),
        ("pod.labels.x.matches('(a+)+')", "unknown function matches"),
        ("launch()", "unknown function launch"),
        ("pod.labels ==", "line 1, column"),
        ("", "line"),
        ("Pod{}", "unknown type Pod"),
    ] {
        let error = Expression::parse(text, &NAMES).map_err(|e| e.to_string());
        let error = error.expect_err(text);
        assert!(error.contains(expected), "{text}: {error}");
        assert!(!error.contains('\n'), "{error}");
    }
    let long = format!("{}true", "true && ".repeat(1000));
    assert!(Expression::parse(&long, &NAMES).is_err());
    for deep in [
        format!("{}true{}", "(".repeat(500), ")".repeat(500)),
        format!("{}true", "!".repeat(3000)),
        format!("{}true", "! ".repeat(1500)),
        format!("pod{}", ".x".repeat(1500)),
        format!("1{} == 0", " + 1".repeat(900)),
        format!("true{}", " ? true".repeat(500)),
        format!("{}true", "true ? ".repeat(500)),
        format!("{}1", "true ? 1 : ".repeat(300)),
    ] {
        assert!(Expression::parse(&deep, &NAMES).is_err(), "{}", &deep[..20]);
    }
    let many = format!("{}true", "true && ".repeat(300));
    assert!(
        Expression::parse(&many, &NAMES).is_ok(),
        "a long list of conditions is no chain"
    );
    let wide = format!("[{}].all(x, x)", "true,".repeat(780));
    let wide = Expression::parse(&wide, &NAMES).map(|e| e.is_true(&[]));
    assert!(matches!(wide, Err(_) | Ok(Ok(true))), "{wide:?}");
}

#[test]
fn what_has_no_answer_is_an_error_and_never_a_yes() {
    let pod = serde_json::json!({"labels": {}, "items": []});
    for (text, expected) in [
        ("pod.labels.x == 'y'", "No such key"),
        ("!(pod.labels.x == 'y')", "No such key"),
        ("pod.labels", "is neither true nor false"),
        ("1 / 0 == 1", "zero"),
        ("9223372036854775807 + 1 == 0", "Overflow"),
        ("answer.x", ""),
        ("pod.items[5]", ""),
    ] {
        let error = run(text, pod.clone()).expect_err(text);
        assert!(error.contains(expected), "{text}: {error}");
    }
}

/// Four loops inside each other over a thousand items would be 10^12 turns.
#[test]
fn loops_end() {
    let items: Vec<u32> = (0..1000).collect();
    let pod = serde_json::json!({"labels": {}, "items": items});
    for text in [
        "pod.items.all(a, pod.items.all(b, pod.items.all(c, pod.items.all(d, a + b + c + d >= 0))))",
        "pod.items.exists(a, pod.items.exists(b, pod.items.exists(c, a + b + c < 0)))",
        "pod.items.map(a, pod.items.map(b, pod.items.map(c, a))).size() > 0",
        "pod.items.filter(a, pod.items.filter(b, pod.items.filter(c, c < 0).size() > 0).size() > 0).size() > 0",
        "pod.items.filter(a, pod.items.exists(b, pod.items.exists(c, c < 0))).size() >= 0",
        "pod.items.all(a, pod.items.all(b, pod.items.exists(c, pod.items.exists(d, d < 0)) || true))",
        "pod.items.exists_one(a, pod.items.exists_one(b, pod.items.exists_one(c, c < 0)))",
    ] {
        let error = run(text, pod.clone()).expect_err(text);
        assert!(error.contains("turns"), "{text}: {error}");
    }
}
