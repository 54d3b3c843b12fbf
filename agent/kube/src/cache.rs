//! What an agent remembers over a restart: pods, policies, labels of namespaces and pauses, as the API server told them
//! last. An agent that starts while the API server is away would otherwise know pods by their cgroups alone, and could not
//! spare any of them.
//!
//! One file in the state directory, a JSON object a line. It is written off the fast path, when something has changed and
//! at most every [`PAUSE`], as a whole, and takes the old one's place at once.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use evictd_engine::Pod;
use evictd_policy::{Brake, Brakes, Catalogue};

use super::client::Connection;
use crate::watch::pods::Shared;
use file::without_documents;

mod file;

pub use file::{FILE, Memory, MemoryError};

/// Between two writes.
pub const PAUSE: Duration = Duration::from_secs(5);

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
            evictd_sys::fs::replace(&path, text.as_bytes(), true)?;
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
