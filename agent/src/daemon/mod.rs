//! The agent. By default it is embedded: the scope is a cgroup, its pods are described by a manifest file, the executor is
//! the kernel. With a cluster the API server describes the pods, and hears what became of them.

mod allocatable;
mod error;
pub mod eviction_log;
mod incidents;
mod manager_events;
pub mod message;
mod metrics;
pub mod node_view;
pub mod oom;
mod os_signals;
pub mod pause_log;
mod pod_source;
pub(crate) mod policies;
mod recall;
mod reload;
mod scope;
mod sources;
mod start;

use std::{io, os::fd::OwnedFd, sync::Arc, time::Duration};

use evictd_config::Config;
use evictd_engine::{Layout, Signal, history::Recorder};
use evictd_fastpath::{Mailbox, Outbox, Reflex, Report};
use evictd_manager::{Letter, Members, Note, Rounds, Walker};
use evictd_node::{
    bpf::object::Object,
    pods::table::Entry,
    trigger::{
        cgroups::PodLife,
        oom::{Telemetry, kind},
    },
};
use evictd_store::{incident::files::Incidents, record::Record};
use tokio::io::unix::AsyncFd;

use crate::{
    daemon::{
        eviction_log::{Reconciler, reap},
        metrics::{Dropped, Reloads, names::DROPS},
        oom::OomEvidence,
        os_signals::{Asked, Wish},
        pod_source::Source,
    },
    telemetry::{self, Health, Metrics},
};
use allocatable::Allocatable;
use policies::Policies;

pub use error::RunError;
pub use reload::Origin;

/// How often the agent looks after itself; where no hook tells of cgroups that come and go, the pods' cgroups are
/// compared with what is held open as often.
const TICK: Duration = Duration::from_secs(1);
/// How often they are compared although a hook tells, and tells when it has lost something.
const RESCAN_TICKS: u32 = 60;
/// A pod makes several cgroups when it starts: one look for all of them.
const GATHER: Duration = Duration::from_millis(20);

/// What the reflex acts on.
const BY_REFLEX: [Signal; 2] = [Signal::MemoryAvailable, Signal::AllocatableMemoryAvailable];

/// Runs until SIGTERM or SIGINT.
///
/// # Errors
/// See [`RunError`].
pub fn run(config: &Config, origin: Origin) -> Result<(), RunError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(4)
        // Under PID pressure there may be none to be had when it is needed.
        .thread_keep_alive(Duration::MAX)
        .build()?;
    let health = Arc::new(Health::default());
    runtime.block_on(async {
        // Before all else: what is asked while the agent starts is done as soon as it has.
        let asked = Asked::listen()?;
        if let Some(address) = config.health_address {
            // Before the start: that it is not complete is an answer too.
            let address = telemetry::serve_health(address, Arc::clone(&health))?;
            tracing::info!(%address, "probes are answered");
        }
        let agent = Agent::start(config, origin, Arc::clone(&health)).await?;
        agent.serve(asked).await
    })
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
    health: Arc<Health>,
    dropped: Arc<Dropped>,
    allocatable: Allocatable,
    /// Of the node, in bytes.
    capacity: u64,
    layout: Layout,
    origin: Origin,
    reloads: Arc<Reloads>,
    evidence: OomEvidence,
    policies: Policies,
    cri: Option<evictd_cri::Keeper>,
    graduated: Arc<evictd_manager::mitigation_worker::Worker>,
    incidents: Incidents,
    /// What the rounds have seen lately.
    seen_by_rounds: Arc<Recorder>,
    /// The pods of the table that was handed over last.
    entries: Vec<Arc<Entry>>,
}

impl Agent {
    async fn serve(mut self, mut asked: Asked) -> Result<(), RunError> {
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
                wish = asked.next() => match wish {
                    Wish::Reload => self.reload(true),
                    Wish::End => break,
                },
            }
        }
        self.health.ends();
        self.reconciler.take_pauses(&self.policies.brakes);
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
        // Nobody is left braked.
        self.graduated.close();
        // The last things that were told may be an eviction.
        self.read_telemetry();
        if let Some(write) = self.incidents_over(u64::MAX) {
            write();
        }
        if let Source::Cluster { cluster, .. } = self.source {
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
                self.policies.note(&evicted.pod.pod, evicted.last_resort);
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
            let Some(record) = self.reconciler.take(&report) else {
                continue;
            };
            if let (Source::Cluster { cluster, .. }, Record::Evicted(eviction)) =
                (&mut self.source, &record)
            {
                cluster.evicted(eviction.as_ref().clone());
            }
            self.tell_cluster(&record);
            let judged = match &report {
                Report::Evicted(evicted) => Some(evicted.judged),
                _ => None,
            };
            self.note_incident(&record, judged);
        }
    }

    /// Has the API server hear of a pod that is stuck, and of a threshold that is met as it comes into force.
    fn tell_cluster(&self, record: &Record) {
        if let (Source::Cluster { cluster, .. }, Record::Stuck(_) | Record::MetInForce(_)) =
            (&self.source, record)
        {
            cluster.tell(record.clone());
        }
    }

    fn tick(&mut self) {
        self.health.beat();
        self.read_telemetry();
        self.write_incidents();
        self.policies.refresh();
        self.reconciler.take_pauses(&self.policies.brakes);
        self.reload(false);
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
        self.follow_pods_scope(table.is_some());
        let Some(table) = table else {
            return;
        };
        self.policies.present(&table);
        self.walker
            .set_errands(self.source.errands(&self.config, &table.entries));
        self.tell_rounds(Letter::Members(Members::new(&table.entries)));
        self.evidence.know(&table.entries);
        self.entries.clone_from(&table.entries);
        self.mailbox.send(table);
    }

    /// Hands over the pods' cgroup when it has come or is another one now.
    fn follow_pods_scope(&mut self, pods_have_changed: bool) {
        if let Some((scope, looked_at)) = self.allocatable.refresh(pods_have_changed) {
            self.evidence.set_pods_scope(scope.cgroup().id());
            self.mailbox.send_pods(Box::new(scope));
            self.tell_rounds(Letter::PodsMemory(Box::new(looked_at)));
        }
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
