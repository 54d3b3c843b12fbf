//! Documents as they are read: YAML or JSON, of evictd's own and of the kubelet.

use std::{
    fs::File,
    io::{self, Read as _},
    path::Path,
};

use serde::Deserialize as _;
use serde_json::Value;
use serde_saphyr::{UserMessageFormatter, options::DuplicateKeyPolicy};

use crate::ConfigError;

/// Longest configuration that is read, in bytes.
const MAX_BYTES: u64 = 1 << 20;

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
    read_at_most(path, MAX_BYTES).map_err(|source| ConfigError::Read {
        path: path.into(),
        source,
    })
}

/// Reads a text file of so many bytes at most.
///
/// # Errors
/// It cannot be read. It is longer, or not UTF-8: [`io::ErrorKind::InvalidData`].
pub fn read_at_most(path: &Path, most: u64) -> io::Result<String> {
    let wrong = |reason: String| io::Error::new(io::ErrorKind::InvalidData, reason);
    let mut bytes = Vec::new();
    // Of a pipe no length is known.
    File::open(path)?.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(wrong(format!("is longer than {most} bytes")));
    }
    String::from_utf8(bytes).map_err(|_| wrong("is not UTF-8".to_owned()))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_too_long_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.yaml");
        let length = usize::try_from(MAX_BYTES).unwrap();
        std::fs::write(&path, "#".repeat(length)).unwrap();
        assert_eq!(read_document(&path).unwrap(), Value::Null);
        std::fs::write(&path, "#".repeat(length + 1)).unwrap();
        let error = read_document(&path).unwrap_err().to_string();
        assert!(
            error.ends_with("config.yaml: is longer than 1048576 bytes"),
            "{error}"
        );
        // One without an end is not read to it.
        let error = read_document(Path::new("/dev/zero"))
            .unwrap_err()
            .to_string();
        assert!(error.contains("is longer than"), "{error}");
    }
}
