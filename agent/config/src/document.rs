//! Documents as they are read: YAML or JSON, of evictd's own and of the kubelet.

use std::{fs, io, path::Path};

use serde_json::Value;
use serde_saphyr::options::DuplicateKeyPolicy;

use crate::ConfigError;

/// Reads a YAML or JSON file; an empty one is null.
///
/// # Errors
/// The file cannot be read, or its syntax is wrong.
pub fn read_document(path: &Path) -> Result<Value, ConfigError> {
    parse_text(path, &read_text(path)?)
}

/// As [`read_document`], but an empty file is an error: it is about to be written. The kubelet refuses an empty file
/// too (`configfiles.Load`).
pub(super) fn read_written_document(path: &Path) -> Result<Value, ConfigError> {
    parse_text(path, &read_written_text(path)?)
}

fn read_written_text(path: &Path) -> Result<String, ConfigError> {
    let text = read_text(path)?;
    if text.is_empty() {
        return Err(ConfigError::Read {
            path: path.into(),
            source: io::Error::new(io::ErrorKind::UnexpectedEof, "the file is empty"),
        });
    }
    Ok(text)
}

/// Reads a KubeletConfiguration as the kubelet does: a key that stands there twice is no error, the last value holds
/// (`Load` of `configfiles`, its lenient decoder). The second value names such a key, with the path.
///
/// # Errors
/// As [`read_written_document`].
pub(super) fn read_kubelet_document(path: &Path) -> Result<(Value, Option<String>), ConfigError> {
    let text = read_written_text(path)?;
    let strict = match parse_text(path, &text) {
        Ok(document) => return Ok((document, None)),
        Err(error) => error,
    };
    let options = serde_saphyr::options! { duplicate_keys: DuplicateKeyPolicy::LastWins };
    match serde_saphyr::from_str_with_options::<Option<Value>>(&text, options) {
        Ok(document) => Ok((document.unwrap_or_default(), Some(strict.to_string()))),
        Err(_) => Err(strict),
    }
}

fn read_text(path: &Path) -> Result<String, ConfigError> {
    fs::read_to_string(path).map_err(|source| ConfigError::Read {
        path: path.into(),
        source,
    })
}

fn parse_text(path: &Path, text: &str) -> Result<Value, ConfigError> {
    parse_document(text).map_err(|reason| ConfigError::Syntax {
        path: path.into(),
        reason,
    })
}

/// Parses a YAML or JSON document; an empty one is null.
///
/// # Errors
/// The syntax error, in one line.
pub fn parse_document(text: &str) -> Result<Value, String> {
    let document = serde_saphyr::from_str::<Option<Value>>(text);
    document.map(Option::unwrap_or_default).map_err(|error| {
        let reason = error.without_snippet().to_string();
        reason.split_whitespace().collect::<Vec<_>>().join(" ")
    })
}
