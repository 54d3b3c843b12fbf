//! Label selectors, with the meaning that they have in the API (`metav1.LabelSelector`).

use std::collections::BTreeMap;

use evictd_config::{ConfigError, decode::ObjectDecoder};
use serde_json::{Value, json};

/// Labels by name.
pub type Labels = BTreeMap<String, String>;

/// Selects by labels. An empty selector selects everything.
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
    /// An unknown field or operator, values for an operator that takes none or no values for one that needs some, and
    /// requirements that no labels can meet together.
    pub(crate) fn take(fields: &mut ObjectDecoder, name: &str) -> Result<Self, ConfigError> {
        let Some(mut selector) = fields.object(name)? else {
            return Ok(Self::default());
        };
        let mut requirements = Vec::new();
        if let Some(labels) = selector.optional("matchLabels") {
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
            requirements.push(requirement(ObjectDecoder::open(&path, item)?)?);
        }
        let path = fields.path_of(name);
        selector.deny_unknown_fields()?;
        let taken = Self { requirements };
        taken.check(&path)?;
        Ok(taken)
    }

    /// Selects what both selectors select.
    ///
    /// # Errors
    /// No labels meet the requirements of both; `path` is the field in the error.
    pub(crate) fn and(&self, other: &Self, path: &str) -> Result<Self, ConfigError> {
        let both = self.joined(other);
        both.check(path)?;
        Ok(both)
    }

    fn check(&self, path: &str) -> Result<(), ConfigError> {
        match self.conflict() {
            Some(key) => Err(ConfigError::text(
                path,
                &key,
                "no value of this label can meet all requirements",
            )),
            None => Ok(()),
        }
    }

    /// Whether some labels are selected by this selector and by none of the others. Each step of the search counts down
    /// `steps`; when none is left the answer is yes.
    pub(crate) fn selects_beyond(&self, others: &[&Self], steps: &mut u32) -> bool {
        self.conflict().is_none() && self.clone().avoids(others, steps)
    }

    /// Whether this selector, which selects something, selects anything that none of the others does.
    fn avoids(&mut self, others: &[&Self], steps: &mut u32) -> bool {
        let Some((first, rest)) = others.split_first() else {
            return true;
        };
        // A pod that the first one does not select fails at least one of its requirements.
        first.requirements.iter().any(|requirement| {
            if *steps == 0 {
                return true;
            }
            *steps -= 1;
            self.requirements.push(requirement.negated());
            let found = !self.is_impossible(&requirement.key) && self.avoids(rest, steps);
            self.requirements.pop();
            found
        })
    }

    /// The requirements of both, whether or not any labels can meet them all.
    pub(crate) fn joined(&self, other: &Self) -> Self {
        let all = self.requirements.iter().chain(&other.requirements);
        Self {
            requirements: all.cloned().collect(),
        }
    }

    /// Whether these labels are selected.
    pub fn matches(&self, labels: &Labels) -> bool {
        self.requirements
            .iter()
            .all(|r| r.holds(labels.get(&r.key)))
    }

    /// Whether the selector has no requirement, and so selects everything.
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    /// The keys of the labels in the requirements.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.requirements.iter().map(|r| r.key.as_str())
    }

    /// The `matchExpressions` of an API selector with the same meaning.
    pub fn to_json(&self) -> Vec<Value> {
        let to_json = |r: &Requirement| match &r.test {
            Test::In(values) => json!({"key": r.key, "operator": "In", "values": values}),
            Test::NotIn(values) => json!({"key": r.key, "operator": "NotIn", "values": values}),
            Test::Exists => json!({"key": r.key, "operator": "Exists"}),
            Test::DoesNotExist => json!({"key": r.key, "operator": "DoesNotExist"}),
        };
        self.requirements.iter().map(to_json).collect()
    }

    /// A CEL expression with the same meaning; `labels` is the CEL expression of the map of labels.
    pub fn to_cel(&self, labels: &str) -> String {
        // A JSON string is also a CEL string.
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

    /// A label whose requirements cannot be met together.
    fn conflict(&self) -> Option<String> {
        let key = self.keys().find(|key| self.is_impossible(key))?;
        Some(key.to_owned())
    }

    /// Whether neither a value of this label nor its absence meets all requirements.
    fn is_impossible(&self, key: &str) -> bool {
        let requirements: Vec<_> = self.requirements.iter().filter(|r| r.key == key).collect();
        let named = requirements.iter().filter_map(|r| match &r.test {
            Test::In(values) => Some(values),
            _ => None,
        });
        // Any other value stands for all that no requirement names; absence is the last possibility.
        let other = "\u{0}".to_owned();
        let mut candidates = named.flatten().chain([&other]).map(Some).chain([None]);
        !candidates.any(|value| requirements.iter().all(|r| r.holds(value)))
    }
}

impl Requirement {
    /// The requirement that holds exactly where this one does not.
    fn negated(&self) -> Self {
        let test = match &self.test {
            Test::In(values) => Test::NotIn(values.clone()),
            Test::NotIn(values) => Test::In(values.clone()),
            Test::Exists => Test::DoesNotExist,
            Test::DoesNotExist => Test::Exists,
        };
        let key = self.key.clone();
        Self { key, test }
    }

    fn holds(&self, value: Option<&String>) -> bool {
        match &self.test {
            Test::In(values) => value.is_some_and(|v| values.contains(v)),
            // As in the API, NotIn also holds without the label.
            Test::NotIn(values) => value.is_none_or(|v| !values.contains(v)),
            Test::Exists => value.is_some(),
            Test::DoesNotExist => value.is_none(),
        }
    }
}

fn requirement(mut fields: ObjectDecoder) -> Result<Requirement, ConfigError> {
    type Operator = fn(Vec<String>) -> Test;
    const OPERATORS: [(&str, Operator); 4] = [
        ("In", Test::In),
        ("NotIn", Test::NotIn),
        ("Exists", |_| Test::Exists),
        ("DoesNotExist", |_| Test::DoesNotExist),
    ];
    let key = fields.required_text("key")?;
    let operator = fields.choice("operator", &OPERATORS)?;
    let operator = operator.ok_or_else(|| fields.missing("operator"))?;
    let path = fields.path_of("values");
    let values = fields.texts("values")?.unwrap_or_default();
    fields.deny_unknown_fields()?;
    let test = operator(values.clone());
    let wants_values = matches!(test, Test::In(_) | Test::NotIn(_));
    if wants_values == values.is_empty() {
        let reason = if wants_values {
            "must not be empty"
        } else {
            "must be empty for this operator"
        };
        return Err(ConfigError::value(path, &values.into(), reason));
    }
    Ok(Requirement { key, test })
}

#[cfg(test)]
mod tests;
