//! Puts the agent together.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use evictd_config::Config;
use evictd_cri::{CriWorker, Tell};
use evictd_engine::{
    model::settings::{MemoryHook, Mode},
    record::NodeState,
};
use evictd_fastpath::{self as fastpath, Control, EventQueue, FastPath, KilledBy};
use evictd_manager::{
    self as manager, Command, CommandQueue, DiskScanner, ManagerHandle, MitigationThreads,
    MitigationWorker, PodSet, ScanTarget, SharedStatus,
};
use evictd_node::{
    bpf::{kernel_log, object::BpfObject},
    cgroup::{memory::memory_root, protection::Protection},
    memory_scope::Scope,
    pods::table::PodEntry,
    trigger::{
        memory::{self, TriggerSet},
        oom::OomReader,
    },
};
use evictd_store::{disk_queue::DiskQueue, incident::files::Incidents};

use super::{
    Agent, BY_FASTPATH, ConfigSource, Programs, RunError,
    allocatable::Allocatable,
    node_memory::NodeMemory,
    policies::Policies,
    runtime_disks::RuntimeDisks,
    scan_watch::ScanWatch,
    scope::{self, ScopePair, node_scopes, tell_floor},
};
use crate::{
    daemon::{
        disk::DiskWriter,
        ensure_dead::EnsureDead,
        eviction_log::EvictionLog,
        file_look::FileLook,
        guard,
        manager_events::clear,
        message::MessageBuilder,
        metrics::{self, Dropped, Reloads},
        oom::{OomAttributor, UnattributedKills},
        pod_source::{self, Opened, PodSource},
        pod_table::{PublishedPods, protection},
        restore, sources,
    },
    telemetry::{self, Health, Heartbeat, Metrics, MetricsListener},
};

impl Agent {
    /// Starts all parts. Whatever the configuration may be wrong about comes before the first thread that kills.
    ///
    /// # Errors
    /// See [`RunError`].
    pub(super) async fn start(
        config: &Config,
        origin: ConfigSource,
        health: Arc<Health>,
    ) -> Result<Self, RunError> {
        raise_open_files();
        let ScopePair { fastpath, manager } = node_scopes(config)?;
        tell_floor(config, fastpath.limits().threshold, fastpath.capacity());
        let mut policies = Policies::start(config)?;
        let opened = pod_source::open(config, fastpath.cgroup().path(), &policies);
        let Opened {
            mut source,
            table,
            disk,
            restored,
        } = opened.await?;
        let journal = disk.queue().clone();
        restore::charge_limits(&policies.evaluator, &restored);
        policies.present(&table);
        // Pods that an earlier agent has left throttled are released before a pod is judged.
        let mitigation = MitigationWorker::open(&config.state_dir);
        let (entries, swap) = (table.entries.clone(), Arc::clone(&table.swap));

        let mut watched = WatchedMemory::new(config, fastpath, &entries)?;
        let (mut programs, trigger, hook) = load_programs(config, &watched.scopes)?;
        let signals = sources::build(config, manager, watched.pods_of_manager.take())?;
        let hooks = metrics::hooks(&signals);
        programs.counters = signals.object;
        // All programs are loaded. What that took has to go now: the fast path locks the memory that it finds.
        programs.drop_btf();
        give_back_memory();
        let listener = bind_metrics(config)?;

        let (control, events) = (Control::new()?, EventQueue::new()?);
        let memory_signals = watched.scopes.iter().map(Scope::signal).collect();
        let capacity = watched.node_memory.capacity();
        let allocatable_capacity = watched.scopes.get(1).map(Scope::capacity);
        let memory_v1 = Scope::memory_v1(&watched.scopes).map(Path::to_owned);
        let limiter = policies.evaluator.limiter();
        let fast_path_setup = fastpath::Setup {
            scopes: std::mem::take(&mut watched.scopes),
            trigger,
            table,
            restored: restore::terminating(&restored, &entries),
            last_eviction: restore::last_eviction(&restored),
            is_pinned: false,
            shadow: config.shadow,
            victims_at_once: match config.mode {
                Mode::Evictd => usize::MAX,
                Mode::Kubelet => 1,
            },
            strategy: config.ranking_strategy,
            limiter: Arc::clone(limiter),
            control: Arc::clone(&control),
            events: Arc::clone(&events),
        };
        let (fastpath, realtime) = start_fast_path(config, fast_path_setup)?;

        let layout = signals.sources.layout();
        let (scanner, targets) = start_scanner(config, &source, &entries, &signals.sources)?;
        let manager = ManagerHandle::start(manager::ManagerSetup {
            settings: sources::settings(config, layout, BY_FASTPATH.to_vec()),
            sources: signals.sources,
            scanner: Arc::clone(&scanner),
            pods: PodSet::new(&entries),
            limiter: Arc::clone(limiter),
            shadow: config.shadow,
            reclaims: manager::ReclaimOptions {
                runtime: config.cri.as_ref().map(|cri| cri.reclaim_timeout),
                kubelet: matches!(source, PodSource::Cluster { .. }),
            },
            mitigation: config.mitigation,
            memory_v1,
            restored: restore::planner_state(&restored, &entries),
            on_kill: {
                let control = Arc::clone(&control);
                Box::new(move |pod, signalled| control.note_kill(pod, signalled, KilledBy::Manager))
            },
        })?;
        let steps = start_mitigation(&mitigation, manager.commands())?;
        let cri = start_cri(config, manager.commands(), &scanner);
        let ensure_dead = start_ensure_dead()?;
        // In shadow mode what an earlier agent has begun waits for one that is not.
        if !config.shadow {
            let ends_pods = matches!(source, PodSource::Manifest { .. });
            restore::go_on(&restored, &entries, ends_pods, &ensure_dead);
        }

        let incidents = Incidents::new(&config.state_dir);
        let (dropped, reloads) = <(Arc<Dropped>, Arc<Reloads>)>::default();
        reloads.note_kubelet(origin.kubelet.source);
        let metrics = Arc::new(Metrics::new(metrics::sources(&metrics::Shown {
            memory: hook,
            memory_signals,
            oom: &watched.oom_attributor.counters(),
            policies: &policies,
            manager: &manager,
            health: &health,
            scanner: &scanner,
            hooks,
            source: &source,
            dropped: &dropped,
            reloads: &reloads,
            events: &events,
            cri: cri.as_ref().map(CriWorker::counters),
            mitigation: &mitigation,
            realtime,
            journal: &journal,
            incidents: incidents.kept(),
        })));
        if let Some(listener) = listener {
            serve_metrics(config, listener, &source, &metrics, &health)?;
        }
        start_soft(config, &mut source, manager.commands(), &journal);
        // One thread for what blocks is there from the start.
        drop(tokio::task::spawn_blocking(|| ()).await);
        health.beat();
        health.started(heartbeats(&events, manager.status()));
        let pods = entries.len();
        tracing::info!(%hook, capacity, allocatable_capacity, pods, shadow = config.shadow, "watching");
        let words = MessageBuilder {
            thresholds: config.eviction.thresholds.clone(),
        };
        Ok(Self {
            config: config.clone(),
            cgroup_events: signals.life,
            ticks: 0,
            seen_by_manager: Arc::clone(manager.recorder()),
            manager_events: Arc::clone(manager.events()),
            manager: Some(manager),
            scanner,
            scan_watch: ScanWatch::default(),
            metrics,
            health,
            dropped,
            programs,
            fastpath: Some(fastpath),
            control,
            events,
            eviction_log: EvictionLog::new(journal, words),
            pod_source: source,
            node_state: NodeState::default(),
            allocatable: watched.allocatable,
            node_memory: watched.node_memory,
            layout,
            disk_retry: signals.disk_retry,
            config_source: origin,
            config_look: FileLook::new(Arc::default()),
            reloads,
            oom_attributor: watched.oom_attributor,
            unattributed_kills: UnattributedKills::default(),
            policies,
            cri,
            mitigation,
            steps,
            incidents,
            ensure_dead,
            disk: DiskWriter::new(disk),
            pods: PublishedPods::new(entries, swap, targets, cgroup_mount()),
            protection: watched.protection,
        })
    }
}

/// The memory that is watched, and what follows its changes.
struct WatchedMemory {
    /// For the fast path: the node, and the pods' cgroup where there is one.
    scopes: Vec<Scope>,
    /// The pods' cgroup for the manager.
    pods_of_manager: Option<Scope>,
    allocatable: Allocatable,
    node_memory: NodeMemory,
    protection: Protection,
    oom_attributor: OomAttributor,
}

impl WatchedMemory {
    fn new(config: &Config, node: Scope, entries: &[Arc<PodEntry>]) -> Result<Self, RunError> {
        let mut allocatable = Allocatable::new(config, &node);
        let pods = allocatable.first();
        let (pods, pods_of_manager) = pods.map(|p| (p.fastpath, p.manager)).unzip();
        let node_memory = NodeMemory::new(config, &node)?;
        let protection = protection(&node);
        let scopes: Vec<_> = std::iter::once(node).chain(pods).collect();
        let mut oom_attributor = oom_attributor(&scopes);
        oom_attributor.know(entries);
        Ok(Self {
            scopes,
            pods_of_manager,
            allocatable,
            node_memory,
            protection,
            oom_attributor,
        })
    }
}

/// What attributes the kills of the OOM killer, for the scopes that are watched, the node's first.
fn oom_attributor(scopes: &[Scope]) -> OomAttributor {
    let root = memory_root(Path::new(scope::CGROUP_MOUNT)).map(|(root, _)| root);
    // Without a hierarchy there is no scope either.
    let node = || scopes.first().map(|node| node.cgroup().path().to_owned());
    let root = root.or_else(node).unwrap_or_default();
    OomAttributor::new(&root, scopes.iter().map(|s| s.cgroup().id()).collect())
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
            (logging, Ok(same)) if same.choice.hook == built.choice.hook => {
                (object, built) = (logging, same);
                kernel_log = object.as_mut().ok().and_then(BpfObject::kernel_log);
            }
            _ => tracing::warn!("the kernel refuses programs that write to the log"),
        }
    }
    for (hook, reason) in &built.choice.refused {
        tracing::info!(%hook, reason, "a better hook is refused");
    }
    let mut memory = object.ok();
    let programs = Programs {
        oom: memory.as_mut().and_then(attach_oom_reader),
        memory,
        counters: None,
        kernel_log,
    };
    Ok((programs, built.trigger, built.choice.hook))
}

/// Takes the address of the metrics, where there is one.
fn bind_metrics(config: &Config) -> Result<Option<MetricsListener>, RunError> {
    let tls = config.metrics_tls.as_ref();
    let listener = config
        .metrics_address
        .map(|address| MetricsListener::bind(address, tls));
    Ok(listener.transpose()?)
}

/// Pins the hook, where that is wanted, and starts the thread. Whether it has real-time priority; what was refused is logged.
fn start_fast_path(
    config: &Config,
    mut setup: fastpath::Setup,
) -> Result<(FastPath, bool), RunError> {
    let mut pins = guard::pin(config, &mut *setup.trigger);
    setup.is_pinned = pins.as_ref().is_some_and(|pins| pins.is_pinned);
    pins.as_ref()
        .filter(|_| setup.is_pinned)
        .map(guard::inherit);
    let (fastpath, refusals) = FastPath::start(setup)?;
    pins.as_mut().map(guard::replace_earlier);
    let realtime = refusals.fifo.is_none();
    if let Some(error) = refusals.fifo {
        tracing::warn!(%error, "no real-time priority");
    }
    if let Some(error) = refusals.standby {
        tracing::warn!(%error, "no standby thread takes over where the fast path is late: needs CAP_PERFMON");
    }
    if let Some(error) = refusals.limit {
        tracing::warn!(%error, "kernel memory of the fast path counts against the agent's own limit: needs the root of the memory hierarchy");
    }
    if let Some(error) = refusals.lock {
        tracing::warn!(%error, "memory is not locked: needs CAP_IPC_LOCK");
    }
    Ok((fastpath, realtime))
}

fn start_scanner(
    config: &Config,
    source: &PodSource,
    entries: &[Arc<PodEntry>],
    signals: &manager::SignalSources,
) -> io::Result<(Arc<DiskScanner>, Vec<ScanTarget>)> {
    let disks = signals.disks.as_ref();
    let scanner = DiskScanner::start(disks.and_then(|d| d.trigger.share_reader()))?;
    let targets: Vec<_> = entries.iter().map(|e| source.target(config, e)).collect();
    scanner.set_targets(targets.clone());
    Ok((scanner, targets))
}

fn start_mitigation(
    worker: &Arc<MitigationWorker>,
    commands: &Arc<CommandQueue>,
) -> io::Result<MitigationThreads> {
    let commands = Arc::clone(commands);
    MitigationThreads::start(worker, move |effect| {
        commands.send(Command::MitigationDone(Box::new(effect)));
    })
}

/// Asks the container runtime, where one is configured.
fn start_cri(
    config: &Config,
    commands: &Arc<CommandQueue>,
    scanner: &Arc<DiskScanner>,
) -> Option<CriWorker> {
    let cri = config.cri.clone()?;
    let (commands, scanner) = (Arc::clone(commands), Arc::clone(scanner));
    let disks = RuntimeDisks::new(config);
    Some(CriWorker::start(cri, move |answer| match answer {
        Tell::Reclaimed(removed) => {
            commands.send(Command::Reclaimed(removed));
        }
        Tell::Layers { layers, asked } => scanner.set_layers(layers, asked),
        Tell::Disks(theirs) => disks.compare(theirs),
    }))
}

fn start_ensure_dead() -> io::Result<EnsureDead> {
    let blocking = tokio::runtime::Handle::current();
    // A disk may hang: not the thread that kills.
    EnsureDead::start(move |directories| {
        drop(blocking.spawn_blocking(move || clear(&directories)));
    })
}

/// Serves the metrics, with TLS and authorization where they are configured.
fn serve_metrics(
    config: &Config,
    listener: MetricsListener,
    source: &PodSource,
    metrics: &Arc<Metrics>,
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
    if let (PodSource::Cluster { cluster, .. }, Some(settings)) = (source, &config.cluster) {
        let commands = Arc::clone(commands);
        let settle = move |chosen, gone| {
            commands.send(Command::SoftEvictionFinished { chosen, gone });
        };
        cluster.start_soft(config, &settings.node_name, journal, settle);
    }
}

/// Where the memory hierarchy is mounted.
fn cgroup_mount() -> PathBuf {
    let mount = memory_root(Path::new(scope::CGROUP_MOUNT)).map(|(mount, _)| mount);
    mount.unwrap_or_else(|| PathBuf::from(scope::CGROUP_MOUNT))
}

/// The threads that must turn, beside the async loop.
fn heartbeats(events: &Arc<EventQueue>, manager: &Arc<SharedStatus>) -> Vec<Heartbeat> {
    let (events, manager) = (Arc::clone(events), Arc::clone(manager));
    vec![
        Heartbeat {
            name: "fast path",
            limit: telemetry::FAST_PATH_LIMIT,
            is_vital: true,
            last: Box::new(move || events.last_beat()),
        },
        Heartbeat {
            name: telemetry::CONTROL_LOOP,
            limit: telemetry::CONTROL_LOOP_LIMIT,
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
            tracing::warn!(%error, "no evidence of the OOM killer");
            None
        }
    }
}

/// As many open files as the system grants, as every Go program has them: each cgroup of a pod takes three, and systemd's
/// 1024 are fewer than a node of 110 pods needs. Nothing here uses `select`, for whose sake they are so few.
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
