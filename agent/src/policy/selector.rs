//! Label selectors, with the meaning that they have in the API (`metav1.LabelSelector`).

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::config::{ConfigError, fields::Fields};

/// Labels by name.
pub type Labels = BTreeMap<String, String>;

/// Selects by labels; an empty one selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    requirements: Vec<Requirement>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    key: String,
    test: Test,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Test {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    DoesNotExist,
}

impl Selector {
    /// Takes the field of this name: `matchLabels` and `matchExpressions`, both of which must hold.
    ///
    /// # Errors
    /// An unknown field or operator, values where there must be none or none where there must be some, and
    /// requirements that no labels can meet together.
    pub(crate) fn take(fields: &mut Fields, name: &str) -> Result<Self, ConfigError> {
        let Some(mut selector) = fields.object(name)? else {
            return Ok(Self::default());
        };
        let mut requirements = Vec::new();
        if let Some(labels) = selector.take("matchLabels") {
            let path = selector.path_of("matchLabels");
            let Value::Object(labels) = labels else {
                return Err(ConfigError::value(path, &labels, "must be a map of labels"));
            };
            for (key, value) in labels {
                let Value::String(value) = value else {
                    return Err(ConfigError::value(
                        format!("{path}.{key}"),
                        &value,
                        "must be a string",
                    ));
                };
                requirements.push(Requirement {
                    key,
                    test: Test::In(vec![value]),
                });
            }
        }
        for (i, item) in selector.list("matchExpressions")?.into_iter().enumerate() {
            let path = format!("{}[{i}]", selector.path_of("matchExpressions"));
            requirements.push(requirement(Fields::open(&path, item)?)?);
        }
        let path = fields.path_of(name);
        selector.finish()?;
        let taken = Self { requirements };
        taken.check(&path)?;
        Ok(taken)
    }

    /// Both must hold.
    ///
    /// # Errors
    /// There are no labels that meet the requirements of both; the field is `path`.
    pub(crate) fn and(&self, other: &Self, path: &str) -> Result<Self, ConfigError> {
        let all = self.requirements.iter().chain(&other.requirements);
        let both = Self {
            requirements: all.cloned().collect(),
        };
        both.check(path)?;
        Ok(both)
    }

    fn check(&self, path: &str) -> Result<(), ConfigError> {
        match self.contradiction() {
            Some(key) => Err(ConfigError::text(
                path,
                &key,
                "no value of this label can meet all requirements",
            )),
            None => Ok(()),
        }
    }

    /// Whether these labels are selected.
    pub fn matches(&self, labels: &Labels) -> bool {
        self.requirements
            .iter()
            .all(|r| r.holds(labels.get(&r.key)))
    }

    /// Whether it selects everything.
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    /// The labels that it asks for.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.requirements.iter().map(|r| r.key.as_str())
    }

    /// As `matchExpressions` of a selector of the API.
    pub fn to_json(&self) -> Vec<Value> {
        let to_json = |r: &Requirement| match &r.test {
            Test::In(values) => json!({"key": r.key, "operator": "In", "values": values}),
            Test::NotIn(values) => json!({"key": r.key, "operator": "NotIn", "values": values}),
            Test::Exists => json!({"key": r.key, "operator": "Exists"}),
            Test::DoesNotExist => json!({"key": r.key, "operator": "DoesNotExist"}),
        };
        self.requirements.iter().map(to_json).collect()
    }

    /// As a CEL expression over an expression that is a map of labels.
    pub fn to_cel(&self, labels: &str) -> String {
        // A JSON text is a CEL text.
        let text = |text: &str| Value::from(text).to_string();
        let to_cel = |r: &Requirement| {
            let key = text(&r.key);
            let has = format!("{key} in {labels}");
            let is_in = |values: &[String]| {
                let values: Vec<String> = values.iter().map(|v| text(v)).collect();
                format!("({has} && {labels}[{key}] in [{}])", values.join(", "))
            };
            match &r.test {
                Test::In(values) => is_in(values),
                Test::NotIn(values) => format!("!{}", is_in(values)),
                Test::Exists => format!("({has})"),
                Test::DoesNotExist => format!("!({has})"),
            }
        };
        let all: Vec<String> = self.requirements.iter().map(to_cel).collect();
        if all.is_empty() {
            "true".to_owned()
        } else {
            all.join(" && ")
        }
    }

    /// A label of which no value meets all requirements.
    fn contradiction(&self) -> Option<String> {
        let candidates = |key: &str| {
            let of_key = self.requirements.iter().filter(move |r| r.key == key);
            let named = of_key.filter_map(|r| match &r.test {
                Test::In(values) => Some(values.clone()),
                _ => None,
            });
            // Any other value stands for all that nobody names; absence is the last possibility.
            let other = "\u{0}".to_owned();
            named
                .flatten()
                .chain([other])
                .map(Some)
                .chain([None])
                .collect::<Vec<_>>()
        };
        let impossible = |key: &str| {
            let requirements: Vec<_> = self.requirements.iter().filter(|r| r.key == key).collect();
            !candidates(key)
                .iter()
                .any(|v| requirements.iter().all(|r| r.holds(v.as_ref())))
        };
        self.keys().find(|key| impossible(key)).map(str::to_owned)
    }
}

impl Requirement {
    fn holds(&self, value: Option<&String>) -> bool {
        match &self.test {
            Test::In(values) => value.is_some_and(|v| values.contains(v)),
            // An absent label is not in, as in the API.
            Test::NotIn(values) => value.is_none_or(|v| !values.contains(v)),
            Test::Exists => value.is_some(),
            Test::DoesNotExist => value.is_none(),
        }
    }
}

fn requirement(mut fields: Fields) -> Result<Requirement, ConfigError> {
    const OPERATORS: [(&str, u8); 4] =
        [("In", 0), ("NotIn", 1), ("Exists", 2), ("DoesNotExist", 3)];
    let key = fields.required_text("key")?;
    let path = fields.path_of("operator");
    let operator = fields.choice("operator", &OPERATORS)?;
    let operator = operator.ok_or_else(|| ConfigError::value(path, &Value::Null, "is missing"))?;
    let path = fields.path_of("values");
    let values = fields.texts("values")?.unwrap_or_default();
    fields.finish()?;
    let wants_values = operator < 2;
    if wants_values == values.is_empty() {
        let reason = if wants_values {
            "must not be empty"
        } else {
            "must be empty for this operator"
        };
        return Err(ConfigError::value(path, &values.into(), reason));
    }
    let test = match operator {
        0 => Test::In(values),
        1 => Test::NotIn(values),
        2 => Test::Exists,
        _ => Test::DoesNotExist,
    };
    Ok(Requirement { key, test })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(selector: Value) -> Result<Selector, String> {
        let mut fields =
            Fields::open("", json!({ "selector": selector })).map_err(|e| e.to_string())?;
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
            let names = [crate::policy::expression::Name {
                variable: "l",
                fields: None,
            }];
            let cel = crate::policy::expression::Expression::parse(&selected.to_cel("l"), &names)
                .expect("an expression");
            let value = crate::policy::facts::value(&serde_json::to_value(&given).expect("labels"));
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
                json!({"matchLabels": {"a": "1"}, "matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["1"]}]}),
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
}
