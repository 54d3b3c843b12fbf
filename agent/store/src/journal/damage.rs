//! What of a journal cannot be read, and why.

use std::{fmt, path::PathBuf};

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::record::{
    EvictionRecord, MetInForce, OutcomeRecord, Pause, Reported, RequestRecord, StuckPod,
    counted::{Counted, RecreationRecord, TimeBound},
    mitigation::MitigationRecord,
    node_reclaim::NodeReclaimed,
    oom_kill::OomKillRecord,
    shadow::{KubeletEviction, ShadowNode},
};

/// Lines of one file that cannot be read, but for a last one that a crash has cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Whether these are whole records with an event that this version does not know: a later one has written them.
    pub is_unknown_event: bool,
    /// The file.
    pub path: PathBuf,
    /// Number of damaged lines.
    pub lines: usize,
    /// The number of the first one.
    pub first: usize,
    /// Reason why the first one cannot be read, with its field where one is wrong.
    pub reason: String,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = if self.lines == 1 { "line" } else { "lines" };
        let (count, path) = (self.lines, self.path.display());
        let (first, reason) = (self.first, &self.reason);
        let what = match self.is_unknown_event {
            true => "passed over",
            false => "cannot be read",
        };
        write!(
            f,
            "{count} {lines} of {path} {what}: line {first}: {reason}"
        )
    }
}

/// Why a line is no record, and whether it only has an event that is not known here. Which field is wrong is known
/// where its event is: an enum with a tag loses that.
pub(super) fn reason(line: &[u8]) -> (String, bool) {
    let mut value: Value = match serde_json::from_slice(line) {
        Ok(value) => value,
        Err(error) => return (error.to_string().replace("line 1 column", "column"), false),
    };
    let Some(fields) = value.as_object_mut() else {
        return ("must be a map of fields".to_owned(), false);
    };
    let Some(Value::String(event)) = fields.remove("event") else {
        return ("event: is not there, or no text".to_owned(), false);
    };
    let wrong = match event.as_str() {
        "evicted" => field::<EvictionRecord>(value),
        "finished" => field::<OutcomeRecord>(value),
        "reported" => field::<Reported>(value),
        "asked" => field::<RequestRecord>(value),
        "reclaimed" => field::<NodeReclaimed>(value),
        "graduated" => field::<MitigationRecord>(value),
        "oomKill" => field::<OomKillRecord>(value),
        "paused" => field::<Pause>(value),
        "stuck" => field::<StuckPod>(value),
        "metInForce" => field::<MetInForce>(value),
        "counted" => field::<Counted>(value),
        "comeback" => field::<RecreationRecord>(value),
        "timeBound" => field::<TimeBound>(value),
        "kubeletEvicted" => field::<KubeletEviction>(value),
        "shadowNode" => field::<ShadowNode>(value),
        _ => return (format!("event: {event}: is not known here"), true),
    };
    let wrong = wrong.unwrap_or_else(|| format!("event: {event}: is no such record"));
    (wrong, false)
}

fn field<T: DeserializeOwned>(value: Value) -> Option<String> {
    let error = serde_path_to_error::deserialize::<_, T>(value).err()?;
    Some(match error.path().to_string().as_str() {
        "." => error.inner().to_string(),
        field => format!("{field}: {}", error.inner()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Record;

    #[test]
    fn the_field_is_named() {
        let finish =
            r#"{"event":"finished","id":"a","exited":1,"freed":"x","peakUsage":3,"available":4}"#;
        assert!(serde_json::from_str::<Record>(finish).is_err());
        assert_eq!(
            reason(finish.as_bytes()).0,
            "freed: invalid type: string \"x\", expected u64"
        );
        let missing = reason(br#"{"event":"finished","id":"a"}"#).0;
        assert!(missing.contains("missing field `exited`"), "{missing}");
        let cut = reason(br#"{"event":"finished","id"#).0;
        assert!(cut.ends_with("at column 23"), "{cut}");
        for (line, expected, is_unknown) in [
            ("7", "must be a map of fields", false),
            ("{}", "event: is not there, or no text", false),
            (
                r#"{"event":"tomorrow"}"#,
                "event: tomorrow: is not known here",
                true,
            ),
        ] {
            assert_eq!(reason(line.as_bytes()), (expected.to_owned(), is_unknown));
        }
    }

    #[test]
    fn every_event_has_its_fields() {
        let unknown = serde_json::from_str::<Record>(r#"{"event":"?"}"#).unwrap_err();
        let unknown = unknown.to_string();
        let (_, names) = unknown.split_once("expected one of ").unwrap();
        let names: Vec<&str> = names.split('`').skip(1).step_by(2).collect();
        assert!(names.len() > 10, "{unknown}");
        for event in names {
            let (told, _) = reason(format!("{{\"event\":\"{event}\"}}").as_bytes());
            assert!(told.contains("missing field"), "{event}: {told}");
        }
    }
}
