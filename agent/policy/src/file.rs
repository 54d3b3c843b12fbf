//! Policies in files.

use std::{
    fs,
    path::{Path, PathBuf},
};

use evictd_config::{ConfigError, read_at_most, yaml_reason};
use evictd_sys::fs::PathError;
use serde_json::Value;

use crate::{EvictionPolicy, PodEvictionPolicy, TENANT_KIND};

/// Longest file that is read, in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// A file of policies that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// The file as a whole is wrong.
    #[error("{}: {reason}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Why it cannot be used.
        reason: String,
    },
    /// The file cannot be read now. A later attempt may succeed.
    #[error(transparent)]
    Read(#[from] PathError),
    /// A policy in the file is wrong.
    #[error("{}: {name}: {source}", path.display())]
    Policy {
        /// The file.
        path: PathBuf,
        /// The policy's name, or the number of its document.
        name: String,
        /// The field and the reason.
        source: ConfigError,
    },
}

/// Reads all policies of these files; of a directory its `*.yaml`, `*.yml` and `*.json`.
///
/// # Errors
/// The first mistake.
pub fn load(paths: &[PathBuf]) -> Result<Vec<EvictionPolicy>, PolicyError> {
    load_beside(paths, None)
}

/// As [`load`], with the policies of namespaces beside them, which an agent takes from the API server alone.
///
/// # Errors
/// As [`load`].
pub fn load_all(
    paths: &[PathBuf],
) -> Result<(Vec<EvictionPolicy>, Vec<PodEvictionPolicy>), PolicyError> {
    let mut tenants = Vec::new();
    Ok((load_beside(paths, Some(&mut tenants))?, tenants))
}

fn load_beside(
    paths: &[PathBuf],
    mut tenants: Option<&mut Vec<PodEvictionPolicy>>,
) -> Result<Vec<EvictionPolicy>, PolicyError> {
    let mut policies: Vec<EvictionPolicy> = Vec::new();
    for path in files(paths)? {
        let before = tenants.as_ref().map_or(0, |tenants| tenants.len());
        let read = read_beside(&path, tenants.as_deref_mut())?;
        let tenants = tenants.as_deref().map_or(&[][..], Vec::as_slice);
        for (at, tenant) in tenants.iter().enumerate().skip(before) {
            let name = |t: &PodEvictionPolicy| format!("{}/{}", t.namespace, t.name);
            if tenants[..at].iter().any(|t| name(t) == name(tenant)) {
                let reason = format!("policy {} is in another document already", name(tenant));
                return Err(PolicyError::File { path, reason });
            }
        }
        for policy in read {
            if policies.iter().any(|p| p.name == policy.name) {
                let reason = format!("policy {} is in another document already", policy.name);
                return Err(PolicyError::File { path, reason });
            }
            policies.push(policy);
        }
    }
    Ok(policies)
}

/// The files that exist, with length and time of change: another value when any file has changed.
pub fn fingerprint(paths: &[PathBuf]) -> Vec<(PathBuf, u64, Option<std::time::SystemTime>)> {
    let facts = |path: PathBuf| {
        let facts = fs::metadata(&path).ok();
        let (length, changed) = facts.map_or((0, None), |f| (f.len(), f.modified().ok()));
        (path, length, changed)
    };
    files(paths)
        .unwrap_or_default()
        .into_iter()
        .map(facts)
        .collect()
}

fn files(paths: &[PathBuf]) -> Result<Vec<PathBuf>, PolicyError> {
    let mut files = Vec::new();
    for path in paths {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let failed = PathError::at(path);
        let mut inside = Vec::new();
        for entry in fs::read_dir(path).map_err(&failed)? {
            let path = entry.map_err(&failed)?.path();
            if path
                .extension()
                .is_some_and(|e| e == "yaml" || e == "yml" || e == "json")
            {
                inside.push(path);
            }
        }
        inside.sort();
        files.extend(inside);
    }
    Ok(files)
}

/// Reads the policies of one file, one per YAML document. `tenants` takes the policies of namespaces; without it they are
/// a mistake.
fn read_beside(
    path: &Path,
    mut tenants: Option<&mut Vec<PodEvictionPolicy>>,
) -> Result<Vec<EvictionPolicy>, PolicyError> {
    let wrong = |reason: String| PolicyError::File {
        path: path.into(),
        reason,
    };
    let text = read_at_most(path, MAX_BYTES).map_err(PathError::at(path))?;
    let documents = serde_saphyr::from_multiple::<Value>(&text);
    let documents = documents.map_err(|e| wrong(yaml_reason(&e)))?;
    let documents = documents.into_iter().filter(|d| !d.is_null()).enumerate();
    let (mut policies, mut is_empty) = (Vec::new(), true);
    for (i, document) in documents {
        is_empty = false;
        let name = document["metadata"]["name"].as_str();
        let name = name.map_or_else(|| format!("document {}", i + 1), str::to_owned);
        let wrong = |source| PolicyError::Policy {
            path: path.into(),
            name,
            source,
        };
        match &mut tenants {
            Some(tenants) if document["kind"] == TENANT_KIND => {
                tenants.push(PodEvictionPolicy::read(document).map_err(wrong)?);
            }
            _ => policies.push(EvictionPolicy::read(document).map_err(wrong)?),
        }
    }
    if is_empty {
        return Err(wrong("holds no policy".to_owned()));
    }
    Ok(policies)
}
