//! Documents as they are read: YAML or JSON, of evictd's own and of the kubelet.

use std::{fs, io, path::Path};

use serde::Deserialize as _;
use serde_json::Value;
use serde_saphyr::{UserMessageFormatter, options::DuplicateKeyPolicy};

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

/// Reads a KubeletConfiguration as the kubelet does. Of a key that stands there twice the last value holds (`Load` of
/// `configfiles`, its lenient decoder), of several documents the first one (`Unmarshal` of goyaml). The second value
/// names such mistakes, each with the path and what holds.
///
/// # Errors
/// As [`read_written_document`].
pub(super) fn read_kubelet_document(path: &Path) -> Result<(Value, Vec<String>), ConfigError> {
    let text = read_written_text(path)?;
    let wrong = |error| syntax(path, yaml_reason(&error));
    let (document, has_more, twice) = match first_document(&text, DuplicateKeyPolicy::Error) {
        Ok((document, has_more)) => (document, has_more, None),
        Err(strict) => match first_document(&text, DuplicateKeyPolicy::LastWins) {
            Ok((document, has_more)) => (document, has_more, Some(wrong(strict))),
            Err(_) => return Err(wrong(strict)),
        },
    };
    let twice = twice.map(|error| format!("{error}: the last value holds"));
    let more = has_more.then(|| {
        let path = path.display();
        format!("{path}: more than one document: the first one holds")
    });
    Ok((document, twice.into_iter().chain(more).collect()))
}

/// Reads the first YAML document; whether another one follows.
fn first_document(
    text: &str,
    duplicate_keys: DuplicateKeyPolicy,
) -> Result<(Value, bool), serde_saphyr::Error> {
    let options = serde_saphyr::options! { duplicate_keys: duplicate_keys };
    let mut first = None;
    let read = serde_saphyr::with_deserializer_from_str_with_options(text, options, |document| {
        first = Some(Option::<Value>::deserialize(document)?.unwrap_or_default());
        Ok(())
    });
    let Err(error) = read else {
        return Ok((first.unwrap_or_default(), false));
    };
    match (error.without_snippet(), first) {
        (serde_saphyr::Error::MultipleDocuments { .. }, Some(first)) => Ok((first, true)),
        _ => Err(error),
    }
}

fn read_text(path: &Path) -> Result<String, ConfigError> {
    fs::read_to_string(path).map_err(|source| ConfigError::Read {
        path: path.into(),
        source,
    })
}

fn parse_text(path: &Path, text: &str) -> Result<Value, ConfigError> {
    parse_document(text).map_err(|reason| syntax(path, reason))
}

/// A file that does not hold what it should, for this reason.
pub(super) fn syntax(path: &Path, reason: String) -> ConfigError {
    ConfigError::Syntax {
        path: path.into(),
        reason,
    }
}

/// Parses a YAML or JSON document; an empty one is null.
///
/// # Errors
/// The syntax error, in one line.
pub fn parse_document(text: &str) -> Result<Value, String> {
    let document = serde_saphyr::from_str::<Option<Value>>(text);
    document
        .map(Option::unwrap_or_default)
        .map_err(|error| yaml_reason(&error))
}

/// What is wrong with a YAML document, in one line, with its place.
pub fn yaml_reason(error: &serde_saphyr::Error) -> String {
    let error = error.without_snippet();
    let reason = error.render_with_formatter(&UserMessageFormatter);
    reason.split_whitespace().collect::<Vec<_>>().join(" ")
}
