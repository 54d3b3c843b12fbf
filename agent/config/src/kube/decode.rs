//! Decodes the JSON of Kubernetes: unknown fields are ignored, null counts as absent, and an error has the path of its
//! field.

use serde::{Deserialize, Deserializer, de};
use serde_json::Value;

/// A document with a wrong form, in one line: the path of the field and the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {reason}")]
pub struct JsonError {
    path: String,
    reason: String,
}

/// A timestamp of the API (RFC 3339) in seconds since 1970; `None` if it cannot be parsed.
pub fn unix_seconds(timestamp: &str) -> Option<i64> {
    let timestamp: jiff::Timestamp = timestamp.parse().ok()?;
    Some(timestamp.as_second())
}

/// Decodes a document; `root` is its name in errors.
pub(super) fn read<T: de::DeserializeOwned>(root: &str, value: &Value) -> Result<T, JsonError> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = match error.path().to_string() {
            path if path == "." => root.to_owned(),
            path if path.starts_with('[') => format!("{root}{path}"),
            path => format!("{root}.{path}"),
        };
        JsonError {
            path,
            reason: error.inner().to_string(),
        }
    })
}

impl JsonError {
    /// An error about the document as a whole.
    pub(super) fn new(path: &str, reason: &str) -> Self {
        Self {
            path: path.to_owned(),
            reason: reason.to_owned(),
        }
    }
}

/// Takes null for the default.
pub fn null_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
