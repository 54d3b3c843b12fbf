//! Where a release comes from: an in-toto statement with SLSA's provenance, not signed.

use super::{Artifacts, Inputs, VERSION, hex};
use crate::prelude::*;

pub fn statement(files: &Artifacts, inputs: &Inputs<'_>) -> Result<Vec<u8>> {
    let subjects: Vec<Value> = files
        .iter()
        .map(|(name, content)| json!({"name": name, "digest": {"sha256": hex(content)}}))
        .collect();
    let arches: Vec<&str> = inputs
        .binaries
        .iter()
        .map(|(arch, _)| arch.name())
        .collect();
    let sources: Vec<Value> = inputs
        .provenance
        .revision
        .iter()
        .map(|revision| json!({"name": "source", "digest": {"gitCommit": revision}}))
        .collect();
    let statement = json!({
        "_type": "https://in-toto.io/Statement/v1",
        "subject": subjects,
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "cargo xtask release",
                "externalParameters": {"version": VERSION, "architectures": arches},
                "internalParameters": {"compiler": inputs.compiler},
                "resolvedDependencies": sources,
            },
            "runDetails": {
                "builder": {"id": "cargo xtask release"},
                "metadata": {"startedOn": inputs.provenance.created},
            },
        },
    });
    Ok(serde_json::to_vec_pretty(&statement)?)
}
