//! The policies of a running agent: read, read again when their files change, and applied to all pods. Also the pauses
//! of evictions, and the status file that `evictd policy explain` shows.

mod marks;
mod pause_log;

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::SystemTime,
};

use evictd_config::Config;
use evictd_engine::fleet::FleetPace;
use evictd_kube::cache::ClusterSnapshot;
use evictd_node::pods::table::PodTable;
use evictd_policy::{
    EvictionPolicy, PauseSource, PauseState, PolicyEvaluator, PolicyStore,
    evaluator::{Explanation, PolicySettings, Worker},
    file::{self, PolicyError},
    gate::{ClusterAddresses, Secrets},
};
use evictd_store::{disk_queue::DiskQueue, record::oom_kill::PodName};
use evictd_sys::clock::monotonic_ns;
use prometheus_client::metrics::MetricType;
use tokio::sync::Notify;

use super::{
    RunError,
    background::{BackgroundRead, SingleFlight},
};
use crate::telemetry::MetricFamily;
use marks::MarkFiles;
pub use marks::request_file;
pub use pause_log::PauseLog;

/// The status file: what `evictd policy explain` shows, in the state directory.
const STATUS: &str = "policies.json";

/// Keeps policies in force.
pub struct Policies {
    /// Evaluates policies and writes the pods' permits.
    pub evaluator: Arc<PolicyEvaluator>,
    /// The policies in force, by source.
    pub policies: Arc<PolicyStore>,
    /// The pauses of evictions.
    pub pauses: Arc<PauseState>,
    files: Vec<PathBuf>,
    fingerprint: Vec<(PathBuf, u64, Option<SystemTime>)>,
    read: BackgroundRead<Option<Found>>,
    /// Why the files could not be read the last time.
    unread: Option<String>,
    state_dir: PathBuf,
    marks: Arc<MarkFiles>,
    written: Vec<Explanation>,
    status: Arc<StatusFile>,
    // Its thread ends when this is dropped.
    _worker: Option<Worker>,
}

/// Result of a read of the files.
struct Found {
    /// Before they were read: what changes meanwhile is a change.
    fingerprint: Vec<(PathBuf, u64, Option<SystemTime>)>,
    read: Result<Vec<EvictionPolicy>, PolicyError>,
}

impl Policies {
    /// Reads the configured files.
    ///
    /// # Errors
    /// A policy that cannot be used: at the start that is bad input.
    pub fn start(config: &Config) -> Result<Self, RunError> {
        let policy = &config.policy;
        let settings = PolicySettings {
            node_rate: policy.node_rate,
            owner_rate: policy.owner_rate,
            last_resort: policy.last_resort,
            max_grace: config
                .cluster
                .as_ref()
                .and_then(|cluster| cluster.tenant_grace)
                .unwrap_or_default(),
        };
        let evaluator = PolicyEvaluator::new(settings, Secrets::new(policy.secrets.clone()));
        evaluator.limiter().exempt_growers(policy.exempt_growers);
        if config.cluster.is_none() {
            evaluator.set_cluster_addresses(ClusterAddresses::default());
        }
        let policies = Arc::new(PolicyStore::new(Arc::clone(&evaluator)));
        // Before they are read: what changes meanwhile is a change.
        let fingerprint = file::fingerprint(&policy.files);
        policies.set_files(Some(file::load(&policy.files)?));
        let pauses = Arc::new(PauseState::new(Arc::clone(evaluator.limiter())));
        let wanted = !policy.files.is_empty() || config.cluster.is_some();
        let worker = wanted
            .then(|| Worker::start(Arc::clone(&evaluator)))
            .transpose()?;
        let checked = Arc::<Notify>::default();
        let started = Self {
            evaluator,
            policies,
            pauses,
            files: policy.files.clone(),
            fingerprint,
            read: BackgroundRead::new(Arc::clone(&checked)),
            unread: None,
            state_dir: config.state_dir.clone(),
            marks: Arc::new(MarkFiles::new(&config.state_dir, checked)),
            written: Vec::new(),
            status: Arc::default(),
            _worker: worker,
        };
        // A pause outlives a restart: no pod is evicted before the first look.
        started.marks.check();
        started.set_pause();
        Ok(started)
    }

    fn set_pause(&self) {
        let paused = self.marks.is_paused.load(Ordering::Relaxed);
        self.pauses.set(PauseSource::File, paused);
    }

    /// Ends when files were read or checked; [`Self::take_finished`] is due then.
    pub async fn finished(&self) {
        self.marks.checked.notified().await;
    }

    /// Applies what was found.
    pub fn take_finished(&mut self, disk: &DiskQueue) {
        self.set_pause();
        if let Some(Some(found)) = self.read.take() {
            self.fingerprint = found.fingerprint;
            self.apply(found.read);
        }
        if self.marks.is_requested.load(Ordering::Relaxed) {
            self.report(disk);
        }
    }

    /// Judges the pods of a table that is about to be handed over.
    pub fn set_pods(&mut self, table: &PodTable) {
        self.evaluator.set_pods(&table.entries);
    }

    /// Builds the gauges that the metrics show of policies.
    pub fn gauges(&self) -> Vec<MetricFamily<'static>> {
        let (evaluator, policies) = (Arc::clone(&self.evaluator), Arc::clone(&self.policies));
        let pauses = Arc::clone(&self.pauses);
        let matched = move || {
            let matched = evaluator.matched().into_iter();
            matched.map(|(name, pods)| (name, pods as u64)).collect()
        };
        let evaluator = Arc::clone(&self.evaluator);
        let conflicts = move || {
            let pairs = evaluator.present_conflicts().into_iter();
            let rules = pairs.map(|(one, other)| format!("{} {}", one.name(), other.name()));
            rules.map(|rules| (rules, true)).collect()
        };
        let refused = move || {
            let (objects, files) = policies.refused();
            let tenants = policies.tenants_refused() as u64;
            vec![
                ("api".to_owned(), objects as u64),
                ("file".to_owned(), u64::from(files)),
                ("tenants".to_owned(), tenants),
            ]
        };
        let limiter = Arc::clone(self.evaluator.limiter());
        let gauge = MetricType::Gauge;
        vec![
            MetricFamily::state_set(
                "fleet_brake",
                "1 while the fleet brake holds back evictions that are not urgent",
                "pace",
                [FleetPace::Slow, FleetPace::Paused].map(|pace| (pace.as_str(), pace)),
                move |pace| limiter.fleet_pace(monotonic_ns()) == pace,
            ),
            MetricFamily::labelled(
                gauge,
                "policy_pods",
                "Pods of this node that a policy in force matches",
                "policy",
                matched,
            ),
            MetricFamily::labelled(
                gauge,
                "policy_conflicts",
                "Rules of the same precedence that contradict each other on a pod of this node",
                "rules",
                conflicts,
            ),
            MetricFamily::labelled(
                gauge,
                "policies_refused",
                "Policies whose newest version cannot be used, or beyond how many are kept; all files are one",
                "source",
                refused,
            ),
            MetricFamily::state_set(
                "paused",
                "1 while this pause is set",
                "by",
                PauseSource::ALL.map(|source| (source.as_str(), source)),
                move |source| pauses.is_set(source),
            ),
        ]
    }

    /// Logs which policies in shadow mode would have denied the eviction of a pod.
    pub fn log_objection(&self, pod: &PodName) {
        if let Some(objection) = self.evaluator.shadow_objection(&pod.uid) {
            tracing::info!(
                pod = pod.to_string(),
                objection,
                "a policy in shadow mode would have denied the eviction"
            );
        }
    }

    /// Has files read that may have changed, and has evicted pods judged anew; `is_reported`: the API server has heard
    /// of them all.
    pub fn refresh(&mut self, disk: &DiskQueue, is_reported: bool) {
        self.marks.check_on(disk);
        self.evaluator.refresh_evicted(is_reported);
        let (files, known) = (self.files.clone(), self.fingerprint.clone());
        let is_unread = self.unread.is_some();
        self.read.begin(move || {
            let fingerprint = file::fingerprint(&files);
            let is_read = is_unread || fingerprint != known;
            is_read.then(|| Found {
                fingerprint,
                read: file::load(&files),
            })
        });
        self.report(disk);
    }

    fn apply(&mut self, read: Result<Vec<EvictionPolicy>, PolicyError>) {
        let error = match read {
            Ok(policies) => {
                tracing::info!(policies = policies.len(), "the policies were read again");
                self.policies.set_files(Some(policies));
                self.unread = None;
                return;
            }
            Err(error) => error,
        };
        let reason = error.to_string();
        // What could not be read is tried again, and logged once.
        let is_passing = matches!(error, PolicyError::Read(_));
        let is_logged = self.unread.as_ref() == Some(&reason);
        self.unread = is_passing.then_some(reason);
        if !is_logged {
            self.policies.set_files(None);
            tracing::error!(%error, "a policy cannot be used: the last good ones stay in force");
        }
    }

    /// Has the status file written when more than ages has changed in it, or a subcommand requests it.
    fn report(&mut self, disk: &DiskQueue) {
        let Some(running) = self.status.writes.begin() else {
            return;
        };
        let mut without_time = self.evaluator.explain();
        for explanation in &mut without_time {
            explanation.for_seconds = None;
            let gates = explanation.rules.iter_mut().flat_map(|r| &mut r.gates);
            gates.for_each(|g| g.age_seconds = None);
        }
        let request = request_file(&self.state_dir);
        let is_requested = self.marks.is_requested.swap(false, Ordering::Relaxed);
        let has_failed = self.status.has_failed.swap(false, Ordering::Relaxed);
        if without_time == self.written && !is_requested && !has_failed {
            return;
        }
        let (status, path) = (Arc::clone(&self.status), status_file(&self.state_dir));
        let text = serde_json::to_vec(&self.evaluator.explain()).map_err(std::io::Error::from);
        let write = move || {
            match text.and_then(|text| evictd_sys::fs::replace(&path, &text, false)) {
                Ok(()) => {
                    // The subcommand may have taken its request back.
                    if is_requested && let Err(error) = std::fs::remove_file(request) {
                        tracing::debug!(%error, "the reader of the policies' status has gone");
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "what the policies say cannot be written down");
                    status.has_failed.store(true, Ordering::Relaxed);
                }
            }
            drop(running);
        };
        if disk.write_file(write).is_ok() {
            self.written = without_time;
        }
    }
}

/// Whether the file pauses evictions, or the API server did when an earlier agent heard of it last.
pub fn is_paused_before(config: &Config) -> bool {
    let marks = MarkFiles::new(&config.state_dir, Arc::default());
    marks.check();
    let of_api = || {
        let cluster = config.cluster.as_ref()?;
        let snapshot = ClusterSnapshot::read(&config.state_dir).ok()?;
        let mut pauses = snapshot.pauses(cluster.pause_config_map.is_some());
        Some(pauses.next().is_some())
    };
    marks.is_paused.load(Ordering::Relaxed) || of_api().unwrap_or(false)
}

/// Whether the status file is being written, and whether the last attempt failed.
#[derive(Default)]
struct StatusFile {
    writes: SingleFlight,
    has_failed: AtomicBool,
}

/// Path of the status file of an agent with this state directory.
pub fn status_file(state_dir: &Path) -> PathBuf {
    state_dir.join(STATUS)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use evictd_kube::cache::FILE;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pause_is_known_before_the_api_server_is_asked() {
        let dir = tempfile::tempdir().unwrap();
        let is_paused = |cluster: serde_json::Value| {
            let own = json!({ "stateDir": dir.path(), "cluster": cluster });
            is_paused_before(&Config::from_values(own, None).unwrap())
        };
        let plain = || json!({ "nodeName": "n" });
        let follows = || json!({ "nodeName": "n", "pauseConfigMap": "evictd/evictd-pause" });
        assert!(!is_paused(plain()));
        let remember = |by: &str| {
            let lines = format!("{{\"version\":1}}\n{{\"paused\":\"{by}\"}}\n{{\"end\":2}}\n");
            fs::write(dir.path().join(FILE), lines).unwrap();
        };
        remember("node");
        assert!(is_paused(plain()));
        // As at the start that follows: a source that is not watched is not obeyed.
        remember("configMap");
        assert!(!is_paused(plain()) && is_paused(follows()));
        remember("policiesKnown");
        assert!(!is_paused(follows()));
        fs::write(dir.path().join("pause"), "").unwrap();
        assert!(is_paused(plain()));
    }
}
