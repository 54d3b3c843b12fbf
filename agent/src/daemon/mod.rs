//! The agent. By default it is embedded: the scope is a cgroup, its pods are described by a manifest file, the executor is
//! the kernel. With a cluster the API server describes the pods, and hears what became of them.

mod scope;
mod source;

use std::{io, sync::Arc, time::Duration};

use tokio::{
    io::unix::AsyncFd,
    signal::unix::{SignalKind, signal},
};

use crate::{
    cluster::client::AccessError,
    config::{Config, ConfigError, Mode},
    evict::{
        journal::JournalError,
        reconcile::{Reconciler, reap},
        words::Words,
    },
    kernel::{
        ladder::Refused,
        object::Object,
        telemetry::{self, Telemetry},
        tripwire,
    },
    observe::cgroup::PathError,
    reflex::{Mailbox, Outbox, Reflex, Report, ScopeError, Setup},
};
use scope::{hard_memory_threshold, scope};
use source::{Source, source};

/// How often the pods' cgroups are compared with what is held open.
const REFRESH: Duration = Duration::from_secs(1);

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
