//! Reading the JSON files that subcommands are pointed at.

use crate::cli::CommandError;
use std::path::Path;

use evictd_config::read_at_most;
use evictd_sys::fs::PathError;
use serde_json::Value;

/// Longest file that is read, in bytes: a summary of a node with all its pods is far shorter.
const MAX_BYTES: u64 = 64 << 20;

/// Reads a JSON file.
pub(super) fn read_json(path: &Path) -> Result<Value, CommandError> {
    let text = read_at_most(path, MAX_BYTES).map_err(PathError::at(path))?;
    serde_json::from_str(&text).map_err(|error| invalid(path, error))
}

/// A file that does not hold what it should.
pub(super) fn invalid(path: &Path, reason: impl ToString) -> CommandError {
    CommandError::Input {
        path: path.into(),
        reason: reason.to_string(),
    }
}

pub fn bad(what: &str, reason: &str) -> CommandError {
    CommandError::Argument {
        what: what.to_owned(),
        reason: reason.to_owned(),
    }
}
