//! The form of the file.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::Path,
};

use evictd_engine::{
    Pod,
    fleet::{FleetPace, FleetState},
};
use evictd_policy::{Labels, PauseSource, TENANT_KIND};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// Name of the file in the state directory.
pub const FILE: &str = "cluster.jsonl";
/// Version of its form.
const VERSION: u32 = 1;
/// Stands among the pauses where the API server has answered about policies: an older agent passes over a pause that it
/// does not know.
const POLICIES_KNOWN: &str = "policiesKnown";
/// Begins the one with the fleet's pace and its end, for the same reason.
const FLEET: &str = "fleet ";
/// Longest file, in bytes. Pods and policies of namespaces that do not fit are left out.
const MAX_BYTES: usize = 4 << 20;
/// Why nothing is remembered.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The file cannot be read.
    #[error("{FILE}: {0}")]
    File(#[from] io::Error),
    /// The file is longer than it can have been written.
    #[error("{FILE}: is {0} bytes long, more than {MAX_BYTES}")]
    Length(u64),
    /// A line of it.
    #[error("{FILE}: line {line}: {reason}")]
    Line {
        /// Counted from 1.
        line: usize,
        /// Description of what is wrong with the line.
        reason: String,
    },
}

/// One line.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
enum Line {
    Version(u32),
    Paused(String),
    Policy(Value),
    Namespace {
        name: String,
        labels: Labels,
        /// The labels that were asked for; a file of an agent that has not written them has none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        keys: Option<BTreeSet<String>>,
    },
    /// None where it has a form that this agent does not know.
    Pod(#[serde(deserialize_with = "pod_if_readable")] Option<Box<Pod>>),
    /// The last one: so many were before it.
    End(usize),
}

fn pod_if_readable<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Box<Pod>>, D::Error> {
    let value = Value::deserialize(from)?;
    Ok(serde_json::from_value(value).ok())
}

fn fleet_state(word: &str) -> Option<FleetState> {
    let (pace, until) = word.strip_prefix(FLEET)?.split_once(' ')?;
    let pace = FleetPace::ALL.into_iter().find(|p| p.as_str() == pace)?;
    let until = until.parse().ok()?;
    Some(FleetState { pace, until })
}

/// Snapshot of what is remembered of the cluster.
#[derive(Debug, Default, PartialEq)]
pub struct ClusterSnapshot {
    /// Brakes of the API server's that were pulled.
    pub paused: Vec<PauseSource>,
    /// What the fleet brake has published.
    pub fleet: FleetState,
    /// Whether the API server has ever answered about policies; false in files of agents that have not written it.
    pub policies_known: bool,
    /// Policies that were in force.
    pub policies: Vec<Value>,
    /// Policies of namespaces about their own pods.
    pub tenants: Vec<Value>,
    /// Labels of the pods' namespaces.
    pub namespaces: BTreeMap<String, Labels>,
    /// Label keys that were asked for; `None` where no namespace is known.
    pub namespace_keys: Option<BTreeSet<String>>,
    /// The node's pods.
    pub pods: Vec<Pod>,
    /// How many pods an agent of another version has written in a form that this one does not know.
    pub unreadable: usize,
}

impl ClusterSnapshot {
    /// Reads it; without a file there is nothing.
    ///
    /// # Errors
    /// A file that cannot be read or was not written to its end.
    pub fn read(state_dir: &Path) -> Result<Self, SnapshotError> {
        let path = state_dir.join(FILE);
        let length = match fs::metadata(&path) {
            Ok(facts) => facts.len(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(error.into()),
        };
        if length > MAX_BYTES as u64 {
            return Err(SnapshotError::Length(length));
        }
        Self::parse(&fs::read_to_string(path)?)
    }

    /// The pauses that hold: a source that is no longer watched would never be released.
    pub fn pauses(&self, uses_pause_config_map: bool) -> impl Iterator<Item = PauseSource> {
        let is_watched = move |source: &PauseSource| match source {
            PauseSource::Node => true,
            PauseSource::ConfigMap => uses_pause_config_map,
            PauseSource::File => false,
        };
        self.paused.iter().copied().filter(is_watched)
    }

    fn parse(text: &str) -> Result<Self, SnapshotError> {
        let mut snapshot = Self::default();
        let mut ended = false;
        let mut count = 0;
        for (i, text) in text.lines().enumerate() {
            let wrong = |reason: String| SnapshotError::Line {
                line: i + 1,
                reason,
            };
            let line: Line = serde_json::from_str(text).map_err(|e| wrong(e.to_string()))?;
            match line {
                Line::Version(VERSION) if i == 0 => {}
                _ if i == 0 => return Err(wrong(format!("is not version {VERSION}"))),
                _ if ended => return Err(wrong("comes after the end".to_owned())),
                Line::Version(_) => return Err(wrong("is a second beginning".to_owned())),
                Line::Paused(word) if word == POLICIES_KNOWN => snapshot.policies_known = true,
                Line::Paused(by) => {
                    let source = PauseSource::ALL.into_iter().find(|b| b.as_str() == by);
                    snapshot.paused.extend(source);
                    snapshot.fleet = fleet_state(&by).unwrap_or(snapshot.fleet);
                }
                Line::Policy(policy) if policy["kind"] == TENANT_KIND => {
                    snapshot.tenants.push(policy)
                }
                Line::Policy(policy) => snapshot.policies.push(policy),
                Line::Namespace { name, labels, keys } => {
                    snapshot.namespaces.insert(name, labels);
                    snapshot.namespace_keys = keys.or(snapshot.namespace_keys);
                }
                Line::Pod(Some(pod)) => snapshot.pods.push(*pod),
                Line::Pod(None) => snapshot.unreadable += 1,
                Line::End(before) if before == i => ended = true,
                Line::End(before) => {
                    return Err(wrong(format!("{before} lines should be before it")));
                }
            }
            count = i + 1;
        }
        if ended {
            return Ok(snapshot);
        }
        Err(SnapshotError::Line {
            line: count + 1,
            reason: "is missing: the file has no end".to_owned(),
        })
    }

    /// Builds the text of the file, and counts the pods and policies of namespaces that did not fit.
    pub(super) fn text(&self) -> Result<(String, usize), serde_json::Error> {
        let mut text = String::new();
        let mut lines = 0;
        let mut left_out = 0;
        let mut add = |line: &Line, least: usize| -> Result<bool, serde_json::Error> {
            let line = serde_json::to_string(line)?;
            // The end must fit too.
            let fits = text.len() + line.len() + least < MAX_BYTES;
            if fits {
                text.push_str(&line);
                text.push('\n');
                lines += 1;
            }
            Ok(fits)
        };
        const END: usize = 64;
        add(&Line::Version(VERSION), END)?;
        for source in &self.paused {
            add(&Line::Paused(source.as_str().to_owned()), END)?;
        }
        if self.fleet.pace != FleetPace::Normal {
            let FleetState { pace, until } = self.fleet;
            let word = format!("{FLEET}{} {until}", pace.as_str());
            add(&Line::Paused(word), END)?;
        }
        if self.policies_known {
            add(&Line::Paused(POLICIES_KNOWN.to_owned()), END)?;
        }
        for policy in &self.policies {
            add(&Line::Policy(policy.clone()), END)?;
        }
        for (name, labels) in &self.namespaces {
            let line = Line::Namespace {
                name: name.clone(),
                labels: labels.clone(),
                keys: self.namespace_keys.clone(),
            };
            add(&line, END)?;
        }
        for pod in &self.pods {
            left_out += usize::from(!add(&Line::Pod(Some(Box::new(pod.clone()))), END)?);
        }
        // Last: no tenant takes the place of a pod.
        for policy in &self.tenants {
            left_out += usize::from(!add(&Line::Policy(policy.clone()), END)?);
        }
        let end = serde_json::to_string(&Line::End(lines))?;
        text.push_str(&end);
        text.push('\n');
        Ok((text, left_out))
    }
}

#[cfg(test)]
mod tests;
