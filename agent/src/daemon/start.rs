//! Puts the agent together.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use evictd_config::Config;
use evictd_engine::{model::settings::Mode, record::NodeState};
use evictd_fastpath::{Control, EventQueue, FastPath, KilledBy, Setup};
use evictd_manager::{
    Command, DiskScanner, ManagerHandle, MitigationThreads, MitigationWorker, PodSet, SharedStatus,
};
use evictd_node::{
    bpf::{kernel_log, object::BpfObject},
    cgroup::memory::memory_root,
    memory_scope::Scope,
    trigger::{memory, oom::OomReader},
};
use evictd_store::incident::files::Incidents;

use super::{
    Agent, BY_FASTPATH, ConfigSource, RunError,
    allocatable::Allocatable,
    node_memory::NodeMemory,
    policies::Policies,
    recall,
    runtime_disks::RuntimeDisks,
    scan_watch::ScanWatch,
    scope::{self, guarded, hard_memory_threshold, scope, tell_floor},
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
        sources,
    },
    telemetry::{self, Health, Heartbeat, Metrics, MetricsListener},
};

impl Agent {
    pub(super) async fn start(
        config: &Config,
        origin: ConfigSource,
        health: Arc<Health>,
    ) -> Result<Self, RunError> {
        raise_open_files();
        let threshold = hard_memory_threshold(&config.eviction.thresholds)?;
        // Two of them: the fast path takes one with it.
        let [scope, looked_at] = [scope(config, &threshold)?, scope(config, &threshold)?];
        // The manager shows the kubelet's count, and goes by it under soft thresholds.
        tell_floor(config, scope.limits().threshold, scope.capacity());
        let scope = guarded(scope, config);
        let mut policies = Policies::start(config)?;
        let Opened {
            mut source,
            table,
            disk,
            restored,
        } = pod_source::open(config, scope.cgroup().path(), &policies).await?;
        let journal = disk.queue().clone();
        recall::restore(&policies.evaluator, &restored);
        policies.present(&table);
        // Pods that an earlier agent has left throttled are released before a pod is judged.
        let mitigation = MitigationWorker::open(&config.state_dir);
        let mut allocatable = Allocatable::new(config, &scope);
        let (pods_scope, pods_looked_at) = allocatable.first().unzip();
        let node_memory = NodeMemory::new(config, &scope)?;
        let protection = protection(&scope);
        let capacity = scope.capacity();
        let mut evidence = evidence(&scope, pods_scope.as_ref());
        let scopes: Vec<_> = std::iter::once(scope).chain(pods_scope).collect();
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
        let oom = object.as_mut().ok().and_then(attach_oom_reader);
        let mut signals = sources::build(config, looked_at, pods_looked_at)?;
        // All programs are loaded. What that took has to go now: the fast path locks the memory that it finds.
        for object in object.iter_mut().chain(&mut signals.object) {
            object.drop_btf();
        }
        give_back_memory();
        let (control, events) = (Control::new()?, EventQueue::new()?);
        let hook = built.choice.hook;
        let memory_signals: Vec<_> = scopes.iter().map(Scope::signal).collect();
        let allocatable_capacity = scopes.get(1).map(Scope::capacity);
        let pods = table.entries.len();
        let (entries, swap) = (table.entries.clone(), Arc::clone(&table.swap));
        evidence.know(&entries);
        let words = MessageBuilder {
            thresholds: config.eviction.thresholds.clone(),
        };
        let memory_v1 = Scope::memory_v1(&scopes).map(Path::to_owned);
        // All that the configuration may be wrong about comes before the first thread that kills.
        let address = config.metrics_address;
        let tls = config.metrics_tls.as_ref();
        let listener = address.map(|address| MetricsListener::bind(address, tls));
        let listener = listener.transpose()?;
        let mut pins = guard::pin(config, &mut *built.trigger);
        let pinned = pins.as_ref().filter(|pins| pins.is_pinned);
        pinned.map(guard::inherit);
        let (fastpath, refusals) = FastPath::start(Setup {
            scopes,
            trigger: built.trigger,
            table,
            earlier: recall::terminating(&restored, &entries),
            last_eviction: recall::last_eviction(&restored),
            is_pinned: pinned.is_some(),
            shadow: config.shadow,
            victims_at_once: match config.mode {
                Mode::Evictd => usize::MAX,
                Mode::Kubelet => 1,
            },
            strategy: config.ranking_strategy,
            limiter: Arc::clone(policies.evaluator.limiter()),
            control: Arc::clone(&control),
            events: Arc::clone(&events),
        })?;
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
        let shares = signals.sources.disks.as_ref();
        let scanner = DiskScanner::start(shares.and_then(|d| d.trigger.share_reader()))?;
        let targets: Vec<_> = entries.iter().map(|e| source.target(config, e)).collect();
        scanner.set_targets(targets.clone());
        let mount = memory_root(Path::new(scope::CGROUP_MOUNT)).map(|(mount, _)| mount);
        let mount = mount.unwrap_or_else(|| PathBuf::from(scope::CGROUP_MOUNT));
        let layout = signals.sources.layout();
        let hooks = metrics::hooks(&signals);
        let manager = ManagerHandle::start(evictd_manager::Setup {
            settings: sources::settings(config, layout, BY_FASTPATH.to_vec()),
            sources: signals.sources,
            scanner: Arc::clone(&scanner),
            members: PodSet::new(&entries),
            limiter: Arc::clone(policies.evaluator.limiter()),
            shadow: config.shadow,
            reclaims: evictd_manager::ReclaimOptions {
                runtime: config.cri.as_ref().map(|cri| cri.reclaim_timeout),
                kubelet: matches!(source, PodSource::Cluster { .. }),
            },
            mitigation: config.graduated,
            memory_v1,
            earlier: recall::earlier(&restored, &entries),
            on_kill: {
                let control = Arc::clone(&control);
                Box::new(move |pod, signalled| control.note_kill(pod, signalled, KilledBy::Manager))
            },
        })?;
        let commands = Arc::clone(manager.commands());
        let steps = MitigationThreads::start(&mitigation, move |effect| {
            commands.send(Command::MitigationDone(Box::new(effect)));
        })?;
        let cri = config.cri.clone().map(|cri| {
            let commands = Arc::clone(manager.commands());
            let (scanner, disks) = (Arc::clone(&scanner), RuntimeDisks::new(config));
            evictd_cri::CriWorker::start(cri, move |told| match told {
                evictd_cri::Tell::Reclaimed(removed) => {
                    commands.send(Command::Reclaimed(removed));
                }
                evictd_cri::Tell::Layers { layers, asked } => scanner.set_layers(layers, asked),
                evictd_cri::Tell::Disks(theirs) => disks.compare(theirs),
            })
        });
        let blocking = tokio::runtime::Handle::current();
        // A disk may hang: not the thread that kills.
        let ensure_dead = EnsureDead::start(move |directories| {
            drop(blocking.spawn_blocking(move || clear(&directories)));
        })?;
        // In shadow mode what an earlier agent has begun waits for one that is not.
        if !config.shadow {
            let ends_pods = matches!(source, PodSource::Manifest { .. });
            recall::go_on(&restored, &entries, ends_pods, &ensure_dead);
        }
        let incidents = Incidents::new(&config.state_dir);
        let dropped = Arc::new(Dropped::default());
        let reloads = Arc::new(Reloads::default());
        reloads.note_kubelet(origin.kubelet.source);
        let metrics = Metrics::new(metrics::sources(&metrics::Shown {
            memory: hook,
            memory_signals,
            oom: &evidence.counters(),
            policies: &policies,
            manager: &manager,
            health: &health,
            scanner: &scanner,
            hooks,
            source: &source,
            dropped: &dropped,
            reloads: &reloads,
            events: &events,
            cri: cri.as_ref().map(evictd_cri::CriWorker::counters),
            mitigation: &mitigation,
            realtime,
            journal: &journal,
            incidents: incidents.kept(),
        }));
        let metrics = Arc::new(metrics);
        if let Some(listener) = listener {
            let authority = match &source {
                PodSource::Cluster { cluster, .. } if tls.is_some_and(|tls| tls.authorization) => {
                    Some(cluster.connection())
                }
                _ => None,
            };
            let (metrics, health) = (Arc::clone(&metrics), Arc::clone(&health));
            let address = listener.serve(authority, metrics, health)?;
            tracing::info!(%address, tls = tls.is_some(), "metrics are served");
        }
        if let (PodSource::Cluster { cluster, .. }, Some(settings)) = (&mut source, &config.cluster)
        {
            let commands = Arc::clone(manager.commands());
            let settle = move |chosen, gone| {
                commands.send(Command::SoftEvictionFinished { chosen, gone });
            };
            cluster.start_soft(config, &settings.node_name, &journal, settle);
        }
        // One thread for what blocks is there from the start.
        drop(tokio::task::spawn_blocking(|| ()).await);
        health.beat();
        health.started(heartbeats(&events, manager.status()));
        tracing::info!(%hook, capacity, allocatable_capacity, pods, shadow = config.shadow, "watching");
        Ok(Self {
            config: config.clone(),
            counters_object: signals.object,
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
            object: object.ok(),
            kernel_log,
            oom,
            fastpath: Some(fastpath),
            control,
            events,
            eviction_log: EvictionLog::new(journal, words),
            pod_source: source,
            node_state: NodeState::default(),
            allocatable,
            node_memory,
            layout,
            disk_retry: signals.disk_retry,
            config_source: origin,
            config_look: FileLook::new(Arc::default()),
            reloads,
            oom_attributor: evidence,
            unattributed_kills: UnattributedKills::default(),
            policies,
            cri,
            mitigation,
            steps,
            incidents,
            ensure_dead,
            disk: DiskWriter::new(disk),
            pods: PublishedPods::new(entries, swap, targets, mount),
            protection,
        })
    }
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

/// What tells of the OOM killer, for the scopes that are watched.
fn evidence(node: &Scope, pods: Option<&Scope>) -> OomAttributor {
    let root = memory_root(Path::new(scope::CGROUP_MOUNT));
    // Without a hierarchy there is no scope either.
    let root = root.map_or_else(|| node.cgroup().path().to_owned(), |(root, _)| root);
    let scopes = std::iter::once(node).chain(pods);
    OomAttributor::new(&root, scopes.map(|s| s.cgroup().id()).collect())
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
