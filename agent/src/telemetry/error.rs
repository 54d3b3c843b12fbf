//! Why a server cannot be started.

/// An address, a certificate or a key cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{field}: {value}: {reason}")]
pub struct ServeError {
    /// The field that names it.
    field: &'static str,
    /// Configured value: an address, or a path.
    value: String,
    /// Description of what is wrong with the value.
    reason: String,
}

impl ServeError {
    pub(super) fn new(field: &'static str, value: impl ToString, reason: &impl ToString) -> Self {
        Self {
            field,
            value: value.to_string(),
            reason: reason.to_string(),
        }
    }
}
