//! Puts the agent together.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use evictd_config::Config;
use evictd_engine::{NodeState, Signal, model::settings::MemoryHook};
use evictd_fastpath::FastPathStatus;
use evictd_manager::{Command, CommandQueue, MitigationWorker, SharedStatus};
use evictd_node::{
    bpf::{kernel_log, object::BpfObject},
    cgroup::memory::memory_root,
    memory_scope::Scope,
    pods::table::PodEntry,
    trigger::{
        memory::{self, TriggerSet},
        oom::OomReader,
    },
};
use evictd_store::{disk_queue::DiskQueue, incident::files::Incidents, journal::Journal};
use jiff::Timestamp;

use super::{
    Agent, ConfigSource, Programs, RunError,
    evictions::{EnsureDead, EvictionLog, MessageBuilder, clear, restore},
    fastpath::{self, RunningFastPath},
    journal::JournalWriter,
    log::Log,
    manager::{self, RunningManager},
    memory::{CGROUP_MOUNT, WatchedMemory, node_scopes, warn_floor},
    metrics::{self, Dropped},
    oom::{OomAttributor, UnattributedKills},
    pods::{self, Opened, PodSource, PublishedPods},
    policies::Policies,
    reload::ConfigWatch,
    signals,
};
use crate::telemetry::{self, Health, Heartbeat, MetricsListener, MetricsRegistry};

impl Agent {
    /// Starts all parts. Whatever the configuration may be wrong about comes before the first thread that kills.
    ///
    /// # Errors
    /// See [`RunError`].
    pub(super) async fn start(
        config: &Config,
        origin: ConfigSource,
        health: Arc<Health>,
        log: &Arc<Log>,
    ) -> Result<Self, RunError> {
        raise_open_files();
        // Of two agents on one node the second is refused, before it asks a server.
        let journal = Journal::open(&config.state_dir)?;
        // Pods that an earlier agent has left throttled are released first of all, even if the start fails.
        let mitigation = MitigationWorker::open(&config.state_dir);
        let node = node_scopes(config)?;
        let (threshold, capacity) = (
            node.fastpath.thresholds().threshold,
            node.fastpath.capacity(),
        );
        warn_floor(config, Signal::MemoryAvailable, threshold, capacity);
        let mut policies = Policies::start(config)?;
        let opened = pods::open(config, node.fastpath.cgroup().path(), &policies, journal);
        let Opened {
            mut source,
            table,
            disk,
            restored,
        } = opened.await?;
        let journal = disk.queue().clone();
        restore::charge_limits(&policies.evaluator, &restored, &journal);
        policies.set_pods(&table);
        let (entries, swap) = (table.entries.clone(), Arc::clone(&table.swap));

        let (memory, scopes) = WatchedMemory::new(config, node.fastpath)?;
        let oom = OomKills::new(&scopes.fastpath, &entries);
        let (mut programs, trigger, hook) = load_programs(config, &scopes.fastpath)?;
        let signals = signals::build(config, node.manager, scopes.pods_of_manager);
        let hooks = metrics::hooks(&signals);
        programs.counters = signals.object;
        // All programs are loaded. What that took has to go now: the fast path locks the memory that it finds.
        programs.drop_btf();
        give_back_memory();
        let listener = bind_metrics(config)?;

        let memory_signals = scopes.fastpath.iter().map(Scope::signal).collect();
        let allocatable_capacity = scopes.fastpath.get(1).map(Scope::capacity);
        let memory_v1 = Scope::memory_v1(&scopes.fastpath).map(Path::to_owned);
        let limiter = policies.evaluator.limiter();
        let fastpath = RunningFastPath::start(
            config,
            fastpath::StartArgs {
                scopes: scopes.fastpath,
                trigger,
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
                mitigation,
                memory_v1,
                control: &fastpath.control,
            },
        )?;
        let ensure_dead = start_ensure_dead()?;
        // In shadow mode what an earlier agent has begun waits for one that is not.
        if !config.shadow {
            let ends_pods = matches!(source, PodSource::Manifest { .. });
            let leftovers = |uid: &str| source.leftovers(uid);
            restore::go_on(&restored, &entries, ends_pods, leftovers, &ensure_dead);
        }

        let incidents = Incidents::new(&config.state_dir);
        let dropped = Arc::<Dropped>::default();
        let config_watch = ConfigWatch::new(origin, config);
        let metrics = Arc::new(MetricsRegistry::new(metrics::collector(&metrics::MetricInputs {
            memory: hook,
            memory_signals,
            oom: &oom.attributor.counters(),
            policies: &policies,
            fastpath: &fastpath,
            manager: &manager,
            health: &health,
            hooks,
            source: &source,
            dropped: &dropped,
            reloads: &config_watch.reloads,
            journal: &journal,
            incidents: incidents.kept(),
            log,
        })));
        if let Some(listener) = listener {
            serve_metrics(config, listener, &source, &metrics, &health)?;
        }
        start_soft(config, &mut source, &manager.commands, &journal);
        // One thread for what blocks is there from the start.
        drop(tokio::task::spawn_blocking(|| ()).await);
        health.beat();
        health.started(heartbeats(&fastpath.status, &manager.status));
        let pods = entries.len();
        tracing::info!(%hook, capacity, allocatable_capacity, pods, shadow = config.shadow, "the agent is watching");
        let messages = MessageBuilder {
            thresholds: config.eviction.thresholds.clone(),
        };
        Ok(Self {
            programs,
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
            ticks: 0,
            eviction_log: EvictionLog::new(journal, messages),
            journal: JournalWriter::new(disk),
            incidents,
            ensure_dead,
            metrics,
            health,
            dropped,
            node_state: NodeState::default(),
        })
    }
}

/// The kills of the OOM killer.
pub(super) struct OomKills {
    pub attributor: OomAttributor,
    pub unattributed: UnattributedKills,
}

impl OomKills {
    fn new(scopes: &[Scope], entries: &[Arc<PodEntry>]) -> Self {
        let mut attributor = oom_attributor(scopes);
        attributor.set_pods(entries);
        Self {
            attributor,
            unattributed: UnattributedKills::default(),
        }
    }
}

/// Creates the attributor of the OOM killer's kills, for the scopes that are watched, the node's first.
fn oom_attributor(scopes: &[Scope]) -> OomAttributor {
    let root = memory_root(Path::new(CGROUP_MOUNT)).map(|(root, _)| root);
    // Without a hierarchy there is no scope either.
    let node = || scopes.first().map(|node| node.cgroup().path().to_owned());
    let root = root.or_else(node).unwrap_or_default();
    let scopes = scopes.iter().map(|s| s.cgroup().id()).collect();
    OomAttributor::new(&root, scopes, evictd_node::trigger::oom::kills_of_machine)
}

/// Loads the programs that watch memory, and attaches those that report kills of the OOM killer.
///
/// # Errors
/// The hook that the configuration asks for is not to be had.
fn load_programs(
    config: &Config,
    scopes: &[Scope],
) -> Result<(Programs, Box<dyn TriggerSet>, MemoryHook), RunError> {
    let cgroups: Vec<_> = scopes.iter().map(Scope::cgroup).collect();
    let (mut object, built) = memory::load(&cgroups, config.memory_hook, false);
    let mut built = built?;
    let mut kernel_log = None;
    if kernel_log::is_wanted() {
        // A kernel that refuses what writes the lines takes the same hook without them.
        match memory::load(&cgroups, config.memory_hook, true) {
            (logging, Ok(same)) if same.selected_hook.hook == built.selected_hook.hook => {
                (object, built) = (logging, same);
                kernel_log = object.as_mut().ok().and_then(BpfObject::kernel_log);
            }
            _ => tracing::warn!("the kernel refuses programs that write to the log"),
        }
    }
    for (hook, reason) in &built.selected_hook.refused {
        tracing::info!(%hook, reason, "a better hook is refused");
    }
    let mut memory = object.ok();
    let programs = Programs {
        oom: memory.as_mut().and_then(attach_oom_reader),
        memory,
        counters: None,
        kernel_log,
    };
    Ok((programs, built.trigger, built.selected_hook.hook))
}

/// Takes the address of the metrics, where there is one.
fn bind_metrics(config: &Config) -> Result<Option<MetricsListener>, RunError> {
    let tls = config.metrics_tls.as_ref();
    let listener = config
        .metrics_address
        .map(|address| MetricsListener::bind(address, tls));
    Ok(listener.transpose()?)
}

fn start_ensure_dead() -> io::Result<EnsureDead> {
    let blocking = tokio::runtime::Handle::current();
    // A disk may hang: not the thread that kills.
    EnsureDead::start(move |directories| {
        // Until then: it may run again before the disk answers.
        let until = Timestamp::now();
        drop(blocking.spawn_blocking(move || clear(&directories, Some(until))));
    })
}

/// Serves the metrics, with TLS and authorization where they are configured.
fn serve_metrics(
    config: &Config,
    listener: MetricsListener,
    source: &PodSource,
    metrics: &Arc<MetricsRegistry>,
    health: &Arc<Health>,
) -> Result<(), RunError> {
    let tls = config.metrics_tls.as_ref();
    let authority = match source {
        PodSource::Cluster { cluster, .. } if tls.is_some_and(|tls| tls.authorization) => {
            Some(cluster.connection())
        }
        _ => None,
    };
    let address = listener.serve(authority, Arc::clone(metrics), Arc::clone(health))?;
    tracing::info!(%address, tls = tls.is_some(), "metrics are served");
    Ok(())
}

/// Starts soft evictions by the API server, in a cluster.
fn start_soft(
    config: &Config,
    source: &mut PodSource,
    commands: &Arc<CommandQueue>,
    journal: &DiskQueue,
) {
    if let PodSource::Cluster { cluster, .. } = source {
        let commands = Arc::clone(commands);
        let settle = move |chosen, gone| {
            commands.send(Command::SoftEvictionFinished { chosen, gone });
        };
        cluster.start_soft(config, journal, settle);
    }
}

/// Finds where the memory hierarchy is mounted.
fn cgroup_mount() -> PathBuf {
    let mount = memory_root(Path::new(CGROUP_MOUNT)).map(|(mount, _)| mount);
    mount.unwrap_or_else(|| PathBuf::from(CGROUP_MOUNT))
}

/// The loops that must run, beside the async loop.
fn heartbeats(fastpath: &Arc<FastPathStatus>, manager: &Arc<SharedStatus>) -> Vec<Heartbeat> {
    let (fastpath, manager) = (Arc::clone(fastpath), Arc::clone(manager));
    vec![
        Heartbeat {
            name: "fast path",
            limit: telemetry::FAST_PATH_LIMIT,
            is_vital: true,
            last: Box::new(move || fastpath.last_beat()),
        },
        Heartbeat {
            name: telemetry::MANAGER,
            limit: telemetry::MANAGER_LIMIT,
            // Memory is watched without it, and an agent that takes the place of this one hangs where it hung.
            is_vital: false,
            last: Box::new(move || manager.last_beat()),
        },
    ]
}

/// Returns to the kernel what the allocator keeps of memory that was freed. On locked memory it would not be able to:
/// the kernel refuses MADV_DONTNEED there.
fn give_back_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: touches nothing but memory that is free.
    unsafe {
        libc::malloc_trim(0)
    };
}

fn attach_oom_reader(object: &mut BpfObject) -> Option<OomReader> {
    match OomReader::attach(object) {
        Ok((reader, refused)) => {
            for (program, reason) in refused {
                tracing::info!(program, reason, "evidence of the OOM killer is missing");
            }
            Some(reader)
        }
        Err(error) => {
            tracing::warn!(%error, "the OOM killer is not observed");
            None
        }
    }
}

/// As many open files as the system grants, as every Go program has them: each cgroup of a pod takes three, and
/// systemd's 1024 are fewer than a node of 110 pods needs. Nothing here uses `select`, for whose sake they are so few.
fn raise_open_files() {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: both calls are given a local; lowering nothing, the second needs no privilege.
    let raised = unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 && {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) == 0
        }
    };
    if !raised {
        let error = io::Error::last_os_error();
        tracing::warn!(%error, "the number of open files stays as low as it is");
    }
}
