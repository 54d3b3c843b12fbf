//! Gates: questions to HTTP servers and the API server, asked in the background. The fast path sees only their last
//! answers.

use std::time::Duration;

use evictd_config::{ConfigError, decode::ObjectDecoder};
use serde_json::Value;

use super::expression::{Expression, Name};
use crate::expression::variables::POD;

pub use answer::parse_answer;
pub use http::{
    Answer, ClusterAddresses, Hosts, HttpProbe, ProbeError, Scheme, Secrets, Target, Trust,
};
pub use object::ObjectProbe;

mod answer;
mod http;
mod object;

/// Default of `interval`.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(10);
/// Shortest `interval` that a policy may set.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);
/// Default of `timeout`.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest `timeout` that a policy may set.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest `interval` and `maxAge` that a policy may set.
const LONGEST_AGE: Duration = Duration::from_secs(3600);
/// A question without an answer is asked again after this time at the latest, or after a tenth of a long `interval`:
/// servers of a whole fleet's gates may fail together.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// One question, asked for each pod whose rule needs it.
#[derive(Clone, Debug, PartialEq)]
pub struct Gate {
    /// `name`; rules know the answer as `gates.<name>`.
    pub name: String,
    /// `interval`: time between two questions.
    pub interval: Duration,
    /// `maxAge`: how long an answer counts, from its question on; by default three intervals, at most an hour, or an
    /// interval and the timeout if that is longer.
    pub max_age: Duration,
    /// `timeout`: how long an answer may take in all.
    pub timeout: Duration,
    /// `onUnknown`: what a missing or outdated answer means.
    pub on_unknown: OnUnknown,
    /// Question that the gate asks.
    pub probe: Probe,
    /// `check`: the expression that makes the answer a yes; without it any status 2xx.
    pub check: Option<Expression>,
}

/// Meaning of a missing answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnUnknown {
    /// The pod is spared.
    #[default]
    Deny,
    /// The pod may be evicted if either answer would allow it.
    Allow,
}

/// Question that a gate asks.
#[derive(Clone, Debug, PartialEq)]
pub enum Probe {
    /// An HTTP server: the pod's own, or another one.
    Http(Box<HttpProbe>),
    /// An object in the cluster.
    Object(Box<ObjectProbe>),
}

impl Gate {
    /// Reads a gate; it may use the answers of the gates before it.
    pub(super) fn read(mut fields: ObjectDecoder, before: &[Self]) -> Result<Self, ConfigError> {
        let name = fields.required_text("name")?;
        let mut letters = name.chars();
        let good = letters.next().is_some_and(|c| c.is_ascii_alphabetic())
            && letters.all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !good {
            let reason = "must be a letter followed by letters, digits and _: expressions call it gates.NAME";
            return Err(ConfigError::text(fields.path_of("name"), &name, reason));
        }
        let interval = within(&mut fields, "interval", SHORTEST_INTERVAL..=LONGEST_AGE)?;
        let interval = interval.unwrap_or(DEFAULT_INTERVAL);
        let max_age = within(&mut fields, "maxAge", interval..=LONGEST_AGE)?;
        let timeout = within(
            &mut fields,
            "timeout",
            Duration::from_millis(1)..=LONGEST_TIMEOUT,
        )?;
        let timeout = timeout.unwrap_or(DEFAULT_TIMEOUT);
        // An answer that takes the whole timeout still counts for an interval when it comes.
        let default_age = (interval * 3).min(LONGEST_AGE).max(interval + timeout);
        let answers: Vec<&str> = before.iter().map(|g| g.name.as_str()).collect();
        let asking = [
            POD,
            Name {
                variable: "answers",
                fields: Some(&answers),
            },
        ];
        let checking = [
            asking[0],
            asking[1],
            Name {
                variable: "answer",
                fields: None,
            },
            Name {
                variable: "status",
                fields: None,
            },
        ];
        let (path, checked) = (fields.path_of("http"), fields.path_of("check"));
        let probe = match (fields.object("http")?, fields.object("object")?) {
            (Some(http), None) => Probe::Http(Box::new(HttpProbe::read(http, &asking)?)),
            (None, Some(object)) => Probe::Object(Box::new(ObjectProbe::read(object, &asking)?)),
            _ => {
                return Err(ConfigError::value(
                    path,
                    &Value::Null,
                    "a gate asks either http or object",
                ));
            }
        };
        let gate = Self {
            name,
            interval,
            max_age: max_age.unwrap_or(default_age),
            timeout,
            on_unknown: fields
                .choice(
                    "onUnknown",
                    &[("deny", OnUnknown::Deny), ("allow", OnUnknown::Allow)],
                )?
                .unwrap_or_default(),
            probe,
            check: expression(&mut fields, "check", &checking)?,
        };
        fields.deny_unknown_fields()?;
        if let Some(check) = &gate.check
            && check.is_true(&[]) == Ok(false)
        {
            let reason = "can never be true, whatever is answered";
            return Err(ConfigError::text(checked, check.text(), reason));
        }
        Ok(gate)
    }

    /// Time from a question without an answer to the next one.
    pub fn retry_interval(&self) -> Duration {
        self.interval.min(RETRY_INTERVAL.max(self.interval / 10))
    }

    /// Whether the gate sends a token to a server that has not proved its identity.
    pub fn sends_token_insecurely(&self) -> bool {
        matches!(&self.probe, Probe::Http(http) if http.allow_insecure)
    }

    /// Whether the gate sends a token.
    pub fn sends_token(&self) -> bool {
        matches!(&self.probe, Probe::Http(http) if http.token.is_some())
    }

    /// The names of the gates whose answers this gate needs.
    pub fn needs(&self) -> Vec<&str> {
        let expressions = match &self.probe {
            Probe::Http(http) => vec![http.host.as_ref(), http.server_name.as_ref()],
            Probe::Object(object) => vec![Some(&object.name), object.namespace.as_ref()],
        };
        let all = expressions.into_iter().chain([self.check.as_ref()]);
        all.flatten().flat_map(|e| e.selected("answers")).collect()
    }
}

fn within(
    fields: &mut ObjectDecoder,
    name: &str,
    range: std::ops::RangeInclusive<Duration>,
) -> Result<Option<Duration>, ConfigError> {
    let Some(duration) = fields.duration(name)? else {
        return Ok(None);
    };
    if range.contains(&duration) {
        return Ok(Some(duration));
    }
    let reason = format!("must lie between {:?} and {:?}", range.start(), range.end());
    Err(ConfigError::text(
        fields.path_of(name),
        &format!("{duration:?}"),
        reason,
    ))
}

fn expression(
    fields: &mut ObjectDecoder,
    name: &str,
    names: &[Name<'_>],
) -> Result<Option<Expression>, ConfigError> {
    fields.text_as(name, |text| Expression::parse(text, names))
}
