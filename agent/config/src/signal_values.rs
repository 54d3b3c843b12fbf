//! Decodes signals with their values, in the map form and in the string form.

use serde_json::Value;

use super::{ConfigError, thresholds::SignalValues};
use crate::decode::ObjectDecoder;

/// Reads a map of signals, or a text `signal<value,signal<value`, or a list of such texts.
pub(super) fn signal_values(
    fields: &mut ObjectDecoder,
    name: &str,
    operator: char,
) -> Result<Option<SignalValues>, ConfigError> {
    let field = fields.path_of(name);
    let mut signal_values = SignalValues::new();
    match fields.optional(name) {
        None => return Ok(None),
        Some(Value::Object(map)) => {
            for (signal, value) in map {
                let Value::String(text) = value else {
                    return Err(ConfigError::value(
                        format!("{field}.{signal}"),
                        &value,
                        "must be a string",
                    ));
                };
                signal_values.insert(signal, text);
            }
        }
        Some(Value::String(text)) => read(&field, operator, &text, &mut signal_values)?,
        Some(Value::Array(items)) => {
            for item in items {
                let Value::String(text) = item else {
                    return Err(ConfigError::value(field, &item, "must be a string"));
                };
                read(&field, operator, &text, &mut signal_values)?;
            }
        }
        Some(other) => {
            return Err(ConfigError::value(
                field,
                &other,
                "must be a map of signals, a string or a list of strings",
            ));
        }
    }
    Ok(Some(signal_values))
}

fn read(
    field: &str,
    operator: char,
    text: &str,
    into: &mut SignalValues,
) -> Result<(), ConfigError> {
    for statement in text
        .split(',')
        .filter(|statement| !statement.trim().is_empty())
    {
        let Some((signal, value)) = statement.split_once(operator) else {
            let reason = format!("must have the form <signal>{operator}<value>");
            return Err(ConfigError::text(field, statement, reason));
        };
        if into
            .insert(signal.trim().to_owned(), value.trim().to_owned())
            .is_some()
        {
            return Err(ConfigError::text(
                field,
                statement,
                "the signal is given twice",
            ));
        }
    }
    Ok(())
}
