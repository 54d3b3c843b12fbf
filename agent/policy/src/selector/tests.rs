use super::*;

fn read(selector: Value) -> Result<Selector, String> {
    let mut fields =
        ObjectDecoder::open("", json!({ "selector": selector })).map_err(|e| e.to_string())?;
    Selector::take(&mut fields, "selector").map_err(|e| e.to_string())
}

fn labels(labels: &[(&str, &str)]) -> Labels {
    labels
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect()
}

#[test]
fn labels_are_selected_as_the_api_does() {
    let cases = [
        (json!({}), &[][..], true),
        (
            json!({"matchLabels": {"a": "1"}}),
            &[("a", "1"), ("b", "2")],
            true,
        ),
        (json!({"matchLabels": {"a": "1"}}), &[("a", "2")], false),
        (
            json!({"matchExpressions": [{"key": "a", "operator": "In", "values": ["1", "2"]}]}),
            &[("a", "2")],
            true,
        ),
        (
            json!({"matchExpressions": [{"key": "a", "operator": "In", "values": ["1"]}]}),
            &[],
            false,
        ),
        (
            json!({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["1"]}]}),
            &[],
            true,
        ),
        (
            json!({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["1"]}]}),
            &[("a", "1")],
            false,
        ),
        (
            json!({"matchExpressions": [{"key": "a", "operator": "Exists"}]}),
            &[("a", "")],
            true,
        ),
        (
            json!({"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}),
            &[("a", "")],
            false,
        ),
    ];
    for (selector, given, expected) in cases {
        let selected = read(selector.clone()).expect("a selector");
        let given = labels(given);
        assert_eq!(selected.matches(&given), expected, "{selector} {given:?}");
        // The same as an expression, for the API server.
        let names = [crate::expression::Name {
            variable: "l",
            fields: None,
        }];
        let cel = crate::expression::Expression::parse(&selected.to_cel("l"), &names)
            .expect("an expression");
        let value =
            crate::expression::variables::value(&serde_json::to_value(&given).expect("labels"));
        assert_eq!(cel.is_true(&[("l", value)]), Ok(expected), "{}", cel.text());
        let again = json!({"matchExpressions": selected.to_json()});
        assert_eq!(read(again).expect("a selector"), selected);
    }
}

#[test]
fn every_mistake_names_its_field() {
    for (selector, expected) in [
        (
            json!({"matchLabel": {}}),
            "selector.matchLabel: unknown field",
        ),
        (
            json!({"matchLabels": {"a": 1}}),
            "selector.matchLabels.a: 1: must be a string",
        ),
        (
            json!({"matchExpressions": [{"key": "a", "operator": "Is"}]}),
            "selector.matchExpressions[0].operator: \"Is\": must be one of",
        ),
        (
            json!({"matchExpressions": [{"key": "a"}]}),
            "selector.matchExpressions[0].operator: null: is missing",
        ),
        (
            json!({"matchExpressions": [{"key": "a", "operator": "In"}]}),
            "selector.matchExpressions[0].values: []: must not be empty",
        ),
        (
            json!({"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["x"]}]}),
            "selector.matchExpressions[0].values",
        ),
        (
            json!({"matchLabels": {"a": "1"},
                "matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["1"]}]}),
            "selector: \"a\": no value of this label can meet all requirements",
        ),
        (
            json!({"matchExpressions": [{"key": "a", "operator": "Exists"}, {"key": "a", "operator": "DoesNotExist"}]}),
            "selector: \"a\": no value",
        ),
    ] {
        let error = read(selector).expect_err(expected);
        assert!(error.starts_with(expected), "{error}");
    }
}

// Compares the search with all combinations of two labels that are absent or have one of two values.
#[test]
fn what_one_selects_beyond_others_is_known() {
    let requirement = |key: &str, n: usize| match n {
        0 => json!({"key": key, "operator": "In", "values": ["1"]}),
        1 => json!({"key": key, "operator": "NotIn", "values": ["1"]}),
        2 => json!({"key": key, "operator": "Exists"}),
        _ => json!({"key": key, "operator": "DoesNotExist"}),
    };
    let mut selectors = vec![read(json!({})).expect("a selector")];
    for a in 0..4 {
        let one = json!({"matchExpressions": [requirement("a", a)]});
        selectors.push(read(one).expect("a selector"));
        for b in 0..4 {
            let both = json!({"matchExpressions": [requirement("a", a), requirement("b", b)]});
            selectors.push(read(both).expect("a selector"));
        }
    }
    let values = [None, Some("1"), Some("2")];
    let all = values
        .iter()
        .flat_map(|a| values.iter().map(move |b| [("a", a), ("b", b)]));
    let all: Vec<Labels> = all
        .map(|pair| {
            let given = pair.iter().filter_map(|(k, v)| v.map(|v| (*k, v)));
            labels(&given.collect::<Vec<_>>())
        })
        .collect();
    for wanted in &selectors {
        for first in &selectors {
            for second in &selectors {
                let left =
                    |l: &Labels| wanted.matches(l) && !first.matches(l) && !second.matches(l);
                let expected = all.iter().any(left);
                let found = wanted.selects_beyond(&[first, second], &mut 1000);
                assert_eq!(
                    found, expected,
                    "{wanted:?} beyond {first:?} and {second:?}"
                );
            }
        }
    }
    assert!(
        selectors[0].selects_beyond(&[&selectors[1], &selectors[2]], &mut 0),
        "yes when no step is left"
    );
}
