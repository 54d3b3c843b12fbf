//! What an agent remembers over a restart: pods, policies, labels of namespaces, pauses and the fleet's pace, as the API
//! server had them last. An agent that starts while the API server is away would otherwise know pods by their cgroups
//! alone, and could not spare any of them.
//!
//! One file in the state directory, a JSON object a line. It is written off the fast path, when something has changed
//! and at most every [`PAUSE`], as a whole, and takes the old one's place at once.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use evictd_engine::{Pod, fleet::FleetState};
use evictd_policy::{Namespaces, PauseSource, PauseState, PolicyStore};

use super::client::ApiClient;
use crate::{
    fleet_brake::FleetBrake,
    watch::{namespaces::nothing_known, pods::WatchedPods},
};

mod file;

pub use file::{ClusterSnapshot, FILE, SnapshotError};

/// Pause between two writes of the file.
pub const PAUSE: Duration = Duration::from_secs(5);

/// What the configuration follows, of what the file has.
#[derive(Clone, Copy, Debug, Default)]
pub struct CacheSettings {
    /// A ConfigMap can pause evictions.
    pub uses_pause_config_map: bool,
    /// Policies of tenants are followed.
    pub follows_tenants: bool,
}

/// Keeps the file.
pub struct ClusterCache {
    path: PathBuf,
    client: Arc<ApiClient>,
    pods: Arc<WatchedPods>,
    policies: Arc<PolicyStore>,
    pauses: Arc<PauseState>,
    fleet: Option<Arc<FleetBrake>>,
    settings: CacheSettings,
    /// See [`Self::set_policies_known`].
    policies_known: AtomicBool,
    written: std::sync::Mutex<Option<Revision>>,
    /// The last write has failed, which was logged.
    has_write_failed: AtomicBool,
    /// Held by the thread that writes, also when its caller has given up: there is one temporary file.
    writer: Arc<tokio::sync::Mutex<()>>,
}

/// Revisions of what there is to remember, which tell whether it has changed.
#[derive(Clone, Debug, PartialEq)]
struct Revision {
    pods: u64,
    policies: u64,
    policies_known: bool,
    namespaces: u64,
    paused: Vec<PauseSource>,
    fleet: FleetState,
}

impl ClusterCache {
    /// Creates the cache, with its file in this state directory.
    pub fn new(
        state_dir: &Path,
        client: Arc<ApiClient>,
        pods: Arc<WatchedPods>,
        policies: Arc<PolicyStore>,
        pauses: Arc<PauseState>,
        fleet: Option<Arc<FleetBrake>>,
        settings: CacheSettings,
    ) -> Self {
        Self {
            path: state_dir.join(FILE),
            client,
            pods,
            policies,
            pauses,
            fleet,
            settings,
            policies_known: AtomicBool::new(false),
            written: std::sync::Mutex::default(),
            has_write_failed: AtomicBool::new(false),
            writer: Arc::default(),
        }
    }

    /// The API server has answered about policies, or refuses to: from now on the file says so.
    pub fn set_policies_known(&self) {
        self.policies_known.store(true, Ordering::Release);
    }

    /// Brings back what an earlier agent knew, before the API server is asked; false where none knew the policies.
    pub fn restore(&self) -> bool {
        let evaluator = self.policies.evaluator();
        evaluator.set_namespaces(nothing_known());
        let read = self.path.parent().map(ClusterSnapshot::read);
        let snapshot = match read {
            Some(Ok(snapshot)) => snapshot,
            Some(Err(error)) => {
                tracing::warn!(%error, "what an earlier agent knew of the cluster cannot be used");
                return false;
            }
            None => return false,
        };
        if !snapshot.pods.is_empty() {
            let (pods, policies) = (snapshot.pods.len(), snapshot.policies.len());
            tracing::info!(
                pods,
                policies,
                "an earlier agent's knowledge holds until the API server answers"
            );
        }
        if snapshot.unreadable > 0 {
            tracing::warn!(
                pods = snapshot.unreadable,
                "pods that an earlier agent knew cannot be read: their cgroups tell of them"
            );
        }
        // Where the configuration does not follow them they mean nothing.
        let tenants = match self.settings.follows_tenants {
            true => &snapshot.tenants[..],
            false => &[],
        };
        self.policies.restore(&snapshot.policies, tenants);
        for source in snapshot.pauses(self.settings.uses_pause_config_map) {
            self.pauses.set(source, true);
        }
        if let Some(fleet) = &self.fleet {
            fleet.restore(snapshot.fleet);
        }
        evaluator.set_namespaces(Namespaces {
            labels: snapshot.namespaces,
            keys: snapshot
                .namespace_keys
                .or_else(|| Some(evaluator.namespace_keys())),
        });
        self.pods.with(|store| store.restore(snapshot.pods));
        let is_known = snapshot.policies_known;
        self.policies_known.store(is_known, Ordering::Release);
        is_known
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

    /// Writes it if something has changed; waits for a write that is under way.
    pub async fn keep(&self) {
        let writer = Arc::clone(&self.writer).lock_owned().await;
        let Some((revision, snapshot)) = self.changed() else {
            return;
        };
        let path = self.path.clone();
        let written = tokio::task::spawn_blocking(move || -> io::Result<usize> {
            let _writer = writer;
            let (text, left_out) = snapshot.text()?;
            evictd_sys::fs::replace(&path, text.as_bytes(), true)?;
            Ok(left_out)
        });
        match written.await {
            Ok(Ok(left_out)) => {
                if left_out > 0 && self.client.counters.pods_not_remembered.add_first() {
                    tracing::warn!(
                        left_out,
                        "pods do not fit into what is remembered over a restart"
                    );
                }
                self.has_write_failed.store(false, Ordering::Relaxed);
                if let Ok(mut written) = self.written.lock() {
                    *written = Some(revision);
                }
            }
            Ok(Err(error)) => {
                if !self.has_write_failed.swap(true, Ordering::Relaxed) {
                    let path = self.path.display();
                    tracing::warn!(%path, %error, "what is known of the cluster cannot be written: an agent that starts \
                         before the API server answers knows pauses and policies as they were before");
                }
            }
            // The runtime ends.
            Err(_) => {}
        }
    }

    /// What there is to write; nothing before the API server has answered, since it knows better than this agent.
    fn changed(&self) -> Option<(Revision, ClusterSnapshot)> {
        let evaluator = self.policies.evaluator();
        let of_api = [PauseSource::Node, PauseSource::ConfigMap].into_iter();
        let paused: Vec<PauseSource> = of_api.filter(|b| self.pauses.is_set(*b)).collect();
        let fleet = self.fleet.as_ref().map(|fleet| fleet.published_state());
        let fleet = fleet.unwrap_or_default();
        let known = self
            .pods
            .with(|store| store.is_synced().then(|| store.revision()))?;
        // Before they are read: those that it is true of are in the file.
        let policies_known = self.policies_known.load(Ordering::Acquire);
        let revision = Revision {
            pods: known,
            policies: self.policies.revision(),
            policies_known,
            namespaces: evaluator.namespaces_revision(),
            paused: paused.clone(),
            fleet,
        };
        if self.written.lock().ok()?.as_ref() == Some(&revision) {
            return None;
        }
        let pods: Vec<Pod> = self.pods.with(|store| store.pods().cloned().collect());
        let Namespaces {
            labels: mut namespaces,
            keys: namespace_keys,
        } = evaluator.namespaces();
        namespaces.retain(|name, _| pods.iter().any(|pod| pod.namespace == *name));
        let snapshot = ClusterSnapshot {
            paused,
            fleet,
            policies_known,
            policies: self.policies.remembered(),
            tenants: self.policies.remembered_tenants(),
            namespaces,
            namespace_keys,
            pods,
            unreadable: 0,
        };
        Some((revision, snapshot))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use evictd_config::{ConfigMapName, FleetConfig};
    use evictd_engine::{
        fleet::{FleetPace, FleetRules},
        units::SECOND,
    };
    use evictd_policy::{PolicyEvaluator, evaluator::PolicySettings, gate::Secrets};
    use evictd_sys::clock::monotonic_ns;
    use jiff::Timestamp;

    use super::*;

    const KUBECONFIG: &str = r#"{
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]
    }"#;

    async fn agent(dir: &Path) -> ClusterCache {
        let kubeconfig = dir.join("kubeconfig");
        fs::write(&kubeconfig, KUBECONFIG).expect("a file");
        let client = ApiClient::open(Some(kubeconfig)).await;
        let client = Arc::new(client.expect("a client"));
        let evaluator = PolicyEvaluator::new(PolicySettings::default(), Secrets::default());
        let limiter = evaluator.limiter();
        let pauses = PauseState::new(Arc::clone(limiter));
        let brake = FleetConfig {
            config_map: ConfigMapName {
                namespace: "evictd".into(),
                name: "evictd-fleet".into(),
            },
            rules: FleetRules {
                window: Duration::from_secs(600),
                slow_nodes: 2,
                pause_nodes: 3,
                pause: Duration::from_secs(1800),
                slow_interval: Duration::from_secs(60),
            },
        };
        let fleet = FleetBrake::new(Arc::clone(&client), brake, "n1", Arc::clone(limiter));
        ClusterCache::new(
            dir,
            client,
            Arc::default(),
            Arc::new(PolicyStore::new(evaluator)),
            Arc::new(pauses),
            Some(fleet),
            CacheSettings::default(),
        )
    }

    fn list(cache: &ClusterCache) {
        let pod = Pod {
            uid: "u1".into(),
            ..Pod::default()
        };
        cache.pods.with(|store| {
            store.begin_relist();
            store.put(pod);
            store.end_relist();
        });
    }

    /// A server may list pods and not policies: an agent that knows the pods has not seen a policy for that.
    #[tokio::test]
    async fn pods_without_policies_are_no_knowledge_of_policies() {
        let dir = tempfile::tempdir().expect("a directory");
        let first = agent(dir.path()).await;
        assert!(!first.restore(), "there is no file");
        list(&first);
        first.keep().await;
        let second = agent(dir.path()).await;
        assert!(!second.restore());
        assert_eq!(second.pods.with(|store| store.pods().count()), 1);
        list(&second);
        second.set_policies_known();
        second.keep().await;
        let third = agent(dir.path()).await;
        assert!(third.restore());
        // It has heard of pods alone, and does not forget what was heard of policies.
        list(&third);
        third.keep().await;
        assert!(agent(dir.path()).await.restore());
    }

    #[tokio::test]
    async fn the_fleets_pace_holds_over_a_restart() {
        let dir = tempfile::tempdir().expect("a directory");
        let first = agent(dir.path()).await;
        list(&first);
        first.keep().await;
        let now = Timestamp::now().as_second();
        let paused = FleetState {
            pace: FleetPace::Paused,
            until: now + 900,
        };
        let pull = |cache: &ClusterCache, state| cache.fleet.as_ref().map(|f| f.restore(state));
        pull(&first, paused);
        first.keep().await;
        let second = agent(dir.path()).await;
        let limiter = Arc::clone(second.policies.evaluator().limiter());
        let pace = |seconds: u64| limiter.fleet_pace(monotonic_ns() + seconds * SECOND);
        assert_eq!(pace(0), FleetPace::Normal);
        second.restore();
        // Until the same end.
        assert_eq!(pace(890), FleetPace::Paused);
        assert_eq!(pace(910), FleetPace::Slow);
        // What has ended is remembered as that.
        list(&second);
        pull(&second, FleetState::default());
        second.keep().await;
        let third = ClusterSnapshot::read(dir.path()).expect("a file");
        assert_eq!(third.fleet, FleetState::default());
    }

    /// The end of the agent gives up a write that hangs, and writes the newer list. A pipe that is opened to be written
    /// hangs until it is read, as a disk may.
    #[tokio::test]
    async fn a_write_that_was_given_up_is_waited_for_by_the_next_one() {
        let dir = tempfile::tempdir().expect("a directory");
        let pipe = dir.path().join(FILE).with_extension("new");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.expect("mkfifo").success());
        let cache = agent(dir.path()).await;
        list(&cache);
        let soon = Duration::from_millis(100);
        let hangs = tokio::time::timeout(soon, cache.keep()).await;
        hangs.expect_err("the disk hangs");
        // Were the first one not waited for, this one would be written past it.
        fs::rename(&pipe, dir.path().join("hanging")).expect("a pipe");
        let early = tokio::time::timeout(soon, cache.keep()).await;
        let pipe = dir.path().join("hanging");
        let read = tokio::task::spawn_blocking(move || fs::read(pipe));
        early.expect_err("another one writes");
        cache.keep().await;
        read.await.expect("a thread").expect("a pipe");
        let next = agent(dir.path()).await;
        next.restore();
        assert_eq!(next.pods.with(|store| store.pods().count()), 1);
    }
}
