//! The agent: one thread that connects both loops with the API server, the disk and the container runtime.
//! docs/architecture.md has a table of what each module owns.
//!
//! Without a cluster the scope is a cgroup, a manifest names its pods, and there are no reports. With a cluster the API
//! server describes the pods, and gets a report of each eviction.

mod background;
mod error;
mod evictions;
mod fastpath;
mod journal;
pub mod log;
mod manager;
mod memory;
mod metrics;
pub mod node_view;
mod oom;
mod os_signals;
mod pods;
pub(crate) mod policies;
mod programs;
mod reload;
mod shutdown;
pub(crate) mod signals;
mod start;
mod wall_clock;

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    io,
    os::fd::OwnedFd,
    sync::Arc,
    time::Duration,
};

use evictd_config::Config;
use evictd_engine::NodeState;
use evictd_kube::session::Cluster;
use evictd_node::trigger::cgroups::CgroupEvents;
use evictd_store::incident::files::Incidents;
use evictd_sys::clock::monotonic_ns;
use tokio::{io::unix::AsyncFd, runtime::Runtime, time::Instant};

use crate::telemetry::{self, Health, MetricsRegistry};
use evictions::{EnsureDead, EvictionLog};
use fastpath::RunningFastPath;
use journal::JournalWriter;
use log::Log;
use manager::RunningManager;
use memory::WatchedMemory;
use metrics::{DROPS, Dropped};
use oom::OomKills;
use os_signals::{OsSignals, SignalAction};
use pods::{PodSource, PublishedPods};
use policies::Policies;
use programs::Programs;
use reload::ConfigWatch;
use shutdown::Shutdown;

pub use error::RunError;
pub(crate) use manager::FOLLOWS;
pub(crate) use memory::{
    CGROUP_MOUNT, above_capacity, no_hard_threshold, node_scope, thresholds as memory_thresholds,
};
pub use reload::{CONFIGZ_UNUSED, ConfigSource, NO_PODS};

/// How often the agent looks after itself; where no hook reports cgroups that come and go, the pods' cgroups are
/// compared with what is held open as often.
const TICK: Duration = Duration::from_secs(1);
/// Number of ticks after which the pods' cgroups are compared with what is held open, although a hook reports them and
/// what it has lost.
const RESCAN_TICKS: u32 = 60;
/// A pod makes several cgroups when it starts: they are gathered for so long.
const GATHER: Duration = Duration::from_millis(20);

/// Time for which work that blocks may go on when all else has ended ([`shutdown`]).
const LAST_WORK: Duration = Duration::from_secs(1);

/// What an agent needs before it reads its configuration.
pub struct Daemon {
    runtime: Runtime,
    os_signals: OsSignals,
}

impl Daemon {
    /// From here on SIGTERM, SIGINT and SIGHUP wait until the agent has started, and a panic ends the process.
    ///
    /// # Errors
    /// The kernel has refused a thread, a file or a handler.
    pub fn prepare(log: &Arc<Log>) -> Result<Self, RunError> {
        abort_on_panic(log);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(6)
            // Under PID pressure there may be none to be had when it is needed.
            .thread_keep_alive(Duration::MAX)
            .build()?;
        let os_signals = runtime.block_on(async { OsSignals::listen() })?;
        Ok(Self {
            runtime,
            os_signals,
        })
    }

    /// Runs until SIGTERM or SIGINT.
    ///
    /// # Errors
    /// See [`RunError`].
    pub fn run(
        self,
        config: &Config,
        origin: ConfigSource,
        log: &Arc<Log>,
    ) -> Result<(), RunError> {
        if let Some(cluster) = &config.cluster {
            cluster.required_node_name()?;
        }
        let ended = self
            .runtime
            .block_on(serve(config, origin, self.os_signals, log));
        // Blocking tasks may hang on a disk: the runtime is not waited for beyond this.
        self.runtime.shutdown_timeout(LAST_WORK);
        ended
    }
}

async fn serve(
    config: &Config,
    origin: ConfigSource,
    os_signals: OsSignals,
    log: &Arc<Log>,
) -> Result<(), RunError> {
    let health = Arc::new(Health::default());
    if let Some(address) = config.health_address {
        // Before the start: that it is not complete is an answer too.
        let address = telemetry::serve_health(address, Arc::clone(&health))?;
        tracing::info!(%address, "probes are answered");
    }
    let agent = Agent::start(config, origin, Arc::clone(&health), log).await?;
    agent.serve(os_signals).await
}

/// Has a panic end the process: an agent without one of its threads is worse than a restart. The thread of the policy
/// evaluator is the exception: there a panic ends one gate's answer.
fn abort_on_panic(log: &Arc<Log>) {
    let log = Arc::clone(log);
    // Not by the hook of `std`, which waits for as long as the reader of standard error hangs.
    std::panic::set_hook(Box::new(move |panic| {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("without a name");
        let mut text = format!("\nthread '{name}' {panic}\n");
        let trace = Backtrace::capture();
        if trace.status() == BacktraceStatus::Captured {
            text += &format!("{trace}\n");
        }
        if name == evictd_policy::evaluator::THREAD {
            log.leave(text.as_bytes());
        } else {
            log.end(&text);
            std::process::abort();
        }
    }));
}

struct Agent {
    programs: Programs,
    fastpath: RunningFastPath,
    manager: RunningManager,
    memory: WatchedMemory,
    oom: OomKills,
    pods: PublishedPods,
    pod_source: PodSource,
    policies: Policies,
    config: Config,
    config_watch: ConfigWatch,
    cgroup_events: CgroupEvents,
    ticks: u32,
    eviction_log: EvictionLog,
    journal: JournalWriter,
    incidents: Incidents,
    ensure_dead: EnsureDead,
    metrics: Arc<MetricsRegistry>,
    health: Arc<Health>,
    dropped: Arc<Dropped>,
    /// State of the node as the agent reports it, or would in shadow mode.
    node_state: NodeState,
}

impl Agent {
    async fn serve(mut self, mut os_signals: OsSignals) -> Result<(), RunError> {
        // SAFETY: the event queue answers with the same descriptor always, and keeps it open for as long as it lives.
        let fastpath_events = unsafe { AsyncFd::register(Arc::clone(&self.fastpath.events)) };
        let fastpath_events = fastpath_events.map_err(|e| e.into_parts().1)?;
        // SAFETY: as above.
        let manager_events = unsafe { AsyncFd::register(Arc::clone(&self.manager.events)) };
        let manager_events = manager_events.map_err(|e| e.into_parts().1)?;
        let cgroup_events = self
            .cgroup_events
            .fd()
            .map(|fd| fd.try_clone_to_owned())
            .transpose()?;
        // SAFETY: the descriptor is owned by what is registered, which never answers with another one.
        let cgroup_events = cgroup_events
            .map(|fd| unsafe { AsyncFd::register(fd) })
            .transpose();
        let cgroup_events = cgroup_events.map_err(|e| e.into_parts().1)?;
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut ending: Option<Shutdown> = None;
        let mut gathering = None;
        let by = loop {
            let due = self.pods.due();
            tokio::select! {
                ready = fastpath_events.readable() => {
                    ready?.clear_ready();
                    self.handle_fastpath_events();
                }
                ready = manager_events.readable() => {
                    ready?.clear_ready();
                    self.handle_manager_events();
                }
                Some(record) = self.journal.acknowledged() => self.pod_source.report(record),
                _ = tick.tick() => {
                    self.tick();
                    self.manager.follow_disks(&self.config);
                }
                gathered = gather(cgroup_events.as_ref(), &mut gathering) => {
                    gathered?;
                    self.on_cgroup_events();
                }
                () = self.pod_source.changed() => self.follow_api(),
                () = self.policies.finished() => {
                    self.policies.take_finished(self.journal.queue());
                    self.write_pauses();
                }
                () = self.config_watch.read.finished() => self.follow_configuration(),
                () = at(due) => self.follow_waiting(),
                action = os_signals.next() => match (action, &ending) {
                    (SignalAction::Reload, _) => self.read_configuration_again(),
                    (SignalAction::Shutdown, None) => {
                        self.health.ends();
                        ending = Some(Shutdown::begin());
                    }
                    // A second signal: the end without the reports.
                    (SignalAction::Shutdown, Some(ending)) => break ending.by,
                },
                () = at(ending.as_ref().map(|ending| ending.next_poll)) => {
                    let has_sent = self.pod_source.cluster().is_none_or(Cluster::has_sent_events);
                    let is_reported = self.is_reported() && has_sent;
                    if let Some(ending) = &mut ending
                        && ending.stops(is_reported)
                    {
                        break ending.by;
                    }
                }
            }
        };
        self.end(by).await;
        Ok(())
    }

    fn write_pauses(&mut self) {
        for record in self.eviction_log.record_pauses(&self.policies.pauses) {
            self.append_to_journal(record);
        }
    }

    fn tick(&mut self) {
        self.health.heartbeat();
        if let Some(log) = &mut self.programs.kernel_log {
            log.flush();
        }
        self.read_oom_events();
        for (_, _, which) in DROPS {
            self.dropped.set(which, self.programs.drops(which));
        }
        self.write_incidents(monotonic_ns());
        self.journal.watch();
        self.manager.watch_disks();
        let is_reported = self.is_reported();
        self.policies.refresh(self.journal.queue(), is_reported);
        self.write_pauses();
        self.check_configuration();
        self.follow_node_scope();
        self.look_at_pods();
        self.ticks = self.ticks.wrapping_add(1);
        let lost = match &self.programs.counters {
            Some(object) => self.cgroup_events.rescan_due(object).unwrap_or(true),
            None => true,
        };
        let unplaced = self.pods.take_unplaced();
        let is_minute = self.ticks.is_multiple_of(RESCAN_TICKS);
        if lost || unplaced || is_minute {
            self.refresh();
            // Below a scope of its own the agent sees a part of the node's pods.
            if is_minute && self.config.scope.cgroup.is_none() {
                self.pod_source.look_for_cgroups();
            }
        } else {
            // A limit that changes makes no event; a pod that could not be opened is tried again.
            self.follow_api();
        }
    }
}

/// Ends at a moment; never without one.
async fn at(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// Ends a moment after cgroups have come or gone, so that many are compared at once. `due` is kept between calls:
/// the first change fixes it, and other events that win the loop meanwhile do not put it off.
async fn gather(
    cgroup_events: Option<&AsyncFd<OwnedFd>>,
    due: &mut Option<Instant>,
) -> io::Result<()> {
    let Some(cgroup_events) = cgroup_events else {
        return std::future::pending().await;
    };
    let end = match *due {
        Some(end) => end,
        None => {
            // What comes after this moment makes it ready again: at worst one comparison more, which finds nothing.
            cgroup_events.readable().await?.clear_ready();
            *due.insert(Instant::now() + GATHER)
        }
    };
    tokio::time::sleep_until(end).await;
    *due = None;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[tokio::test]
    async fn other_events_do_not_put_off_a_gathering() {
        let (reader, mut writer) = io::pipe().unwrap();
        // SAFETY: the descriptor is owned by what is registered, which never answers with another one.
        let cgroup_events = unsafe { AsyncFd::register(OwnedFd::from(reader)) };
        let cgroup_events = cgroup_events.map_err(|e| e.into_parts().1).unwrap();
        let mut due = None;
        writer.write_all(b"x").unwrap();
        let began = Instant::now();
        let storm = async {
            let mut others = 0;
            loop {
                tokio::select! {
                    gathered = gather(Some(&cgroup_events), &mut due) => break gathered.map(|()| others),
                    () = tokio::time::sleep(GATHER / 10) => others += 1,
                }
            }
        };
        let others = tokio::time::timeout(100 * GATHER, storm).await;
        let others = others.expect("an end").unwrap();
        assert!(others > 0 && began.elapsed() >= GATHER, "{others}");
        assert_eq!(due, None, "the next change fixes another moment");
        let early = tokio::time::timeout(2 * GATHER, gather(Some(&cgroup_events), &mut due)).await;
        assert!(early.is_err(), "nothing has come or gone since");
    }
}
