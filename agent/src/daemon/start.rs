//! The start of the agent: what is opened and which threads start, in which order.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use evictd_config::Config;
use evictd_engine::{NodeState, Signal};
use evictd_kube::session::Cluster;
use evictd_manager::{Command, MitigationWorker};
use evictd_node::{
    cgroup::memory::memory_root, memory_scope::Scope, pods::table::PodEntry,
    proc::machine::has_swap,
};
use evictd_store::{incident::files::Incidents, journal::Journal, restore::Restored};
use evictd_sys::process::{give_back_memory, raise_open_files};
use jiff::Timestamp;

use super::{
    Agent, ConfigSource, RESCAN_TICKS, RunError,
    evictions::{EnsureDead, EvictionLog, MessageBuilder, clear, restore},
    fastpath::{self, RunningFastPath},
    journal::JournalWriter,
    log::Log,
    manager::{self, RunningManager},
    memory::{CGROUP_MOUNT, WatchedMemory, node_scopes, warn_floor},
    metrics::{self, Dropped},
    oom::OomKills,
    pods::{self, OpenedPods, PodSource, PublishedPods},
    policies::{Policies, is_paused_before},
    programs::{self, LoadedPrograms},
    reload::ConfigWatch,
    signals::{self, Signals},
};
use crate::telemetry::{self, Health, Heartbeat, MetricsListener, MetricsRegistry};

/// All that the configuration may be wrong about. Nothing of it kills.
struct Opened {
    policies: Policies,
    pods: OpenedPods,
    memory: WatchedMemory,
    /// The fast path's.
    scopes: Vec<Scope>,
    oom: OomKills,
    programs: LoadedPrograms,
    signals: Signals,
    mitigation: Arc<MitigationWorker>,
    listener: Option<MetricsListener>,
}

impl Opened {
    async fn open(config: &Config) -> Result<Self, RunError> {
        // Of two agents on one node the second is refused, before it asks a server.
        let journal = Journal::open(&config.state_dir)?;
        // Pods that an earlier agent has left throttled are released first of all, even if the start fails.
        let mitigation = MitigationWorker::open(&config.state_dir);
        // A pause holds even if the start fails: the pinned guard of an earlier agent would go on.
        if is_paused_before(config) {
            fastpath::stop_for_pause(config);
        }
        // Swap that comes from here on is found at the first tick.
        let had_swap = has_swap();
        let node = node_scopes(config)?;
        let (threshold, capacity) = (
            node.fastpath.thresholds().threshold,
            node.fastpath.capacity(),
        );
        warn_floor(config, Signal::MemoryAvailable, threshold, capacity);
        let mut policies = Policies::start(config)?;
        let scope = node.fastpath.cgroup().path();
        let pods = pods::open(config, scope, &policies, journal).await?;
        // Limits count what an earlier agent has done before any pod is judged.
        restore::charge_limits(&policies.evaluator, &pods.restored, pods.disk.queue());
        policies.set_pods(&pods.table);
        let (memory, first) = WatchedMemory::new(config, node.fastpath, had_swap)?;
        let scopes = first.fastpath;
        let mut oom = OomKills::new(&scopes, &pods.table.entries);
        for eviction in restore::under_way(&pods.restored, &pods.table.entries) {
            oom.attributor.note_eviction(eviction);
        }
        let mut programs = programs::load(config, &scopes)?;
        let mut signals = signals::build(config, node.manager, first.pods_of_manager);
        programs.programs.counters = signals.object.take();
        // All programs are loaded. What that took has to go now: the fast path locks the memory that it finds.
        programs.programs.drop_btf();
        give_back_memory();
        Ok(Self {
            policies,
            pods,
            memory,
            scopes,
            oom,
            programs,
            signals,
            mitigation,
            listener: bind_metrics(config)?,
        })
    }
}

impl Agent {
    /// Starts all parts: first all that the configuration may be wrong about is opened, then the threads that kill
    /// start, last come the parts that show and report.
    ///
    /// # Errors
    /// See [`RunError`].
    pub(super) async fn start(
        config: &Config,
        origin: ConfigSource,
        health: Arc<Health>,
        log: &Arc<Log>,
    ) -> Result<Self, RunError> {
        if let Err(error) = raise_open_files() {
            tracing::warn!(%error, "the number of open files stays as low as it is");
        }
        let mut opened = Opened::open(config).await?;
        let (listener, hook) = (opened.listener.take(), opened.programs.hook);
        let allocatable_capacity = opened.scopes.get(1).map(Scope::capacity);
        let mut agent = Self::start_threads(opened, config, origin, health, log)?;
        if let Some(listener) = listener {
            agent.serve_metrics(listener)?;
        }
        agent.start_soft();
        // One thread for what blocks is there from the start.
        drop(tokio::task::spawn_blocking(|| ()).await);
        agent.health.heartbeat();
        agent.health.started(agent.heartbeats());
        tracing::info!(
            %hook,
            capacity = agent.memory.node.capacity(),
            allocatable_capacity,
            pods = agent.pods.entries.len(),
            shadow = config.shadow,
            "the agent is watching"
        );
        Ok(agent)
    }

    /// Starts the fast path first, for memory is watched whatever comes after it; then the manager, and the thread that
    /// sees to the end of victims.
    fn start_threads(
        opened: Opened,
        config: &Config,
        origin: ConfigSource,
        health: Arc<Health>,
        log: &Arc<Log>,
    ) -> Result<Self, RunError> {
        let Opened {
            policies,
            memory,
            oom,
            signals,
            ..
        } = opened;
        let (scopes, programs) = (opened.scopes, opened.programs);
        let OpenedPods {
            source,
            table,
            disk,
            restored,
        } = opened.pods;
        let (entries, swap) = (table.entries.clone(), Arc::clone(&table.swap));
        let hooks = metrics::hooks(&signals, programs.hook, &scopes);
        let memory_v1 = Scope::memory_v1(&scopes).map(Path::to_owned);
        let limiter = policies.evaluator.limiter();
        let config_watch = ConfigWatch::new(origin, config, limiter);
        let fastpath = RunningFastPath::start(
            config,
            fastpath::StartArgs {
                scopes,
                trigger: programs.trigger,
                table,
                restored: &restored,
                limiter,
            },
        )?;
        let (manager, targets) = RunningManager::start(
            config,
            manager::StartArgs {
                sources: signals.sources,
                disk_retry: signals.disk_retry,
                source: &source,
                entries: &entries,
                restored: &restored,
                limiter,
                mitigation: opened.mitigation,
                memory_v1,
                control: &fastpath.control,
            },
        )?;
        let ensure_dead = start_ensure_dead(config, &source, &entries, &restored)?;
        let journal = disk.queue().clone();
        let incidents = Incidents::new(&config.state_dir);
        let dropped = Arc::<Dropped>::default();
        let collector = metrics::collector(&metrics::MetricInputs {
            hooks,
            oom: &oom.attributor.counters(),
            policies: &policies,
            fastpath: &fastpath,
            manager: &manager,
            health: &health,
            source: &source,
            dropped: &dropped,
            reloads: &config_watch.reloads,
            journal: &journal,
            incidents: incidents.kept(),
            log,
        });
        let messages = MessageBuilder {
            thresholds: config.eviction.thresholds.clone(),
        };
        Ok(Self {
            programs: programs.programs,
            fastpath,
            manager,
            memory,
            oom,
            pods: PublishedPods::new(entries, swap, targets, cgroup_mount()),
            pod_source: source,
            policies,
            config: config.clone(),
            config_watch,
            cgroup_events: signals.cgroup_events,
            // The first tick compares all cgroups: what has come since the first table was before the hook.
            ticks: RESCAN_TICKS - 1,
            eviction_log: EvictionLog::new(journal, messages),
            journal: JournalWriter::new(disk),
            incidents,
            ensure_dead,
            metrics: Arc::new(MetricsRegistry::new(collector)),
            health,
            dropped,
            node_state: NodeState::default(),
        })
    }

    /// Serves the metrics, with TLS and authorization where they are configured.
    fn serve_metrics(&self, listener: MetricsListener) -> Result<(), RunError> {
        let tls = self.config.metrics_tls.as_ref();
        let cluster = self.pod_source.cluster();
        let cluster = cluster.filter(|_| tls.is_some_and(|tls| tls.authorization));
        let authority = cluster.map(Cluster::connection);
        let (metrics, health) = (Arc::clone(&self.metrics), Arc::clone(&self.health));
        let address = listener.serve(authority, metrics, health)?;
        tracing::info!(%address, tls = tls.is_some(), "metrics are served");
        Ok(())
    }

    /// Starts soft evictions by the API server, in a cluster.
    fn start_soft(&mut self) {
        if let Some(cluster) = self.pod_source.cluster_mut() {
            let commands = Arc::clone(&self.manager.commands);
            let settle = move |chosen, gone| {
                commands.send(Command::SoftEvictionFinished { chosen, gone });
            };
            cluster.start_soft(&self.config, self.journal.queue(), settle);
        }
    }

    /// The loops that must run, beside the async loop.
    fn heartbeats(&self) -> Vec<Heartbeat> {
        let fastpath = Arc::clone(&self.fastpath.status);
        let manager = Arc::clone(&self.manager.status);
        vec![
            Heartbeat {
                name: "fast path",
                limit: telemetry::FAST_PATH_LIMIT,
                counts_for_liveness: true,
                last: Box::new(move || fastpath.last_beat()),
            },
            Heartbeat {
                name: telemetry::MANAGER,
                limit: telemetry::MANAGER_LIMIT,
                // Memory is watched without it, and an agent that takes the place of this one hangs where it hung.
                counts_for_liveness: false,
                last: Box::new(move || manager.last_beat()),
            },
        ]
    }
}

/// Takes the address of the metrics, where there is one.
fn bind_metrics(config: &Config) -> Result<Option<MetricsListener>, RunError> {
    let tls = config.metrics_tls.as_ref();
    let listener = config
        .metrics_address
        .map(|address| MetricsListener::bind(address, tls));
    Ok(listener.transpose()?)
}

/// Starts the thread that sees to the end of victims, and goes on with what an earlier agent has begun; in shadow mode
/// that waits for an agent that is not in it.
fn start_ensure_dead(
    config: &Config,
    source: &PodSource,
    entries: &[Arc<PodEntry>],
    restored: &Restored,
) -> io::Result<EnsureDead> {
    let blocking = tokio::runtime::Handle::current();
    // A disk may hang: not the thread that kills.
    let ensure_dead = EnsureDead::start(move |directories| {
        // Until then: it may run again before the disk answers.
        let until = Timestamp::now();
        drop(blocking.spawn_blocking(move || clear(&directories, Some(until))));
    })?;
    if !config.shadow {
        let ends_pods = source.cluster().is_none();
        let leftovers = |uid: &str| source.leftovers(uid);
        restore::go_on(restored, entries, ends_pods, leftovers, &ensure_dead);
    }
    Ok(ensure_dead)
}

/// Finds where the memory hierarchy is mounted.
fn cgroup_mount() -> PathBuf {
    let mount = memory_root(Path::new(CGROUP_MOUNT)).map(|(mount, _)| mount);
    mount.unwrap_or_else(|| PathBuf::from(CGROUP_MOUNT))
}
