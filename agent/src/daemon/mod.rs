//! The agent. By default it is embedded: the scope is a cgroup, its pods are described by a manifest file, the executor is
//! the kernel. With a cluster the API server describes the pods, and hears what became of them.

mod allocatable;
mod notes;
mod scope;
mod shown;
mod signals;
mod source;

use std::{
    io,
    os::fd::OwnedFd,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::unix::AsyncFd,
    signal::unix::{SignalKind, signal},
};

use crate::{
    cluster::client::AccessError,
    config::{Config, ConfigError, Mode},
    engine::Signal,
    evict::{
        journal::JournalError,
        oom::OomEvidence,
        reconcile::{Reconciler, reap},
        words::Words,
    },
    kernel::{
        cgroups::PodLife,
        ladder::Refused,
        object::Object,
        telemetry::{Telemetry, kind},
        tripwire,
    },
    observe::{
        cgroup::{PathError, memory_root},
        filesystem::LayoutError,
    },
    reflex::{Mailbox, Outbox, Reflex, Report, Scope, ScopeError, Setup, thread::now_ns},
    rounds::{self, Letter, Members, Note, Rounds, Walker},
    telemetry::{self, Metrics, ServeError},
};
use allocatable::Allocatable;
use scope::{hard_memory_threshold, scope};
use shown::{DROPS, Dropped};
use source::{Source, source};

/// How often the agent looks after itself; where no hook tells of cgroups that come and go, the pods' cgroups are
/// compared with what is held open as often.
const TICK: Duration = Duration::from_secs(1);
/// How often they are compared although a hook tells.
const RESCAN_TICKS: u32 = 10;
/// A pod makes several cgroups when it starts: one look for all of them.
const GATHER: Duration = Duration::from_millis(20);

/// What the reflex acts on.
const BY_REFLEX: [Signal; 2] = [Signal::MemoryAvailable, Signal::AllocatableMemoryAvailable];

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
    /// The filesystems.
    #[error("filesystems: {0}")]
    Filesystems(#[from] LayoutError),
    /// Where metrics are served.
    #[error(transparent)]
    Serve(#[from] ServeError),
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
        // Under PID pressure there may be none to be had when it is needed.
        .thread_keep_alive(Duration::MAX)
        .build()?;
    runtime.block_on(async { Agent::start(config).await?.serve().await })
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
    config: Config,
    // As `object`, for the programs that count.
    counting: Option<Object>,
    life: PodLife,
    ticks: u32,
    rounds: Option<Rounds>,
    notes: tokio::sync::mpsc::Receiver<Note>,
    walker: Arc<Walker>,
    metrics: Arc<Metrics>,
    /// When the loop last ran, in nanoseconds of CLOCK_MONOTONIC.
    beat: Arc<AtomicU64>,
    dropped: Arc<Dropped>,
    allocatable: Allocatable,
    evidence: OomEvidence,
}

impl Agent {
    async fn start(config: &Config) -> Result<Self, RunError> {
        let threshold = hard_memory_threshold(&config.eviction.thresholds)?;
        // Two of them: the reflex takes one with it.
        let [scope, looked_at] = [scope(config, threshold)?, scope(config, threshold)?];
        let (mut source, table, journal) = source(config, scope.cgroup().path()).await?;
        let mut allocatable = Allocatable::new(config, &scope);
        let (pods_scope, pods_looked_at) = allocatable.first().unzip();
        let capacity = scope.capacity();
        let mut evidence = evidence(&scope, pods_scope.as_ref());
        let scopes: Vec<_> = std::iter::once(scope).chain(pods_scope).collect();
        let cgroups: Vec<_> = scopes.iter().map(Scope::cgroup).collect();

        let mut object = Object::load();
        let refusal = object.as_ref().err().map(ToString::to_string);
        let built = tripwire::build(
            &cgroups,
            object
                .as_mut()
                .map_err(|_| refusal.as_deref().unwrap_or_default()),
            config.memory_hook,
        )?;
        for (hook, reason) in &built.choice.refused {
            tracing::info!(%hook, reason, "a better rung is refused");
        }
        let telemetry = object.as_mut().ok().and_then(attach_telemetry);
        let mut signals = signals::build(config, looked_at, pods_looked_at)?;
        // All programs are loaded. What that took has to go now: the reflex locks the memory that it finds.
        for object in object.iter_mut().chain(&mut signals.object) {
            object.forget_types();
        }
        give_back_memory();
        let (mailbox, outbox) = (Mailbox::new()?, Outbox::new()?);
        let hook = built.choice.hook;
        let memory_signals: Vec<_> = scopes.iter().map(Scope::signal).collect();
        let allocatable_capacity = scopes.get(1).map(Scope::capacity);
        let pods = table.entries.len();
        let entries = table.entries.clone();
        evidence.know(&entries);
        let words = Words {
            thresholds: config.eviction.thresholds.clone(),
        };
        let (reflex, refusals) = Reflex::start(Setup {
            scopes,
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
        let shares = signals.sensors.disks.as_ref();
        let walker = Walker::start(shares.and_then(|d| d.tripwire.share_reader()))?;
        walker.set_errands(source.errands(config, &entries));
        let layout = signals.sensors.layout();
        let hooks = shown::hooks(&signals);
        let (rounds, notes) = Rounds::start(rounds::Setup {
            settings: signals::settings(config, layout, BY_REFLEX.to_vec()),
            sensors: signals.sensors,
            walker: Arc::clone(&walker),
            members: Members::new(&entries),
            shadow: config.shadow,
            reclaims: false,
        })?;
        let dropped = Arc::new(Dropped::default());
        let metrics = Metrics::new(shown::sources(&shown::Shown {
            memory: hook,
            memory_signals,
            oom: &evidence.counters(),
            rounds: &rounds,
            hooks,
            source: &source,
            dropped: &dropped,
            outbox: &outbox,
        }));
        let metrics = Arc::new(metrics);
        let beat = Arc::new(AtomicU64::new(now_ns()));
        if let Some(address) = config.metrics_address {
            let served = telemetry::serve(address, Arc::clone(&metrics), Arc::clone(&beat)).await;
            let (address, _) = served?;
            tracing::info!(%address, "metrics are served");
        }
        if let (Source::Cluster(cluster), Some(settings)) = (&mut source, &config.cluster) {
            cluster.start_soft(config, &settings.node_name, &journal, rounds.inbox());
        }
        // One thread for what blocks is there from the start.
        drop(tokio::task::spawn_blocking(|| ()).await);
        tracing::info!(%hook, capacity, allocatable_capacity, pods, shadow = config.shadow, "watching");
        Ok(Self {
            config: config.clone(),
            counting: signals.object,
            life: signals.life,
            ticks: 0,
            rounds: Some(rounds),
            notes,
            walker,
            metrics,
            beat,
            dropped,
            object: object.ok(),
            telemetry,
            reflex: Some(reflex),
            mailbox,
            outbox,
            reconciler: Reconciler::new(journal, words),
            source,
            allocatable,
            evidence,
        })
    }

    async fn serve(mut self) -> Result<(), RunError> {
        let outbox = Arc::clone(&self.outbox);
        // SAFETY: the outbox answers with the same descriptor always, and keeps it open for as long as it lives.
        let reports = unsafe { AsyncFd::register(Arc::clone(&outbox)) };
        let reports = reports.map_err(|e| e.into_parts().1)?;
        let life = self
            .life
            .fd()
            .map(|fd| fd.try_clone_to_owned())
            .transpose()?;
        // SAFETY: the descriptor is owned by what is registered, which never answers with another one.
        let life = life.map(|fd| unsafe { AsyncFd::register(fd) }).transpose();
        let life = life.map_err(|e| e.into_parts().1)?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                ready = reports.readable() => {
                    ready?.clear_ready();
                    self.reconcile();
                }
                Some(note) = self.notes.recv() => self.take_note(note),
                _ = tick.tick() => self.tick(),
                gathered = gather(life.as_ref()) => {
                    gathered?;
                    self.follow_life();
                }
                () = self.source.changed() => self.refresh(),
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
            }
        }
        self.walker.stop();
        if let Some(rounds) = self.rounds.take() {
            // It may be waiting until somebody takes its note.
            self.notes.close();
            rounds.stop();
        }
        while let Ok(note) = self.notes.try_recv() {
            self.take_note(note);
        }
        if let Some(reflex) = self.reflex.take() {
            reflex.stop();
        }
        self.read_telemetry();
        if let Source::Cluster(cluster) = self.source {
            cluster.stop().await;
        }
        tracing::info!("stopped");
        Ok(())
    }

    fn reconcile(&mut self) {
        while let Some(report) = self.outbox.next() {
            self.show(&report);
            self.evidence.note(&report);
            if let Report::Evicted(evicted) = &report {
                self.tell_rounds(Letter::EvictedElsewhere {
                    uid: evicted.pod.pod.uid.clone(),
                    signal: evicted.signal,
                    available: evicted.available,
                });
                if !evicted.shadow {
                    let victim = Arc::clone(&evicted.pod);
                    tokio::task::spawn_blocking(move || reap(&victim));
                }
            }
            let eviction = self.reconciler.take(&report);
            if let (Source::Cluster(cluster), Some(eviction)) = (&mut self.source, eviction) {
                cluster.evicted(eviction);
            }
        }
    }

    fn tick(&mut self) {
        self.beat.store(now_ns(), Ordering::Relaxed);
        self.read_telemetry();
        self.ticks = self.ticks.wrapping_add(1);
        let lost = match &self.counting {
            Some(object) => self.life.rescan_due(object).unwrap_or(true),
            None => true,
        };
        if lost || self.ticks.is_multiple_of(RESCAN_TICKS) {
            self.refresh();
        }
    }

    /// Cgroups have come and gone: a look at them is due if any of them may be a pod's.
    fn follow_life(&mut self) {
        let mut any = false;
        while self.life.change().is_some() {
            any = true;
        }
        if any {
            self.refresh();
        }
    }

    /// Hands over a new table when a pod's cgroup has come, gone, or changed below.
    fn refresh(&mut self) {
        let table = self.source.refresh();
        if let Some((scope, looked_at)) = self.allocatable.refresh(table.is_some()) {
            self.evidence.set_pods_scope(scope.cgroup().id());
            self.mailbox.send_pods(Box::new(scope));
            self.tell_rounds(Letter::PodsMemory(Box::new(looked_at)));
        }
        let Some(table) = table else {
            return;
        };
        self.walker
            .set_errands(self.source.errands(&self.config, &table.entries));
        self.tell_rounds(Letter::Members(Members::new(&table.entries)));
        self.evidence.know(&table.entries);
        self.mailbox.send(table);
    }

    fn tell_rounds(&self, letter: Letter) {
        if let Some(rounds) = &self.rounds
            && !rounds.inbox().send(letter)
        {
            tracing::warn!("the rounds are behind: one thing remains untold");
        }
    }

    fn read_telemetry(&mut self) {
        // What was done before a kill is known before the kill is judged.
        self.reconcile();
        for record in self.telemetry.iter_mut().flatten() {
            if record.kind == kind::MARK_VICTIM {
                let (pid, cgroup) = (record.pid, record.cgroup_id);
                tracing::warn!(pid, cgroup, "the OOM killer; nothing more is known here");
            }
        }
        while let Some(kill) = self.telemetry.as_mut().and_then(Telemetry::next_kill) {
            if let Some(told) = self.evidence.take(&kill) {
                self.reconciler.take_oom_kill(told);
            }
        }
        for which in DROPS.map(|(_, _, which)| which) {
            let objects = self.object.iter().chain(&self.counting);
            let drops = objects.filter_map(|object| object.drops(which).ok());
            self.dropped.set(which, drops.sum());
        }
    }
}

/// Ends when cgroups have come or gone, a moment later, so that one look serves for many.
async fn gather(life: Option<&AsyncFd<OwnedFd>>) -> io::Result<()> {
    match life {
        Some(life) => {
            // Ready until the end: who is interrupted while gathering begins anew.
            let mut ready = life.readable().await?;
            tokio::time::sleep(GATHER).await;
            ready.clear_ready();
            Ok(())
        }
        None => std::future::pending().await,
    }
}

/// What tells of the OOM killer, for the scopes that are watched.
fn evidence(node: &Scope, pods: Option<&Scope>) -> OomEvidence {
    let root = memory_root(Path::new(scope::CGROUP_MOUNT));
    // Without a hierarchy there is no scope either.
    let root = root.map_or_else(|| node.cgroup().path().to_owned(), |(root, _)| root);
    let scopes = std::iter::once(node).chain(pods);
    OomEvidence::new(&root, scopes.map(|s| s.cgroup().id()).collect())
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
