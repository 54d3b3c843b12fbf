//! The policies of a running agent: read, read again when their files change, and told to everybody.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use super::RunError;
use crate::{
    config::Config,
    engine::Pod,
    pods::table::PodTable,
    policy::{
        Keeper, PolicySet,
        gate::Secrets,
        keeper::{Explanation, Settings, Worker},
        load,
    },
};

/// File in the state directory whose presence pauses all evictions.
const PAUSE: &str = "pause";
/// File in the state directory with what `evictd policy explain` shows.
const STATUS: &str = "policies.json";

/// Keeps policies in force.
pub struct Policies {
    /// Keeps clearances.
    pub keeper: Arc<Keeper>,
    files: Vec<PathBuf>,
    seen: Vec<(PathBuf, u64, Option<SystemTime>)>,
    state_dir: PathBuf,
    told: Vec<Explanation>,
    // The thread ends when this is dropped.
    _worker: Option<Worker>,
}

impl Policies {
    /// Reads the configured files.
    ///
    /// # Errors
    /// A policy that cannot be used: at the start that is bad input.
    pub fn start(config: &Config) -> Result<Self, RunError> {
        let policy = &config.policy;
        let settings = Settings {
            node_rate: policy.node_rate,
            owner_rate: policy.owner_rate,
            last_resort: policy.last_resort,
        };
        let keeper = Keeper::new(settings, Secrets::new(policy.secrets.clone()));
        keeper.set_policies(PolicySet::new(load::load(&policy.files)?));
        let wanted = !policy.files.is_empty() || config.cluster.is_some();
        let worker = wanted
            .then(|| Worker::start(Arc::clone(&keeper)))
            .transpose()?;
        let started = Self {
            keeper,
            files: policy.files.clone(),
            seen: load::fingerprint(&policy.files),
            state_dir: config.state_dir.clone(),
            told: Vec::new(),
            _worker: worker,
        };
        // Before anybody can be evicted.
        started.pause();
        Ok(started)
    }

    /// Judges the pods of a table that is about to be handed over.
    pub fn present(&mut self, table: &PodTable) {
        self.keeper.present(&table.entries);
    }

    /// Says what policies have to do with an eviction.
    pub fn note(&self, pod: &Pod, last_resort: bool) {
        if last_resort {
            tracing::error!(%pod, "the policies spare everybody: the last resort took this one");
        }
        if let Some(objection) = self.keeper.shadow_objection(&pod.uid) {
            tracing::info!(%pod, objection, "a policy in shadow mode would have spared it");
        }
    }

    /// Looks for files that have changed.
    pub fn refresh(&mut self) {
        self.pause();
        let seen = load::fingerprint(&self.files);
        if seen != self.seen {
            self.seen = seen;
            match load::load(&self.files) {
                Ok(policies) => {
                    tracing::info!(policies = policies.len(), "the policies were read again");
                    self.keeper.set_policies(PolicySet::new(policies));
                }
                Err(error) => {
                    tracing::error!(%error, "a policy cannot be used: the last good ones stay in force");
                }
            }
        }
        self.tell();
    }

    fn pause(&self) {
        let paused = self.state_dir.join(PAUSE).exists();
        if paused != self.keeper.restraint().is_paused() {
            tracing::warn!(paused, "evictions were paused, or go on");
            self.keeper.restraint().pause(paused);
        }
    }

    /// Writes down what there is to explain, when it has changed by more than the time.
    fn tell(&mut self) {
        let explained = self.keeper.explain();
        let timeless = |e: &Explanation| {
            let mut e = e.clone();
            e.for_seconds = None;
            e.rules
                .iter_mut()
                .flat_map(|r| &mut r.gates)
                .for_each(|g| g.age_seconds = None);
            e
        };
        let without_time: Vec<_> = explained.iter().map(timeless).collect();
        if without_time == self.told {
            return;
        }
        match write(&status_file(&self.state_dir), &explained) {
            Ok(()) => self.told = without_time,
            Err(error) => tracing::debug!(%error, "what the policies say cannot be written down"),
        }
    }
}

/// Where an agent with this state directory writes what there is to explain.
pub fn status_file(state_dir: &Path) -> PathBuf {
    state_dir.join(STATUS)
}

fn write(path: &Path, explained: &[Explanation]) -> std::io::Result<()> {
    let new = path.with_extension("new");
    fs::write(&new, serde_json::to_vec(explained)?)?;
    fs::rename(new, path)
}
