//! The end of the agent: first what is unreported is reported while the loops still watch; then the loops stop, and
//! their last records are written and reported. One deadline bounds all of it: when the grace period of the agent's own
//! pod is over, the kubelet kills it.

use std::time::Duration;

use evictd_kube::session::Cluster;
use tokio::time::Instant;

use super::{Agent, LAST_WORK, pods::PodSource};

/// Time that the end may take; the chart grants 15 s (`terminationGracePeriodSeconds`).
const SHUTDOWN_DEADLINE: Duration = Duration::from_secs(10);
/// Part of that time during which the loops go on while an API server or a disk does not answer.
const DRAIN: Duration = Duration::from_secs(5);
/// Interval at which the agent polls whether all is reported.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Time for which the last records of the loops are awaited before they are reported.
const LAST_RECORDS: Duration = Duration::from_secs(2);
/// Time that the manager may take to end.
const MANAGER_END: Duration = Duration::from_secs(2);
/// Time that is kept for the disk when the API server takes all the time there is.
const LAST_WRITES: Duration = Duration::from_secs(1);

/// An end that has begun.
pub(super) struct Shutdown {
    /// Time at which the loops stop at the latest.
    stop: Instant,
    /// Deadline of the shutdown.
    pub by: Instant,
    /// Time at which the agent polls next whether the loops may stop.
    pub next_poll: Instant,
}

impl Shutdown {
    pub fn begin() -> Self {
        let now = Instant::now();
        Self {
            stop: now + DRAIN,
            by: now + SHUTDOWN_DEADLINE,
            next_poll: now,
        }
    }

    /// Whether the loops stop now: `is_reported`, or they have gone on for long enough.
    pub fn stops(&mut self, is_reported: bool) -> bool {
        let now = Instant::now();
        self.next_poll = now + POLL_INTERVAL;
        is_reported || now >= self.stop
    }
}

impl Agent {
    /// Whether what has happened so far is on disk and reported.
    pub(super) fn is_reported(&self) -> bool {
        let cluster = self.pod_source.cluster();
        self.journal.is_written() && cluster.is_none_or(Cluster::is_reported)
    }

    /// Stops the loops, that of memory last, and reports what they have done meanwhile.
    pub(super) async fn end(mut self, by: Instant) {
        self.write_pauses();
        self.manager.stop(MANAGER_END);
        self.handle_manager_events();
        self.fastpath.stop();
        // No pod is left throttled; the list of them is written below.
        self.manager.mitigation.close();
        // The last events may be an eviction.
        self.read_oom_events();
        self.report_oom_kills(u64::MAX);
        // A pod that is being asked to go meanwhile has an incident as well.
        self.flush_journal(by.min(Instant::now() + LAST_RECORDS))
            .await;
        self.write_incidents(u64::MAX);
        if let PodSource::Cluster { cluster, .. } = self.pod_source {
            cluster.stop(by - LAST_WRITES).await;
        }
        self.journal.close(by);
        // A disk that does not answer and a victim that does not die hold up no end: the next agent goes on with them.
        self.manager.steps.stop(LAST_WORK);
        self.ensure_dead.stop(LAST_WORK);
        tracing::info!("the agent has stopped");
    }
}
