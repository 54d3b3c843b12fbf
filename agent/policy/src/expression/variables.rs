//! The variables of expressions: a pod as a map, an answer as JSON.

use std::{collections::HashMap, sync::Arc};

use cel::{
    Value,
    objects::{Key, Map},
};
use evictd_engine::{Pod, units::signed};

use crate::expression::Name;

/// The fields of `pod`.
pub const POD_FIELDS: [&str; 15] = [
    "name",
    "namespace",
    "uid",
    "labels",
    "annotations",
    "phase",
    "conditions",
    "ip",
    "ageSeconds",
    "qos",
    "priority",
    "usage",
    "request",
    "owner",
    "isStatic",
];

/// `pod` as a name in expressions.
pub const POD: Name<'static> = Name {
    variable: "pod",
    fields: Some(&POD_FIELDS),
};

/// JSON as a CEL value. Whole numbers become `int` where they fit: expressions count with `int`.
pub fn value(json: &serde_json::Value) -> Value {
    match json {
        serde_json::Value::Null => Value::Null,
        serde_json::Value::Bool(b) => Value::Bool(*b),
        serde_json::Value::Number(n) => match (n.as_i64(), n.as_u64()) {
            (Some(n), _) => Value::Int(n),
            (None, Some(n)) => Value::UInt(n),
            // A JSON number is an i64, a u64 or an f64.
            (None, None) => Value::Float(n.as_f64().unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(s) => text(s),
        serde_json::Value::Array(items) => Value::List(Arc::new(items.iter().map(value).collect())),
        serde_json::Value::Object(fields) => {
            map(fields.iter().map(|(k, v)| (k.as_str(), value(v))))
        }
    }
}

/// A map with texts as keys.
pub fn map<'a>(entries: impl IntoIterator<Item = (&'a str, Value)>) -> Value {
    let entries = entries.into_iter();
    let entries: HashMap<Key, Value> = entries.map(|(k, v)| (Key::from(k), v)).collect();
    Value::Map(Map::from(entries))
}

/// A field of a map.
pub fn field<'a>(map: &'a Value, name: &str) -> Option<&'a Value> {
    match map {
        Value::Map(map) => map.map.get(&Key::from(name)),
        _ => None,
    }
}

fn text(text: &str) -> Value {
    Value::String(Arc::new(text.to_owned()))
}

fn whole(number: u64) -> Value {
    Value::Int(signed(number))
}

/// A pod at one moment: `now` is the wall clock in seconds since 1970, `usage` the count of its memory cgroup in bytes.
pub fn pod(pod: &Pod, now: i64, usage: u64) -> Value {
    let texts = |map_: &std::collections::BTreeMap<String, String>| {
        map(map_.iter().map(|(k, v)| (k.as_str(), text(v))))
    };
    let owner = match &pod.owner {
        Some(owner) => map([("kind", text(&owner.kind)), ("name", text(&owner.name))]),
        None => map([]),
    };
    // A pod whose start is not known is as young as can be.
    let age = pod.created.map_or(0, |created| now.saturating_sub(created));
    map([
        ("name", text(&pod.name)),
        ("namespace", text(&pod.namespace)),
        ("uid", text(&pod.uid)),
        ("labels", texts(&pod.labels)),
        ("annotations", texts(&pod.annotations)),
        ("phase", text(&pod.phase)),
        ("conditions", texts(&pod.conditions)),
        ("ip", text(&pod.ip)),
        ("ageSeconds", Value::Int(age.max(0))),
        ("qos", text(pod.qos.as_str())),
        ("priority", Value::Int(pod.priority.into())),
        ("usage", map([("memory", whole(usage))])),
        (
            "request",
            map([
                ("memory", whole(pod.memory_request)),
                ("ephemeralStorage", whole(pod.storage_request)),
            ]),
        ),
        ("owner", owner),
        ("isStatic", Value::Bool(pod.is_static || pod.is_mirror)),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expression::Expression;

    #[test]
    fn every_field_is_there_and_no_other() {
        let fields = match pod(&Pod::default(), 0, 0) {
            Value::Map(map) => map,
            other => panic!("{other:?}"),
        };
        let mut found: Vec<String> = fields.map.keys().map(ToString::to_string).collect();
        let mut expected = POD_FIELDS.map(str::to_owned).to_vec();
        found.sort();
        expected.sort();
        assert_eq!(found, expected);
    }

    #[test]
    fn every_field_says_what_the_pod_is() {
        let texts = |pairs: &[(&str, &str)]| {
            let pairs = pairs.iter();
            pairs
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect()
        };
        let given = Pod {
            name: "db-0".into(),
            namespace: "shop".into(),
            uid: "u".into(),
            labels: texts(&[("app", "db")]),
            annotations: texts(&[("note", "x")]),
            owner: Some(evictd_engine::Owner {
                kind: "StatefulSet".into(),
                name: "db".into(),
                uid: "o".into(),
            }),
            created: Some(900),
            phase: "Running".into(),
            conditions: texts(&[("Ready", "True")]),
            ip: "10.0.0.1".into(),
            priority: 7,
            qos: evictd_engine::QosClass::Guaranteed,
            memory_request: 11,
            storage_request: 13,
            is_mirror: true,
            ..Pod::default()
        };
        let (known, unknown) = (pod(&given, 1000, 17), pod(&Pod::default(), 1000, 0));
        for text in [
            "pod.name == 'db-0'",
            "pod.namespace == 'shop'",
            "pod.uid == 'u'",
            "pod.labels[?'app'].orValue('') == 'db'",
            "pod.annotations[?'note'].orValue('') == 'x'",
            "pod.phase == 'Running'",
            "pod.conditions[?'Ready'].orValue('') == 'True'",
            "pod.ip == '10.0.0.1'",
            "pod.ageSeconds == 100",
            "pod.qos == 'Guaranteed'",
            "pod.priority == 7",
            "pod.usage.memory == 17",
            "pod.request.memory == 11",
            "pod.request.ephemeralStorage == 13",
            "pod.owner[?'kind'].orValue('') == 'StatefulSet'",
            "pod.owner[?'name'].orValue('') == 'db'",
            "pod.isStatic",
        ] {
            let expression = Expression::parse(text, &[POD]).expect("an expression");
            let answer = |pod: &Value| expression.is_true(&[("pod", pod.clone())]);
            assert_eq!(answer(&known), Ok(true), "{text}");
            assert_eq!(answer(&unknown), Ok(false), "{text}");
        }
    }

    #[test]
    fn age_counts_from_the_creation_and_is_never_negative() {
        let old = Pod {
            created: Some(1000),
            ..Pod::default()
        };
        for (text, now, expected) in [
            ("pod.ageSeconds == 60", 1060, true),
            ("pod.ageSeconds == 0", 10, true),
            ("pod.usage.memory > 2 * pod.request.memory", 0, true),
        ] {
            let expression = Expression::parse(text, &[POD]).expect("an expression");
            assert_eq!(
                expression.is_true(&[("pod", pod(&old, now, 5))]),
                Ok(expected),
                "{text}"
            );
        }
    }
}
