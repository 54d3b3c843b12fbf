//! Errors of a configuration, each in one line.

use std::{io, path::PathBuf};

use serde_json::Value;

/// A configuration that cannot be used. The text is one line that names the field, the value and the reason.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file is neither YAML nor JSON.
    #[error("{}: {reason}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The parser's message, in one line.
        reason: String,
    },
    /// A field that does not exist.
    #[error("{}: unknown field", one_line(field))]
    UnknownField {
        /// The field's path, its parents separated by dots.
        field: String,
    },
    /// A field whose value cannot be used.
    #[error("{}: {}: {}", one_line(field), one_line(value), one_line(reason))]
    Field {
        /// The field's path, its parents separated by dots.
        field: String,
        /// The value as JSON.
        value: String,
        /// Description of what is wrong with the value.
        reason: String,
    },
}

/// The text on one line: control characters, which keys and names may hold, are escaped.
pub fn one_line(text: &str) -> String {
    let escaped = |c: char| match c.is_control() {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    };
    text.chars().map(escaped).collect()
}

impl ConfigError {
    /// A value that cannot be used; it is quoted as JSON, so that it stays on one line.
    pub fn value(field: impl Into<String>, value: &Value, reason: impl ToString) -> Self {
        Self::Field {
            field: field.into(),
            value: value.to_string(),
            reason: reason.to_string(),
        }
    }

    /// Creates the error of [`Self::value`] for a value that is a text.
    pub fn text(field: impl Into<String>, value: &str, reason: impl ToString) -> Self {
        Self::value(field, &Value::from(value), reason)
    }
}
