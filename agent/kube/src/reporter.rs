//! Reports evictions to the API server: DELETEs first, Events after.
//!
//! For each eviction in the journal that was not reported: DisruptionTarget where the kubelet sets it and it can still
//! be set (it was mostly sent while the journal was written), DELETE, an Event on the pod and one on the node, and then
//! a line in the journal that it was done. A static pod has Events alone: the API server cannot end it. Every step may
//! be repeated without harm, so that a crash between any two of them costs nothing: the UID guards the DELETE, the
//! Event's name the Event.
//!
//! An eviction that could not be reported for long is told and no more, where its pod runs anew: what was short then is
//! not short now.
//!
//! With `evictedPods: Fail` one patch of the status takes the place of the condition and the DELETE. It is a request:
//! the server may refuse it, and the kubelet may write its own status over it. Then the DELETE comes all the same.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use evictd_config::EvictedPods;
use evictd_engine::Pod;
use evictd_policy::PolicyEvaluator;
use evictd_store::{
    disk_queue::DiskQueue,
    record::{EvictionRecord, Record, Reported, counted::boot_id},
    restore::UNDER_WAY_NS,
};
use evictd_sys::clock::monotonic_ns;
use futures::future::join_all;
use tokio::sync::mpsc;

use crate::{
    announcement::{Announcement, set_condition},
    client::{ApiClient, ApiError},
    events::Events,
    eviction_api::{self, DEAD_GRACE_SECONDS, PodRef, Removal},
    watch::pods::WatchedPods,
};

/// Evictions that may wait to be taken over by the reporter; more stay in the journal for the next start.
pub const QUEUE: usize = 1024;
/// Pods that are deleted at once.
const AT_ONCE: usize = 4;
/// Refusals that time does not mend (missing rights, invalid) before an eviction or an Event is given up.
pub(crate) const ATTEMPTS: u32 = 8;
/// First and longest pause after a request without an answer; to each some of itself is added by chance.
pub(crate) const PAUSES: (Duration, Duration) =
    (Duration::from_millis(100), Duration::from_secs(15));

/// A status that is not taken although it is not refused: from this attempt on the DELETE does not wait for it.
const STATUS_ATTEMPTS: u32 = 3;
/// The kubelet looks at its pods once a second, and at the statuses that it has written every ten: by then it has taken
/// a pod back that it takes back at all. What the watch says within the first time may be from before the patch.
const MAY_BE_TAKEN_BACK: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(30));
/// Interval at which the pods are looked at that the kubelet may take back.
const TAKEN_BACK_INTERVAL: Duration = Duration::from_secs(1);

/// One eviction on its way.
#[derive(Debug)]
pub struct Job {
    eviction: EvictionRecord,
    /// The pod's condition, where it was sent before.
    announced: Option<Announcement>,
    outcome: Option<String>,
    /// Refusals.
    attempts: u32,
    /// Patches of the status without an answer.
    status_attempts: u32,
    /// The API server was asked for its name, and has none.
    is_unknown: bool,
}

/// A pod whose status was patched.
#[derive(Debug)]
struct FailedPod {
    eviction: EvictionRecord,
    since: Instant,
}

/// Outcome of the eviction of a pod that the API server cannot end: the kubelet starts it again.
const STATIC: &str = "static";
/// Outcome of an eviction that was reported too late to end the pod, which runs anew.
const RESTARTED: &str = "restarted";

/// Reports evictions to the API server.
pub struct Reporter {
    connection: Arc<ApiClient>,
    journal: DiskQueue,
    pods: Arc<WatchedPods>,
    policies: Arc<PolicyEvaluator>,
    node: String,
    /// ID of this boot; empty where it is not known.
    boot: String,
    events: Events,
    jobs: VecDeque<Job>,
    /// Number of evictions that were taken and are not reported, for the end of the agent.
    unreported: Arc<AtomicUsize>,
    /// Largest number of jobs: as many as an earlier agent has left, and some more.
    most_jobs: usize,
    backoff: ExponentialBackoff,
    evicted_pods: EvictedPods,
    /// Pods that the kubelet may still take back.
    failed: Vec<FailedPod>,
    /// Time of the last look at the pods that the kubelet may take back.
    looked: Instant,
    /// Whether it was logged that the status was refused.
    is_refusal_logged: bool,
}

impl Reporter {
    /// A reporter that starts with what an earlier agent has left, of which so many `old` ones follow. `policies` know
    /// what runs on this node.
    pub fn new(
        connection: Arc<ApiClient>,
        journal: DiskQueue,
        (pods, policies): (Arc<WatchedPods>, Arc<PolicyEvaluator>),
        node: &str,
        evicted_pods: EvictedPods,
        left_over: Vec<EvictionRecord>,
        old: usize,
    ) -> Self {
        Self {
            connection,
            journal,
            pods,
            policies,
            node: node.to_owned(),
            boot: boot_id(),
            events: Events::new(node),
            most_jobs: left_over.len() + old + QUEUE,
            unreported: Arc::new(AtomicUsize::new(left_over.len())),
            jobs: left_over.into_iter().map(|e| Job::new(e, None)).collect(),
            backoff: pauses(),
            evicted_pods,
            failed: Vec::new(),
            looked: Instant::now(),
            is_refusal_logged: false,
        }
    }

    /// Evictions that were taken and are not reported.
    pub fn unreported(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.unreported)
    }

    /// Reports until the queue is closed and empty.
    pub async fn run(mut self, mut queue: mpsc::Receiver<Job>) {
        loop {
            while let Ok(job) = queue.try_recv() {
                self.take(job);
            }
            self.unreported.store(self.jobs.len(), Ordering::Relaxed);
            self.delete_what_came_back().await;
            if self.jobs.is_empty() {
                let flush = self.events.next_flush();
                tokio::select! {
                    next = queue.recv() => match next {
                        Some(job) => self.take(job),
                        None => return,
                    },
                    () = tokio::time::sleep(TAKEN_BACK_INTERVAL), if !self.failed.is_empty() => {}
                    () = sleep(flush), if flush.is_some() => {
                        if let Err(error) = self.events.flush(&self.connection).await {
                            tracing::debug!(%error, "the node's Event keeps its old count");
                        }
                    }
                }
                continue;
            }
            if self.step().await {
                self.backoff = pauses();
                continue;
            }
            let pause = self.backoff.next().unwrap_or(PAUSES.1);
            let nameless = self
                .jobs
                .iter()
                .any(|job| job.eviction.namespace.is_empty());
            // A new eviction is not made to wait for old ones.
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.pods.changed_for_reports.notified(), if nameless => {}
                next = queue.recv() => match next {
                    Some(job) => self.take(job),
                    // The agent ends; the journal knows what is left.
                    None => return,
                },
            }
        }
    }

    /// Takes an eviction in, before those that wait already; as long as too many wait, the journal keeps it for the
    /// next start.
    fn take(&mut self, job: Job) {
        if self.jobs.len() < self.most_jobs {
            self.jobs.push_front(job);
        } else {
            self.connection.counters.reports_deferred.add();
        }
    }

    /// One step for the jobs that need it most; false when it is time for a pause.
    async fn step(&mut self) -> bool {
        let removed = self.remove_some().await;
        if self.jobs.iter().any(|job| job.outcome.is_none()) && removed {
            return true;
        }
        // One that cannot be deleted now does not hold up the Events of the others.
        self.report_one().await && removed
    }

    /// Deletes the first few that are not deleted yet; those that must be tried again go to the end of the line.
    async fn remove_some(&mut self) -> bool {
        let mut batch = Vec::new();
        while batch.len() < AT_ONCE
            && let Some(at) = self.jobs.iter().position(|job| job.outcome.is_none())
            && let Some(mut job) = self.jobs.remove(at)
        {
            self.pods.with(|store| {
                job.find_name(|uid| store.get(uid).cloned());
                let is_it = |pod: &&Pod| pod.uid == job.eviction.uid;
                if store.pods().find(is_it).is_some_and(|p| !p.ends_by_api()) {
                    job.outcome = Some(STATIC.to_owned());
                }
            });
            if job.outcome.is_none() && self.is_outdated(&job.eviction) {
                job.outcome = Some(RESTARTED.to_owned());
            }
            batch.push(job);
        }
        // The watch may be behind, or gone: names that it has not brought are asked for.
        if batch.iter().any(Job::is_nameless) && self.pods.with(|store| store.is_synced()) {
            match eviction_api::names_on(&self.connection, &self.node).await {
                Ok(names) => {
                    let nameless = batch.iter_mut().filter(|job| job.is_nameless());
                    nameless.for_each(|job| job.take_name(&names));
                }
                Err(error) => {
                    tracing::debug!(%error, "the names of evicted pods are not known yet");
                }
            }
        }
        let answers = batch.iter_mut().map(async |job| match &job.outcome {
            Some(known) => Ok(Removed {
                outcome: Some(known.clone()),
                refusal: None,
            }),
            None => self.remove(job).await,
        });
        let answers = join_all(answers).await;
        let mut all = true;
        for (mut job, answer) in batch.into_iter().zip(answers) {
            match answer {
                Ok(Removed { outcome, refusal }) => {
                    job.outcome = outcome;
                    self.log_refusal(refusal);
                }
                Err(error) => {
                    job.status_attempts += 1;
                    job.take_refusal(&error, &self.connection);
                }
            }
            if job.outcome.as_deref() == Some(Removal::Failed.as_str()) {
                self.failed.push(FailedPod {
                    eviction: job.eviction.clone(),
                    since: Instant::now(),
                });
            }
            all &= job.outcome.is_some();
            self.jobs.push_back(job);
        }
        all
    }

    /// Whether the pod is left alone: it was evicted in another boot, or long ago, and runs anew.
    fn is_outdated(&self, eviction: &EvictionRecord) -> bool {
        eviction.boot() != self.boot
            || is_old(eviction)
                && self
                    .policies
                    .runs_anew(&eviction.uid, eviction.stages.signalled)
    }

    /// Does what is needed so that the pod does not run again, and returns what came of it.
    async fn remove(&self, job: &mut Job) -> Result<Removed, ApiError> {
        let is_announced = match job.announced.take() {
            Some(announced) => announced.finish().await,
            None => false,
        };
        let eviction = &job.eviction;
        let mut refusal = None;
        if self.evicted_pods == EvictedPods::Fail && !eviction.namespace.is_empty() {
            self.pods.note_own_eviction(&eviction.uid);
            match eviction_api::fail(&self.connection, eviction).await {
                Ok(removal) => return Ok(Removed::by(removal)),
                Err(e) if e.is_retryable() && job.status_attempts < STATUS_ATTEMPTS => {
                    return Err(e);
                }
                // Another pod by that name, or other writers were always first: the answer to the DELETE decides.
                Err(e) if e.code() == 409 => {}
                Err(e) => refusal = Some(e),
            }
        }
        if eviction.namespace.is_empty() {
            // Asked, the server has no such pod; before that nothing is known.
            let outcome = job.is_unknown.then(|| Removal::Gone.as_str().to_owned());
            return Ok(Removed { outcome, refusal });
        }
        let outcome = delete(&self.connection, eviction, is_announced).await?;
        Ok(Removed {
            outcome: Some(outcome),
            refusal,
        })
    }

    fn log_refusal(&mut self, refusal: Option<ApiError>) {
        if let Some(error) = refusal
            && !std::mem::replace(&mut self.is_refusal_logged, true)
        {
            tracing::warn!(
                %error,
                "the API server does not let an evicted pod fail: such pods are deleted instead"
            );
        }
    }

    /// Deletes evicted pods that the kubelet runs all the same: it has written its own status over that of the
    /// eviction.
    async fn delete_what_came_back(&mut self) {
        if self.looked.elapsed() < TAKEN_BACK_INTERVAL {
            return;
        }
        self.looked = Instant::now();
        let (first, last) = MAY_BE_TAKEN_BACK;
        self.failed.retain(|failed| failed.since.elapsed() < last);
        let mut is_back = Vec::new();
        for (at, FailedPod { eviction, since }) in self.failed.iter().enumerate() {
            // The store has no pods that are over.
            let is_it = |pod: &&Pod| pod.uid == eviction.uid && !pod.is_deleting;
            let runs = || self.pods.with(|store| store.pods().any(|pod| is_it(&pod)));
            if since.elapsed() >= first && runs() {
                is_back.push(at);
            }
        }
        for at in is_back.into_iter().rev() {
            let failed = self.failed.swap_remove(at);
            let pod = PodRef::from(&failed.eviction);
            let name = format!("{}/{}", pod.namespace, pod.name);
            // A watch that was away shows what was before.
            let deleted = match eviction_api::is_active(&self.connection, pod).await {
                Ok(false) => continue,
                Ok(true) => eviction_api::delete(&self.connection, pod, DEAD_GRACE_SECONDS).await,
                Err(error) => Err(error),
            };
            match deleted {
                Ok(_) => tracing::warn!(
                    pod = name,
                    "the kubelet has taken an evicted pod back: it is deleted"
                ),
                Err(error) => {
                    tracing::warn!(pod = name, %error, "the kubelet has taken an evicted pod back");
                    if error.is_retryable() {
                        self.failed.push(failed);
                    }
                }
            }
        }
    }

    /// Sends the Events of the first eviction whose pod is removed.
    async fn report_one(&mut self) -> bool {
        let Some(at) = self.jobs.iter().position(|job| job.outcome.is_some()) else {
            return true;
        };
        let Some(job) = self.jobs.get_mut(at) else {
            return true;
        };
        let e = &job.eviction;
        let event = if e.namespace.is_empty() {
            // Its name is not known: the node's Event has to do.
            Ok(())
        } else {
            self.events.about_pod(&self.connection, &e.into()).await
        };
        let event = match event {
            Ok(()) if !e.shadow => self.events.about_node(&self.connection, e).await,
            other => other,
        };
        let is_reported = match event {
            Ok(()) => true,
            Err(error) => {
                job.take_refusal(&error, &self.connection);
                job.attempts >= ATTEMPTS
            }
        };
        match self.jobs.remove(at) {
            Some(job) if is_reported => self.finish(job),
            // An Event that is not taken now holds up no other.
            Some(job) => self.jobs.push_back(job),
            None => {}
        }
        is_reported
    }

    fn finish(&self, job: Job) {
        let outcome = job.outcome.unwrap_or_default();
        let pod = format!("{}/{}", job.eviction.namespace, job.eviction.name);
        tracing::info!(pod, outcome, "the eviction is reported");
        let record = Record::Reported(Reported {
            id: job.eviction.id,
            time: jiff::Timestamp::now().to_string(),
            outcome,
        });
        // The queue logs what it cannot take; the next agent reports such an eviction once more.
        let _ = self.journal.append(record);
        self.connection.counters.reported.add();
    }
}

impl Job {
    /// An eviction that is in the journal, with the condition that was sent.
    pub fn new(eviction: EvictionRecord, announced: Option<Announcement>) -> Self {
        Self {
            announced,
            // Nothing was killed, and nothing is deleted.
            outcome: eviction.shadow.then(|| "shadow".to_owned()),
            eviction,
            attempts: 0,
            status_attempts: 0,
            is_unknown: false,
        }
    }

    fn is_nameless(&self) -> bool {
        self.outcome.is_none() && self.eviction.namespace.is_empty()
    }

    /// Takes its name from those that the API server has listed, which has no such pod if there is none.
    fn take_name(&mut self, names: &BTreeMap<String, (String, String)>) {
        match names.get(&self.eviction.uid) {
            Some((namespace, name)) => {
                self.eviction.namespace.clone_from(namespace);
                self.eviction.name.clone_from(name);
            }
            None => self.is_unknown = true,
        }
    }

    /// A pod that is known by its cgroup only has no name yet.
    fn find_name(&mut self, known: impl FnOnce(&str) -> Option<Pod>) {
        if self.eviction.namespace.is_empty()
            && let Some(pod) = known(&self.eviction.uid)
        {
            self.eviction.namespace = pod.namespace;
            self.eviction.name = pod.name;
            self.eviction.uid = pod.uid;
        }
    }

    /// Takes a refusal; after one too many the eviction counts as reported.
    fn take_refusal(&mut self, error: &ApiError, connection: &ApiClient) {
        if error.is_retryable() {
            return;
        }
        self.attempts += 1;
        // Logged and counted once, whatever else is refused after that.
        if self.attempts != ATTEMPTS {
            return;
        }
        connection.counters.reports_failed.add();
        tracing::error!(
            pod = format!("{}/{}", self.eviction.namespace, self.eviction.name),
            %error,
            "the API server does not take the report"
        );
        self.outcome
            .get_or_insert_with(|| format!("refused: {error}"));
    }
}

/// Outcome of the removal of a pod.
struct Removed {
    /// `None` when its name is not known yet.
    outcome: Option<String>,
    /// Why its status was not taken, where it should have stayed.
    refusal: Option<ApiError>,
}

impl Removed {
    fn by(removal: Removal) -> Self {
        Self {
            outcome: Some(removal.as_str().to_owned()),
            refusal: None,
        }
    }
}

/// Whether an eviction of this boot was so long ago that its pod may run anew for good.
pub fn is_old(eviction: &EvictionRecord) -> bool {
    let age = monotonic_ns().saturating_sub(eviction.stages.signalled);
    age > UNDER_WAY_NS.cast_unsigned()
}

/// Condition, unless it was sent before, and DELETE; what came of it.
async fn delete(
    connection: &ApiClient,
    eviction: &EvictionRecord,
    is_announced: bool,
) -> Result<String, ApiError> {
    if !is_announced && eviction_api::announces_disruption(eviction) {
        set_condition(connection, eviction).await;
    }
    let pod = PodRef::from(eviction);
    let removal = eviction_api::delete(connection, pod, DEAD_GRACE_SECONDS).await?;
    Ok(removal.as_str().to_owned())
}

/// Between requests without an answer.
pub(crate) fn pauses() -> ExponentialBackoff {
    ExponentialBuilder::default()
        .with_min_delay(PAUSES.0)
        .with_max_delay(PAUSES.1)
        .with_jitter()
        .without_max_times()
        .build()
}

async fn sleep(duration: Option<Duration>) {
    let until = Instant::now() + duration.unwrap_or_default();
    tokio::time::sleep_until(until.into()).await;
}
