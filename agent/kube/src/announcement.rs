//! What a killed pod says at once. The report waits for the journal, and a disk may take seconds for it; the kubelet
//! looks at its containers each second, and a Job's pod that has failed by then without the condition counts against
//! the Job.
//!
//! The condition says what has happened, whether or not it is ever written down: nothing follows from it that limits
//! would have to count.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use evictd_config::EvictedPods;
use evictd_engine::Cause;
use evictd_store::record::EvictionRecord;
use tokio::task::JoinHandle;

use crate::{
    client::ApiClient,
    eviction_api::{self, KILLED_DEADLINE},
};

/// Conditions that are on their way at once; one more comes with the DELETE.
const AT_ONCE: usize = 16;
/// Number of evictions whose reports may be waited for; as many wait for the disk at most.
const KEPT: usize = 1024;
/// Where the patch of the status has the condition, it is sent alone where the disk takes longer than that.
const DISK_IS_LATE: Duration = Duration::from_millis(250);

/// The conditions of pods whose evictions are not reported yet.
#[derive(Debug)]
pub struct Announcements {
    evicted_pods: EvictedPods,
    /// Announcements by the eviction's id, the oldest first.
    kept: VecDeque<(String, Announcement)>,
}

/// The condition of one pod, on its way or sent.
#[derive(Debug)]
pub struct Announcement {
    /// Whether it was taken.
    task: JoinHandle<bool>,
    /// Time before which the condition is not sent.
    due: Instant,
}

impl Announcements {
    /// None yet.
    pub fn new(evicted_pods: EvictedPods) -> Self {
        Self {
            evicted_pods,
            kept: VecDeque::new(),
        }
    }

    /// Sends the condition of a pod that was just killed, where it gets one. Once, and for a short time: it comes with
    /// the DELETE otherwise.
    pub fn send(&mut self, client: &Arc<ApiClient>, eviction: &EvictionRecord) {
        // A pod without a name is known by its cgroup alone.
        let is_named = !eviction.namespace.is_empty();
        let on_their_way = self.kept.iter().filter(|(_, a)| !a.task.is_finished());
        if !eviction.is_kill()
            || !is_named
            || !eviction_api::announces_disruption(eviction)
            || on_their_way.count() >= AT_ONCE
        {
            return;
        }
        if self.kept.len() == KEPT {
            self.kept.pop_front();
        }
        let patience = match end_of(self.evicted_pods, eviction) {
            EvictedPods::Delete => Duration::ZERO,
            EvictedPods::Fail => DISK_IS_LATE,
        };
        let due = Instant::now() + patience;
        let (client, eviction) = (Arc::clone(client), eviction.clone());
        let id = eviction.id.clone();
        let task = tokio::spawn(async move {
            tokio::time::sleep_until(due.into()).await;
            set_condition(&client, &eviction).await
        });
        self.kept.push_back((id, Announcement { task, due }));
    }

    /// Takes out what was sent of the eviction with this id, which is reported now; `None` where nothing was sent yet:
    /// a task that waits to send it is ended.
    pub fn take(&mut self, id: &str) -> Option<Announcement> {
        let at = self.kept.iter().position(|(kept, _)| kept == id)?;
        let (_, announcement) = self.kept.remove(at)?;
        if Instant::now() < announcement.due {
            announcement.task.abort();
            return None;
        }
        Some(announcement)
    }
}

impl Announcement {
    /// Whether the DELETE may follow: the pod has the condition, or had its chance just now.
    pub async fn finish(self) -> bool {
        let is_old = self.task.is_finished();
        self.task.await.unwrap_or(false) || !is_old
    }
}

/// How an evicted pod ends for the API server. One that went for its files is deleted in any case: only then does the kubelet
/// remove them.
pub fn end_of(evicted_pods: EvictedPods, eviction: &EvictionRecord) -> EvictedPods {
    match Cause::named(&eviction.signal).is_some_and(Cause::is_of_files) {
        true => EvictedPods::Delete,
        false => evicted_pods,
    }
}

/// Sets the condition of an evicted pod. Whether it was taken.
pub async fn set_condition(client: &ApiClient, eviction: &EvictionRecord) -> bool {
    let set = eviction_api::set_disruption_target(
        client,
        eviction.into(),
        eviction.message.trim_end(),
        &eviction.time,
        KILLED_DEADLINE,
    )
    .await;
    if let Err(error) = &set {
        tracing::debug!(%error, "DisruptionTarget is not set");
    }
    set.is_ok()
}
