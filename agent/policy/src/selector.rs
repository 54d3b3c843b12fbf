//! Label selectors, with the meaning that they have in the API (`metav1.LabelSelector`).

use std::collections::BTreeMap;

use evictd_config::{ConfigError, decode::ObjectDecoder};
use serde_json::{Value, json};

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

    /// Both must hold.
    ///
    /// # Errors
    /// There are no labels that meet the requirements of both; the field is `path`.
    pub(crate) fn and(&self, other: &Self, path: &str) -> Result<Self, ConfigError> {
        let both = self.joined(other);
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

    /// Whether there are labels that this selects and none of the others does. Each step of the search is counted; when
    /// none is left the answer is yes.
    pub(crate) fn selects_beyond(&self, others: &[&Self], steps: &mut u32) -> bool {
        self.contradiction().is_none() && self.clone().avoids(others, steps)
    }

    /// The same of one that selects something.
    fn avoids(&mut self, others: &[&Self], steps: &mut u32) -> bool {
        let Some((first, rest)) = others.split_first() else {
            return true;
        };
        // A pod that is not selected fails one of the requirements at least.
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

    /// Both together, whether or not any labels meet the requirements of both.
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
        let key = self.keys().find(|key| self.is_impossible(key))?;
        Some(key.to_owned())
    }

    /// Whether no value of this label meets all requirements, nor its absence.
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
    /// What holds exactly where this does not.
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
            // An absent label is not in, as in the API.
            Test::NotIn(values) => value.is_none_or(|v| !values.contains(v)),
            Test::Exists => value.is_some(),
            Test::DoesNotExist => value.is_none(),
        }
    }
}

fn requirement(mut fields: ObjectDecoder) -> Result<Requirement, ConfigError> {
    const OPERATORS: [(&str, u8); 4] =
        [("In", 0), ("NotIn", 1), ("Exists", 2), ("DoesNotExist", 3)];
    let key = fields.required_text("key")?;
    let path = fields.path_of("operator");
    let operator = fields.choice("operator", &OPERATORS)?;
    let operator = operator.ok_or_else(|| ConfigError::value(path, &Value::Null, "is missing"))?;
    let path = fields.path_of("values");
    let values = fields.texts("values")?.unwrap_or_default();
    fields.deny_unknown_fields()?;
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
mod tests;
