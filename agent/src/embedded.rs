//! The agent. By default it is embedded: the scope is a cgroup, its pods are described by a manifest file, the executor is
//! the kernel. With a cluster the API server describes the pods, and hears what became of them.

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::{
    io::unix::AsyncFd,
    signal::unix::{SignalKind, signal},
};

use crate::{
    cluster::{agent::Cluster, client::AccessError},
    config::{Config, ConfigError, Mode},
    engine::{Signal, Threshold},
    evict::{
        journal::{Journal, JournalError, SharedJournal},
        reconcile::{Reconciler, reap},
        words::Words,
    },
    kernel::{
        ladder::Refused,
        object::Object,
        telemetry::{self, Telemetry},
        tripwire,
    },
    observe::{
        cgroup::{MemoryCgroup, PathError, descendants, memory_root},
        machine::memory_total,
    },
    pods::{
        manifest::{self, ManifestPod},
        table::{Entry, PodTable},
    },
    reflex::{Limits, Mailbox, Outbox, Reflex, Report, Scope, ScopeError, Setup},
};

/// How often the pods' cgroups are compared with what is held open.
const REFRESH: Duration = Duration::from_secs(1);

/// Where cgroups are mounted.
const CGROUP_MOUNT: &str = "/sys/fs/cgroup";

/// Why the agent cannot start or go on. The first group is bad input.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The configuration or the manifest.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The scope.
    #[error(transparent)]
    Scope(#[from] ScopeError),
    /// The rung that the configuration asks for.
    #[error(transparent)]
    Hook(#[from] Refused),
    /// The state directory.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A pod's cgroup at the start.
    #[error("pods[{index}].cgroup: {source}")]
    Pod {
        /// Position in the manifest.
        index: usize,
        /// The file and the reason.
        source: PathError,
    },
    /// The way to the API server.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// A field that the agent cannot do without.
    #[error("{field}: {reason}")]
    Missing {
        /// The field.
        field: &'static str,
        /// Why it is needed.
        reason: &'static str,
    },
    /// The system refused something that is none of the input's business.
    #[error("{0}")]
    System(#[from] io::Error),
}

impl RunError {
    /// Whether the input is to blame.
    pub fn is_bad_input(&self) -> bool {
        !matches!(self, Self::System(_))
    }
}

/// Runs until SIGTERM or SIGINT.
///
/// # Errors
/// See [`RunError`].
pub fn run(config: &Config) -> Result<(), RunError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(4)
        .build()?;
    runtime.block_on(async { Agent::start(config).await?.serve().await })
}

/// Where the pods come from.
enum Source {
    Manifest {
        pods: Vec<ManifestPod>,
        mode: Mode,
        fingerprint: Vec<(PathBuf, u64)>,
    },
    Cluster(Box<Cluster>),
}

struct Agent {
    // Programs stay attached for as long as the object lives.
    object: Option<Object>,
    telemetry: Option<Telemetry>,
    reflex: Option<Reflex>,
    mailbox: Arc<Mailbox>,
    outbox: Arc<Outbox>,
    reconciler: Reconciler,
    source: Source,
}

impl Agent {
    async fn start(config: &Config) -> Result<Self, RunError> {
        let threshold = hard_memory_threshold(&config.eviction.thresholds)?;
        // Two of them: the reflex takes one with it.
        let [scope, looked_at] = [scope(config, threshold)?, scope(config, threshold)?];
        let (source, table, journal) = source(config, looked_at).await?;

        let mut object = Object::load();
        let refusal = object.as_ref().err().map(ToString::to_string);
        let built = tripwire::build(
            scope.cgroup(),
            object
                .as_mut()
                .map_err(|_| refusal.as_deref().unwrap_or_default()),
            config.memory_hook,
        )?;
        for (hook, reason) in &built.choice.refused {
            tracing::info!(%hook, reason, "a better rung is refused");
        }
        let telemetry = object.as_mut().ok().and_then(attach_telemetry);
        let (mailbox, outbox) = (Mailbox::new()?, Outbox::new()?);
        let (hook, capacity) = (built.choice.hook, scope.capacity());
        let pods = table.entries.len();
        let words = Words {
            threshold: threshold.clone(),
            capacity,
        };
        let (reflex, refusals) = Reflex::start(Setup {
            scope,
            tripwire: built.tripwire,
            table,
            shadow: config.shadow,
            victims_at_once: match config.mode {
                Mode::Evictd => usize::MAX,
                Mode::Kubelet => 1,
            },
            strategy: config.ranking_strategy,
            mailbox: Arc::clone(&mailbox),
            outbox: Arc::clone(&outbox),
        })?;
        if let Some(error) = refusals.fifo {
            tracing::warn!(%error, "no real-time priority: needs CAP_SYS_NICE");
        }
        if let Some(error) = refusals.lock {
            tracing::warn!(%error, "memory is not locked: needs CAP_IPC_LOCK");
        }
        tracing::info!(%hook, capacity, pods, shadow = config.shadow, "watching");
        Ok(Self {
            object: object.ok(),
            telemetry,
            reflex: Some(reflex),
            mailbox,
            outbox,
            reconciler: Reconciler::new(journal, words),
            source,
        })
    }

    async fn serve(mut self) -> Result<(), RunError> {
        let outbox = Arc::clone(&self.outbox);
        // SAFETY: the outbox answers with the same descriptor always, and keeps it open for as long as it lives.
        let reports = unsafe { AsyncFd::register(Arc::clone(&outbox)) };
        let reports = reports.map_err(|e| e.into_parts().1)?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut refresh = tokio::time::interval(REFRESH);
        refresh.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                ready = reports.readable() => {
                    ready?.clear_ready();
                    self.reconcile();
                }
                _ = refresh.tick() => self.refresh(),
                () = self.source.changed() => self.refresh(),
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
            }
        }
        if let Some(reflex) = self.reflex.take() {
            reflex.stop();
        }
        self.reconcile();
        if let Source::Cluster(cluster) = self.source {
            cluster.stop().await;
        }
        tracing::info!("stopped");
        Ok(())
    }

    fn reconcile(&mut self) {
        while let Some(report) = self.outbox.next() {
            if let Report::Evicted(evicted) = &report {
                let evicted = evicted.clone();
                tokio::task::spawn_blocking(move || reap(&evicted));
            }
            let eviction = self.reconciler.take(&report);
            if let (Source::Cluster(cluster), Some(eviction)) = (&mut self.source, eviction) {
                cluster.evicted(eviction);
            }
        }
    }

    /// Hands the reflex a new table when a pod's cgroup has come, gone, or changed below.
    fn refresh(&mut self) {
        self.read_telemetry();
        if let Some(table) = self.source.refresh() {
            self.mailbox.send(table);
        }
    }

    fn read_telemetry(&mut self) {
        for record in self.telemetry.iter_mut().flatten() {
            if record.kind == telemetry::kind::MARK_VICTIM {
                tracing::warn!(
                    pid = record.pid,
                    cgroup = record.cgroup_id,
                    "the OOM killer was first"
                );
            }
        }
        let drops = |counter| {
            self.object
                .as_ref()
                .and_then(|o| o.drops(counter).ok())
                .unwrap_or(0)
        };
        let wakeups = drops(evictd_common::Drop::Wakeup);
        let telemetry = drops(evictd_common::Drop::Telemetry);
        if wakeups + telemetry + self.outbox.dropped() > 0 {
            tracing::debug!(
                wakeups,
                telemetry,
                reports = self.outbox.dropped(),
                "dropped so far"
            );
        }
    }
}

/// The cgroup that plays the node, or the machine.
fn scope(config: &Config, threshold: &Threshold) -> Result<Scope, RunError> {
    let limits = |capacity| limits(threshold, config, capacity);
    let cache = config.account_reclaimable_cache;
    if let Some(path) = &config.scope.cgroup {
        let cgroup = MemoryCgroup::open(path).map_err(ScopeError::from)?;
        return Ok(Scope::new(cgroup, limits, cache)?);
    }
    let (root, _) = memory_root(Path::new(CGROUP_MOUNT)).ok_or(RunError::Missing {
        field: "scope.cgroup",
        reason: "is not set, and the machine has no memory cgroups to watch",
    })?;
    let root = MemoryCgroup::open(&root).map_err(ScopeError::from)?;
    let capacity = memory_total(Path::new("/proc")).map_err(ScopeError::from)?;
    Ok(Scope::machine(root, capacity, limits, cache)?)
}

impl Source {
    /// A new table when a pod's cgroup has come, gone, or changed below.
    fn refresh(&mut self) -> Option<Box<PodTable>> {
        match self {
            Self::Cluster(cluster) => cluster.refresh(),
            Self::Manifest {
                pods,
                mode,
                fingerprint: before,
            } => {
                let now = fingerprint(pods);
                if now == *before {
                    return None;
                }
                *before = now;
                let entries = pods
                    .iter()
                    .filter_map(|p| Entry::open(p.pod.clone(), &p.cgroup, *mode).ok());
                Some(Box::new(PodTable::new(entries.map(Arc::new).collect())))
            }
        }
    }

    /// Ends when there is reason to look before the time.
    async fn changed(&self) {
        match self {
            Self::Cluster(cluster) => cluster.changed().await,
            Self::Manifest { .. } => std::future::pending().await,
        }
    }
}

/// Who says who runs here: the cluster, or the manifest. The journal is opened before anybody is asked: of two agents on
/// one node the second is refused.
async fn source(
    config: &Config,
    scope: Scope,
) -> Result<(Source, Box<PodTable>, SharedJournal), RunError> {
    if let Some(cluster) = &config.cluster {
        let journal = SharedJournal::new(Journal::open(&config.state_dir)?);
        let (cluster, table) = Cluster::start(config, cluster, scope, &journal).await?;
        return Ok((Source::Cluster(Box::new(cluster)), table, journal));
    }
    let path = config.pod_manifest.as_deref().ok_or(RunError::Missing {
        field: "podManifest",
        reason: "is needed where there is no cluster: the file that says who runs in the scope",
    })?;
    let pods = manifest::load(path, scope.cgroup().path())?;
    let table = first_table(&pods, config.mode)?;
    let journal = SharedJournal::new(Journal::open(&config.state_dir)?);
    let fingerprint = fingerprint(&pods);
    let mode = config.mode;
    let manifest = Source::Manifest {
        pods,
        mode,
        fingerprint,
    };
    Ok((manifest, table, journal))
}

fn attach_telemetry(object: &mut Object) -> Option<Telemetry> {
    match Telemetry::attach(object) {
        Ok((telemetry, refused)) => {
            for (program, reason) in refused {
                tracing::info!(program, reason, "evidence of the OOM killer is missing");
            }
            Some(telemetry)
        }
        Err(error) => {
            tracing::warn!(%error, "no evidence of the OOM killer");
            None
        }
    }
}

fn hard_memory_threshold(thresholds: &[Threshold]) -> Result<&Threshold, RunError> {
    let hard = thresholds
        .iter()
        .find(|t| t.signal == Signal::MemoryAvailable && t.is_hard());
    hard.ok_or(RunError::Missing {
        field: "evictionHard[memory.available]",
        reason: "is not set, so that there is nothing to watch",
    })
}

fn limits(threshold: &Threshold, config: &Config, capacity: u64) -> Limits {
    let signed = i64::try_from(capacity).unwrap_or(i64::MAX);
    let hard = threshold.amount(signed);
    let floor = &config.kernel_floor;
    Limits {
        threshold: hard,
        resolved: threshold.resolved_amount(signed).max(hard),
        floor: floor.enabled.then(|| {
            let configured = floor
                .memory_available
                .as_ref()
                .map(|value| value.amount(signed));
            configured.unwrap_or(hard / 2)
        }),
    }
}

/// Every pod's cgroup must be there at the start: a manifest that names another one is a mistake.
fn first_table(pods: &[ManifestPod], mode: Mode) -> Result<Box<PodTable>, RunError> {
    let open = |(index, p): (usize, &ManifestPod)| {
        Entry::open(p.pod.clone(), &p.cgroup, mode)
            .map(Arc::new)
            .map_err(|source| RunError::Pod { index, source })
    };
    let entries: Result<Vec<_>, _> = pods.iter().enumerate().map(open).collect();
    Ok(Box::new(PodTable::new(entries?)))
}

/// Which cgroups exist, with their ids.
fn fingerprint(pods: &[ManifestPod]) -> Vec<(PathBuf, u64)> {
    let id = |path: &Path| fs::metadata(path).map(|m| m.ino()).ok();
    pods.iter()
        .flat_map(|p| descendants(&p.cgroup).unwrap_or_default())
        .filter_map(|path| id(&path).map(|id| (path, id)))
        .collect()
}
