//! What an agent remembers over a restart: pods, policies, labels of namespaces and pauses, as the API server told them
//! last. An agent that starts while the API server is away would otherwise know pods by their cgroups alone, and could not
//! spare any of them.
//!
//! One file in the state directory, a JSON object a line. It is written off the fast path, when something has changed and
//! at most every [`PAUSE`], as a whole, and takes the old one's place at once.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{client::Connection, watch::Shared};
use crate::{
    daemon::state_file,
    engine::Pod,
    policy::{Brake, Brakes, Catalogue, Labels},
};

/// Name of the file in the state directory.
pub const FILE: &str = "cluster.jsonl";
/// Version of its form.
const VERSION: u32 = 1;
/// Longest file, in bytes. Pods that do not fit are left out.
const MOST_BYTES: usize = 4 << 20;
/// Longest value of an annotation that is kept, in bytes: policies look at marks, not at documents.
const LONGEST_ANNOTATION: usize = 1024;
/// Between two writes.
pub const PAUSE: Duration = Duration::from_secs(5);

/// Why nothing is remembered.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The file cannot be read.
    #[error("{FILE}: {0}")]
    File(#[from] io::Error),
    /// It is longer than it can have been written.
    #[error("{FILE}: is {0} bytes long, more than {MOST_BYTES}")]
    Length(u64),
    /// A line of it.
    #[error("{FILE}: line {line}: {reason}")]
    Line {
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
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
    },
    Pod(Box<Pod>),
    /// The last one: so many were before it.
    End(usize),
}

/// What is remembered.
#[derive(Debug, Default, PartialEq)]
pub struct Memory {
    /// Brakes of the API server's that were pulled.
    pub paused: Vec<Brake>,
    /// Policies that were in force.
    pub policies: Vec<Value>,
    /// Labels of the pods' namespaces.
    pub namespaces: BTreeMap<String, Labels>,
    /// The node's pods.
    pub pods: Vec<Pod>,
}

impl Memory {
    /// Reads it; without a file there is nothing.
    ///
    /// # Errors
    /// A file that cannot be read or was not written to its end.
    pub fn read(state_dir: &Path) -> Result<Self, MemoryError> {
        let path = state_dir.join(FILE);
        let length = match fs::metadata(&path) {
            Ok(facts) => facts.len(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(error.into()),
        };
        if length > MOST_BYTES as u64 {
            return Err(MemoryError::Length(length));
        }
        Self::parse(&fs::read_to_string(path)?)
    }

    fn parse(text: &str) -> Result<Self, MemoryError> {
        let mut memory = Self::default();
        let mut ended = false;
        let mut count = 0;
        for (i, text) in text.lines().enumerate() {
            let wrong = |reason: String| MemoryError::Line {
                line: i + 1,
                reason,
            };
            let line: Line = serde_json::from_str(text).map_err(|e| wrong(e.to_string()))?;
            match line {
                Line::Version(VERSION) if i == 0 => {}
                _ if i == 0 => return Err(wrong(format!("is not version {VERSION}"))),
                _ if ended => return Err(wrong("comes after the end".to_owned())),
                Line::Version(_) => return Err(wrong("is a second beginning".to_owned())),
                Line::Paused(by) => {
                    let brake = Brake::ALL.into_iter().find(|b| b.as_str() == by);
                    memory.paused.extend(brake);
                }
                Line::Policy(policy) => memory.policies.push(policy),
                Line::Namespace { name, labels } => {
                    memory.namespaces.insert(name, labels);
                }
                Line::Pod(pod) => memory.pods.push(*pod),
                Line::End(before) if before == i => ended = true,
                Line::End(before) => {
                    return Err(wrong(format!("{before} lines should be before it")));
                }
            }
            count = i + 1;
        }
        if ended {
            return Ok(memory);
        }
        Err(MemoryError::Line {
            line: count + 1,
            reason: "is missing: the file has no end".to_owned(),
        })
    }

    /// As it is written, and how many pods did not fit.
    fn text(&self) -> Result<(String, usize), serde_json::Error> {
        let mut text = String::new();
        let mut lines = 0;
        let mut left_out = 0;
        let mut add = |line: &Line, least: usize| -> Result<bool, serde_json::Error> {
            let line = serde_json::to_string(line)?;
            // The end must fit too.
            let fits = text.len() + line.len() + least < MOST_BYTES;
            if fits {
                text.push_str(&line);
                text.push('\n');
                lines += 1;
            }
            Ok(fits)
        };
        const END: usize = 64;
        add(&Line::Version(VERSION), END)?;
        for brake in &self.paused {
            add(&Line::Paused(brake.as_str().to_owned()), END)?;
        }
        for policy in &self.policies {
            add(&Line::Policy(policy.clone()), END)?;
        }
        for (name, labels) in &self.namespaces {
            let (name, labels) = (name.clone(), labels.clone());
            add(&Line::Namespace { name, labels }, END)?;
        }
        for pod in &self.pods {
            left_out += usize::from(!add(&Line::Pod(Box::new(pod.clone())), END)?);
        }
        let end = serde_json::to_string(&Line::End(lines))?;
        text.push_str(&end);
        text.push('\n');
        Ok((text, left_out))
    }
}

/// Keeps the file.
pub struct Keeping {
    path: PathBuf,
    connection: Arc<Connection>,
    pods: Arc<Shared>,
    catalogue: Arc<Catalogue>,
    brakes: Arc<Brakes>,
    obeys_config_map: bool,
    written: std::sync::Mutex<Option<Revision>>,
}

/// What there is to remember, as far as it tells whether that has changed.
#[derive(Clone, Debug, PartialEq)]
struct Revision {
    pods: u64,
    policies: u64,
    namespaces: u64,
    paused: Vec<Brake>,
}

impl Keeping {
    /// In this state directory.
    pub fn new(
        state_dir: &Path,
        connection: Arc<Connection>,
        pods: Arc<Shared>,
        catalogue: Arc<Catalogue>,
        brakes: Arc<Brakes>,
        obeys_config_map: bool,
    ) -> Self {
        Self {
            path: state_dir.join(FILE),
            connection,
            pods,
            catalogue,
            brakes,
            obeys_config_map,
            written: std::sync::Mutex::default(),
        }
    }

    /// Brings back what an earlier agent knew, before the API server is asked.
    pub fn recall(&self) {
        let read = self.path.parent().map(Memory::read);
        let memory = match read {
            Some(Ok(memory)) => memory,
            Some(Err(error)) => {
                tracing::warn!(%error, "what an earlier agent knew of the cluster cannot be used");
                return;
            }
            None => return,
        };
        if !memory.pods.is_empty() {
            let (pods, policies) = (memory.pods.len(), memory.policies.len());
            tracing::info!(
                pods,
                policies,
                "an earlier agent's knowledge holds until the API server answers"
            );
        }
        self.catalogue.keeper().set_namespaces(memory.namespaces);
        self.catalogue.recall(&memory.policies);
        for brake in memory.paused {
            // Nobody would ever release one that is not looked at any more.
            if brake == Brake::Node || (brake == Brake::ConfigMap && self.obeys_config_map) {
                self.brakes.set(brake, true);
            }
        }
        self.pods.with(|roster| roster.recall(memory.pods));
    }

    /// Writes it for ever.
    pub async fn run(&self) {
        let mut pause = tokio::time::interval(PAUSE);
        pause.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            pause.tick().await;
            self.keep().await;
        }
    }

    /// Writes it if something has changed.
    pub async fn keep(&self) {
        let Some((revision, memory)) = self.changed() else {
            return;
        };
        let path = self.path.clone();
        let written = tokio::task::spawn_blocking(move || -> io::Result<usize> {
            let (text, left_out) = memory.text()?;
            state_file::replace(&path, text.as_bytes(), true)?;
            Ok(left_out)
        });
        match written.await {
            Ok(Ok(left_out)) => {
                if left_out > 0 && self.connection.counters.pods_not_remembered.add_first() {
                    tracing::warn!(
                        left_out,
                        "pods do not fit into what is remembered over a restart"
                    );
                }
                if let Ok(mut written) = self.written.lock() {
                    *written = Some(revision);
                }
            }
            Ok(Err(error)) => {
                tracing::debug!(%error, "what is known of the cluster cannot be written down")
            }
            // The runtime ends.
            Err(_) => {}
        }
    }

    /// What there is to write; nothing before the API server has answered, since it knows better than this agent.
    fn changed(&self) -> Option<(Revision, Memory)> {
        let keeper = self.catalogue.keeper();
        let of_api = [Brake::Node, Brake::ConfigMap].into_iter();
        let paused: Vec<Brake> = of_api.filter(|b| self.brakes.is_set(*b)).collect();
        let known = self
            .pods
            .with(|roster| roster.is_synced().then(|| roster.revision()))?;
        let revision = Revision {
            pods: known,
            policies: self.catalogue.revision(),
            namespaces: keeper.namespaces_revision(),
            paused: paused.clone(),
        };
        if self.written.lock().ok()?.as_ref() == Some(&revision) {
            return None;
        }
        let pods: Vec<Pod> = self
            .pods
            .with(|roster| roster.pods().map(without_documents).collect());
        let mut namespaces = keeper.namespaces();
        namespaces.retain(|name, _| pods.iter().any(|pod| pod.namespace == *name));
        let memory = Memory {
            paused,
            policies: self.catalogue.remembered(),
            namespaces,
            pods,
        };
        Some((revision, memory))
    }
}

/// A pod without the annotations that others use as a cupboard.
fn without_documents(pod: &Pod) -> Pod {
    let mut pod = pod.clone();
    pod.annotations
        .retain(|_, value| value.len() <= LONGEST_ANNOTATION);
    pod
}

#[cfg(test)]
mod tests;
