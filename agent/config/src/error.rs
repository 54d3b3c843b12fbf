//! Errors of a configuration, each in one line.

use std::{io, path::PathBuf};

use serde_json::Value;

/// Characters of a value that an error shows.
const SHOWN: usize = 200;

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
    #[error("{}: unknown field", one_line(&cut(field)))]
    UnknownField {
        /// The field's path, its parents separated by dots.
        field: String,
    },
    /// A field whose value cannot be used.
    #[error("{}: {}: {}", one_line(&cut(field)), one_line(value), one_line(reason))]
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

/// As much of a text as an error shows of it.
pub fn cut(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}... ({} bytes)", text.split_at(end).0, text.len()),
        None => text.to_owned(),
    }
}

impl ConfigError {
    /// A value that cannot be used; it is quoted as JSON, so that it stays on one line.
    pub fn value(field: impl Into<String>, value: &Value, reason: impl ToString) -> Self {
        Self::Field {
            field: field.into(),
            value: cut(&value.to_string()),
            reason: reason.to_string(),
        }
    }

    /// Creates the error of [`Self::value`] for a value that is a text.
    pub fn text(field: impl Into<String>, value: &str, reason: impl ToString) -> Self {
        Self::value(field, &Value::from(value), reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_value_is_cut() {
        let long = "\u{e9}".repeat(1 << 20);
        let error = ConfigError::text("mode", &long, "must be one of a, b").to_string();
        assert!(error.len() < 1000, "{}", error.len());
        assert!(error.starts_with("mode: \"\u{e9}"));
        assert!(error.ends_with("... (2097154 bytes): must be one of a, b"));
        let field = ConfigError::UnknownField { field: long };
        assert!(field.to_string().len() < 1000);
        assert_eq!(cut("short"), "short");
    }
}
