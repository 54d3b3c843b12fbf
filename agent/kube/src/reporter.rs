//! Reports evictions to the API server: DELETEs first, Events after. No DELETE waits for one about another
//! namespace, and no Event for a DELETE: a webhook that hangs holds up the pods of its namespaces. Events are sent one
//! after the other.
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

use evictd_config::EvictedPods;
use evictd_engine::{Cause, Pod};
use evictd_policy::PolicyEvaluator;
use evictd_store::{
    disk_queue::DiskQueue,
    record::{EvictionRecord, Record, Reported},
    restore::UNDER_WAY_NS,
};
use evictd_sys::clock::{boot_id, monotonic_ns};
use futures::{
    StreamExt as _,
    future::{BoxFuture, join},
    stream::FuturesUnordered,
};
use tokio::{sync::mpsc, time::sleep_until};

use crate::{
    announcement::{Announcement, end_of, set_condition},
    backoff::Backoff,
    client::{ApiClient, ApiError},
    events::Events,
    eviction_api::{self, DEAD_GRACE_SECONDS, PodRef, Removal},
    watch::pods::WatchedPods,
};

/// Evictions that may wait to be taken over by the reporter; more stay in the journal for the next start.
pub const QUEUE: usize = 1024;
/// Pods that are deleted at once; half of these places are kept for the first attempts.
const AT_ONCE: usize = 16;
/// The same with the first of each namespace.
const MAX_AT_ONCE: usize = 64;
/// How many of them may be of one namespace: its webhook may hang, and others find a place all the same.
const AT_ONCE_OF_NAMESPACE: usize = 4;
/// Refusals that time does not mend (missing rights, invalid) before an eviction or an Event is given up.
pub(crate) const ATTEMPTS: u32 = 8;
/// They take so long at least: others' success sends what was refused again at once.
const REFUSED_FOR: Duration = Duration::from_secs(10);
/// First and longest delay after a request without an answer.
pub(crate) const RETRY_DELAYS: (Duration, Duration) =
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
    /// Refusals of the DELETE, and then of the Events.
    attempts: u32,
    /// Time of the first of them.
    refused: Option<Instant>,
    /// Whether the Event about the pod was taken, and the one about the node.
    has_pod_event: bool,
    has_node_event: bool,
    /// Whether the refusal was logged and counted.
    is_refusal_logged: bool,
    /// Patches of the status without an answer.
    status_attempts: u32,
    /// It did not succeed at once, and waits for its next turn.
    is_tried: bool,
    /// The kubelet runs the pod again, whose Events are sent.
    is_taken_back: bool,
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
    pod_deleter: PodDeleter,
    event_sender: EventSender,
}

/// Sees to it that evicted pods do not run again.
struct PodDeleter {
    client: Arc<ApiClient>,
    pods: Arc<WatchedPods>,
    policies: Arc<PolicyEvaluator>,
    node: String,
    /// ID of this boot; empty where it is not known.
    boot: String,
    /// Evictions whose pods are to be removed: new ones first, then those that are tried again.
    jobs: VecDeque<Job>,
    requests: FuturesUnordered<BoxFuture<'static, Answer>>,
    /// Namespaces of the pods that are being removed.
    namespaces: Vec<String>,
    /// Whether the API server is being asked for names.
    asks_names: bool,
    retry: Retry,
    /// Where evictions go when their pods are removed: as many as are unreported can wait there.
    removed: mpsc::UnboundedSender<Job>,
    /// Number of evictions that were taken and are not reported, for the end of the agent.
    unreported: Arc<AtomicUsize>,
    evicted_pods: EvictedPods,
    /// Evictions for files whose pods are not deleted yet, by their ids: until when their files are awaited, in
    /// nanoseconds of CLOCK_MONOTONIC.
    awaited: BTreeMap<String, u64>,
    /// Pods that the kubelet may still take back.
    failed: Vec<FailedPod>,
    /// Time of the last look at the pods that the kubelet may take back.
    looked: Instant,
    /// Whether it was logged that the status was refused.
    is_refusal_logged: bool,
}

/// Sends the Events of evictions whose pods are removed.
struct EventSender {
    client: Arc<ApiClient>,
    journal: DiskQueue,
    events: Events,
    removed: mpsc::UnboundedReceiver<Job>,
    /// Evictions with Events that were not taken, in the order in which they are tried again.
    jobs: VecDeque<Job>,
    retry: Retry,
    unreported: Arc<AtomicUsize>,
}

/// What has come of a request.
enum Answer {
    Removed(Box<Job>, Result<Removed, ApiError>),
    Names(Vec<Job>, Result<(), ApiError>),
}

/// Namespaces and names of pods by their UIDs.
type Names = BTreeMap<String, (String, String)>;

/// When what did not succeed is tried again.
struct Retry {
    backoff: Backoff,
    at: Instant,
}

impl Retry {
    fn at_once() -> Self {
        Self {
            backoff: Backoff::new(RETRY_DELAYS),
            at: Instant::now(),
        }
    }

    fn is_due(&self) -> bool {
        self.at <= Instant::now()
    }

    /// Begins a delay; those that fail within one make it no longer.
    fn delay(&mut self) {
        if self.is_due() {
            self.at = Instant::now() + self.backoff.next_delay();
        }
    }
}

impl Reporter {
    /// A reporter that starts with what an earlier agent has left. `policies` know what runs on this node.
    pub fn new(
        client: Arc<ApiClient>,
        journal: DiskQueue,
        (pods, policies): (Arc<WatchedPods>, Arc<PolicyEvaluator>),
        node: &str,
        evicted_pods: EvictedPods,
        left_over: Vec<EvictionRecord>,
    ) -> Self {
        let (sender, removed) = mpsc::unbounded_channel();
        let unreported = Arc::new(AtomicUsize::new(left_over.len()));
        let event_sender = EventSender {
            client: Arc::clone(&client),
            journal,
            events: Events::new(node),
            removed,
            jobs: VecDeque::new(),
            retry: Retry::at_once(),
            unreported: Arc::clone(&unreported),
        };
        let pod_deleter = PodDeleter {
            client,
            pods,
            policies,
            node: node.to_owned(),
            boot: boot_id(),
            jobs: left_over.into_iter().map(|e| Job::new(e, None)).collect(),
            requests: FuturesUnordered::new(),
            namespaces: Vec::new(),
            asks_names: false,
            retry: Retry::at_once(),
            removed: sender,
            unreported,
            evicted_pods,
            awaited: BTreeMap::new(),
            failed: Vec::new(),
            looked: Instant::now(),
            is_refusal_logged: false,
        };
        Self {
            pod_deleter,
            event_sender,
        }
    }

    /// Evictions that were taken and are not reported.
    pub fn unreported(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.pod_deleter.unreported)
    }

    /// Reports until the queue is closed and what it had was tried; the journal knows what is left.
    pub async fn run(self, queue: mpsc::Receiver<Job>) {
        // Without the one the other comes to its end.
        join(self.pod_deleter.run(queue), self.event_sender.run()).await;
    }
}

impl PodDeleter {
    async fn run(mut self, mut queue: mpsc::Receiver<Job>) {
        let mut is_closed = false;
        // As many as an earlier agent has left, and some more.
        let most_waiting = self.jobs.len() + queue.max_capacity();
        self.await_files_of_left_over();
        loop {
            self.look_for_taken_back();
            self.begin();
            if is_closed && self.requests.is_empty() {
                return;
            }
            let is_paused = !self.retry.is_due() && self.jobs.iter().any(|job| job.is_tried);
            let is_nameless = self.jobs.iter().any(Job::is_nameless);
            tokio::select! {
                next = queue.recv(), if !is_closed => match next {
                    Some(job) if self.jobs.len() + self.requests.len() < most_waiting => {
                        self.take(job);
                    }
                    // The journal keeps it for the next start.
                    Some(_) => self.client.counters.reports_deferred.add(),
                    None => is_closed = true,
                },
                Some(answer) = self.requests.next() => self.finish(answer),
                () = sleep_until(self.retry.at.into()), if is_paused => {}
                () = self.pods.changed_for_reports.notified(), if is_nameless => {
                    self.retry.at = Instant::now();
                }
                () = tokio::time::sleep(TAKEN_BACK_INTERVAL), if !self.failed.is_empty() => {}
            }
        }
    }

    /// Takes an eviction in, before those that wait already.
    fn take(&mut self, job: Job) {
        self.unreported.fetch_add(1, Ordering::Relaxed);
        self.await_files(&job);
        self.jobs.push_front(job);
    }

    /// Begins with all that find a place; those that were tried before wait for the end of a pause.
    fn begin(&mut self) {
        let is_due = self.retry.is_due();
        let mut nameless = Vec::new();
        for mut job in std::mem::take(&mut self.jobs) {
            if job.is_tried && !is_due {
                self.jobs.push_back(job);
                continue;
            }
            self.pods.with(|store| {
                job.find_name(|uid| store.get(uid).cloned());
            });
            if job.is_nameless() {
                nameless.push(job);
            } else if job.outcome.is_some() || self.has_place(&job) {
                self.remove(job);
            } else {
                self.jobs.push_back(job);
            }
        }
        self.ask_names(nameless);
    }

    fn has_place(&self, job: &Job) -> bool {
        let taken = &self.namespaces;
        let of_namespace = taken.iter().filter(|of| **of == job.eviction.namespace);
        let part = if job.is_tried { 2 } else { 1 };
        match of_namespace.count() {
            // Other namespaces may hang.
            0 if !job.is_tried => taken.len() < MAX_AT_ONCE,
            here => taken.len() < AT_ONCE / part && here < AT_ONCE_OF_NAMESPACE / part,
        }
    }

    fn remove(&mut self, mut job: Job) {
        let ends = |pod: &Pod| pod.uid != job.eviction.uid || pod.ends_by_api();
        let known = match &job.outcome {
            None if !self.pods.with(|store| store.pods().all(ends)) => Some(STATIC),
            None if self.is_outdated(&job.eviction) => Some(RESTARTED),
            _ => None,
        };
        job.outcome = known.map(str::to_owned).or(job.outcome);
        if job.outcome.is_some() {
            self.done(job);
            return;
        }
        let evicted_pods = end_of(self.evicted_pods, &job.eviction);
        if evicted_pods == EvictedPods::Fail {
            self.pods.note_own_eviction(&job.eviction.uid);
        }
        self.namespaces.push(job.eviction.namespace.clone());
        let client = Arc::clone(&self.client);
        self.requests.push(Box::pin(async move {
            let removed = job.remove(&client, evicted_pods).await;
            Answer::Removed(Box::new(job), removed)
        }));
    }

    /// The watch may be behind, or gone: names that it has not brought are asked for, of all such pods at once.
    fn ask_names(&mut self, mut nameless: Vec<Job>) {
        if self.asks_names || nameless.is_empty() {
            self.jobs.extend(nameless);
        } else if self.pods.with(|store| store.is_synced()) {
            self.asks_names = true;
            let (client, node) = (Arc::clone(&self.client), self.node.clone());
            self.requests.push(Box::pin(async move {
                let names = eviction_api::names_on(&client, &node).await;
                if let Ok(names) = &names {
                    nameless.iter_mut().for_each(|job| job.take_name(names));
                }
                Answer::Names(nameless, names.map(drop))
            }));
        } else {
            nameless.into_iter().for_each(|job| self.try_again(job));
        }
    }

    fn try_again(&mut self, mut job: Job) {
        let is_first = !job.is_tried
            && !self
                .jobs
                .iter()
                .any(|job| job.is_tried && self.awaited.contains_key(&job.eviction.id));
        job.is_tried = true;
        self.await_files(&job);
        if is_first && self.awaited.contains_key(&job.eviction.id) {
            let pod = job.eviction.pod();
            tracing::warn!(
                pod,
                "an evicted pod is not deleted yet: others are evicted for files only where that is urgent"
            );
        }
        self.jobs.push_back(job);
        self.retry.delay();
    }

    /// Until a pod is deleted. The kubelet removes its files then: where it went for those, the next one would go in
    /// vain before.
    fn await_files(&mut self, job: &Job) {
        let eviction = &job.eviction;
        let cause = Cause::named(&eviction.signal);
        // A tenant may have any number of pods above limits of their own: one whose DELETE is refused holds back no other.
        if matches!(cause, Some(Cause::LocalStorage(_))) && job.refused.is_some() {
            if self.awaited.remove(&eviction.id).is_some() {
                self.publish_awaited();
            }
            return;
        }
        let went_for_files = cause.is_some_and(Cause::is_of_files);
        if job.outcome.is_none() && went_for_files && eviction.boot() == self.boot {
            let signalled = eviction.stages.signalled;
            let until = signalled.saturating_add(UNDER_WAY_NS.cast_unsigned());
            self.awaited.insert(eviction.id.clone(), until);
            self.publish_awaited();
        }
    }

    fn await_files_of_left_over(&mut self) {
        let jobs = std::mem::take(&mut self.jobs);
        jobs.iter().for_each(|job| self.await_files(job));
        self.jobs = jobs;
    }

    fn publish_awaited(&mut self) {
        let now = monotonic_ns();
        self.awaited.retain(|_, until| *until > now);
        let until = self.awaited.values().max().copied();
        let limiter = self.policies.limiter();
        limiter.await_removals(until.unwrap_or(0));
    }

    fn finish(&mut self, answer: Answer) {
        let (mut job, removed) = match answer {
            Answer::Removed(job, removed) => (job, removed),
            Answer::Names(jobs, Ok(())) => {
                self.asks_names = false;
                jobs.into_iter()
                    .rev()
                    .for_each(|job| self.jobs.push_front(job));
                return;
            }
            Answer::Names(jobs, Err(error)) => {
                self.asks_names = false;
                tracing::debug!(%error, "the names of evicted pods are not known yet");
                jobs.into_iter().for_each(|job| self.try_again(job));
                return;
            }
        };
        let namespace = &job.eviction.namespace;
        if let Some(at) = self.namespaces.iter().position(|taken| taken == namespace) {
            self.namespaces.swap_remove(at);
        }
        match removed {
            Ok(Removed { removal, refusal }) => {
                job.outcome = Some(removal.as_str().to_owned());
                self.log_refusal(refusal);
                if removal == Removal::Failed {
                    self.failed.push(FailedPod {
                        eviction: job.eviction.clone(),
                        since: Instant::now(),
                    });
                }
            }
            Err(error) => {
                job.status_attempts += 1;
                job.take_refusal(&error, &self.client);
            }
        }
        if job.outcome.is_none() {
            self.try_again(*job);
            return;
        }
        self.retry = Retry::at_once();
        self.done(*job);
    }

    /// The pod does not run again: only its Events are left to send.
    fn done(&mut self, mut job: Job) {
        // After a refusal the files stay as well.
        if !job.is_refusal_logged && self.awaited.remove(&job.eviction.id).is_some() {
            self.publish_awaited();
        }
        if !job.is_taken_back {
            (job.attempts, job.refused) = (0, None);
            // The receiver lives as long as this does.
            let _ = self.removed.send(job);
            return;
        }
        self.unreported.fetch_sub(1, Ordering::Relaxed);
        if job.outcome.as_deref() == Some(Removal::Deleted.as_str()) {
            let pod = job.eviction.pod();
            tracing::warn!(
                pod,
                "the kubelet has taken an evicted pod back: it is deleted"
            );
        }
    }

    /// Whether the pod is left alone: it was evicted in another boot, or long ago, and runs anew.
    fn is_outdated(&self, eviction: &EvictionRecord) -> bool {
        eviction.boot() != self.boot
            || is_old(eviction)
                && self
                    .policies
                    .runs_anew(&eviction.uid, eviction.stages.signalled)
    }

    fn log_refusal(&mut self, refusal: Option<ApiError>) {
        if let Some(error) = refusal
            && !std::mem::replace(&mut self.is_refusal_logged, true)
        {
            tracing::warn!(
                %error,
                "the API server refuses phase Failed for an evicted pod: such pods are deleted instead"
            );
        }
    }

    /// Has evicted pods deleted that the kubelet runs all the same: it has written its own status over that of the
    /// eviction.
    fn look_for_taken_back(&mut self) {
        if self.looked.elapsed() < TAKEN_BACK_INTERVAL {
            return;
        }
        self.looked = Instant::now();
        let (first, last) = MAY_BE_TAKEN_BACK;
        for failed in std::mem::take(&mut self.failed) {
            // The store has no pods that are over.
            let is_it = |pod: &Pod| pod.uid == failed.eviction.uid && !pod.is_deleting;
            let age = failed.since.elapsed();
            if age >= first && self.pods.with(|store| store.pods().any(is_it)) {
                self.unreported.fetch_add(1, Ordering::Relaxed);
                self.jobs.push_front(Job {
                    is_taken_back: true,
                    ..Job::new(failed.eviction, None)
                });
            } else if age < last {
                self.failed.push(failed);
            }
        }
    }
}

impl EventSender {
    async fn run(mut self) {
        loop {
            self.give_up_beyond_room();
            let flush = self.events.next_flush();
            let due = Instant::now() + flush.unwrap_or_default();
            tokio::select! {
                next = self.removed.recv() => match next {
                    Some(job) => self.report(job).await,
                    None => return,
                },
                () = sleep_until(self.retry.at.into()), if !self.jobs.is_empty() => {
                    if let Some(job) = self.jobs.pop_front() {
                        self.report(job).await;
                    }
                }
                () = sleep_until(due.into()), if flush.is_some() => {
                    if let Err(error) = self.events.flush(&self.client).await {
                        tracing::debug!(%error, "the node's Event keeps its old count");
                    }
                }
            }
        }
    }

    /// Sends the Events of an eviction. One that is not taken now holds up no other.
    async fn report(&mut self, mut job: Job) {
        if let Err(error) = self.send(&mut job).await {
            job.take_refusal(&error, &self.client);
            if !job.is_given_up() {
                self.jobs.push_back(job);
                self.retry.delay();
                return;
            }
        }
        self.retry = Retry::at_once();
        self.finish(job);
    }

    /// Gives up the evictions whose Events have waited for longest, so that their number is bounded.
    fn give_up_beyond_room(&mut self) {
        while self.jobs.len() + self.removed.len() > QUEUE {
            self.jobs.extend(self.removed.try_recv());
            let signalled = |job: &Job| job.eviction.stages.signalled;
            let jobs = self.jobs.iter().enumerate();
            let oldest = jobs.min_by_key(|(_, job)| signalled(job)).map(|(at, _)| at);
            if let Some(mut job) = oldest.and_then(|at| self.jobs.remove(at)) {
                job.give_up("too many wait", &self.client);
                self.finish(job);
            }
        }
    }

    /// Sends those that were not taken yet: the pod's namespace may refuse its own alone.
    async fn send(&mut self, job: &mut Job) -> Result<(), ApiError> {
        let eviction = &job.eviction;
        let mut of_pod = Ok(());
        // Where its name is not known the node's Event has to do, if there is one.
        if !job.has_pod_event && !eviction.namespace.is_empty() {
            let event = eviction.into();
            of_pod = self.events.about_pod(&self.client, &event).await;
            job.has_pod_event = of_pod.is_ok();
        }
        if !job.has_node_event && not_killed(eviction).is_none() {
            let of_node = self.events.about_node(&self.client, eviction).await;
            job.has_node_event = of_node.is_ok();
            return of_pod.and(of_node);
        }
        of_pod
    }

    fn finish(&self, job: Job) {
        let outcome = job.outcome.unwrap_or_default();
        let pod = job.eviction.pod();
        tracing::info!(pod, outcome, "the eviction is reported");
        let record = Record::Reported(Reported {
            id: job.eviction.id,
            time: jiff::Timestamp::now().to_string(),
            outcome,
        });
        // The queue logs what it cannot take; the next agent reports such an eviction once more.
        let _ = self.journal.append(record);
        self.unreported.fetch_sub(1, Ordering::Relaxed);
        if !job.is_refusal_logged {
            self.client.counters.reported.add();
        }
    }
}

impl Job {
    /// An eviction that is in the journal, with the condition that was sent.
    pub fn new(eviction: EvictionRecord, announced: Option<Announcement>) -> Self {
        Self {
            announced,
            outcome: not_killed(&eviction),
            eviction,
            attempts: 0,
            refused: None,
            has_pod_event: false,
            has_node_event: false,
            is_refusal_logged: false,
            status_attempts: 0,
            is_tried: false,
            is_taken_back: false,
        }
    }

    fn is_nameless(&self) -> bool {
        self.outcome.is_none() && self.eviction.namespace.is_empty()
    }

    /// Takes its name from those that the API server has listed, which has no such pod if there is none.
    fn take_name(&mut self, names: &Names) {
        match names.get(&self.eviction.uid) {
            Some((namespace, name)) => {
                self.eviction.namespace.clone_from(namespace);
                self.eviction.name.clone_from(name);
            }
            None => self.outcome = Some(Removal::Gone.as_str().to_owned()),
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

    /// Does what is needed so that the pod does not run again, and returns what came of it.
    async fn remove(
        &mut self,
        client: &ApiClient,
        evicted_pods: EvictedPods,
    ) -> Result<Removed, ApiError> {
        let is_announced = match self.announced.take() {
            Some(announced) => announced.finish().await,
            None => false,
        };
        let eviction = &self.eviction;
        let pod = PodRef::from(eviction);
        let mut refusal = None;
        if self.is_taken_back {
            // A watch that was away shows what was before.
            if !eviction_api::is_active(client, pod).await? {
                return Ok(Removed::by(Removal::Gone));
            }
        } else if evicted_pods == EvictedPods::Fail {
            match eviction_api::fail(client, eviction).await {
                Ok(removal) => return Ok(Removed::by(removal)),
                Err(e) if e.is_retryable() && self.status_attempts < STATUS_ATTEMPTS => {
                    return Err(e);
                }
                // Another pod by that name, or other writers were always first: the answer to the DELETE decides.
                Err(e) if e.code() == 409 => {}
                Err(e) => refusal = Some(e),
            }
        }
        let is_announced = is_announced || self.is_taken_back;
        if !is_announced && eviction_api::announces_disruption(eviction) {
            set_condition(client, eviction).await;
        }
        let removal = eviction_api::delete(client, pod, DEAD_GRACE_SECONDS).await?;
        Ok(Removed { removal, refusal })
    }

    fn is_given_up(&self) -> bool {
        let lasts = self
            .refused
            .is_some_and(|first| first.elapsed() >= REFUSED_FOR);
        self.attempts >= ATTEMPTS && lasts
    }

    /// Takes a refusal; after one too many the request is given up.
    fn take_refusal(&mut self, error: &ApiError, client: &ApiClient) {
        if error.is_retryable() {
            return;
        }
        self.attempts += 1;
        self.refused.get_or_insert_with(Instant::now);
        if self.is_given_up() {
            self.give_up(&error.to_string(), client);
        }
    }

    /// Gives the request up. Logged and counted once, whatever else is refused after that.
    fn give_up(&mut self, error: &str, client: &ApiClient) {
        if std::mem::replace(&mut self.is_refusal_logged, true) {
            return;
        }
        client.counters.reports_failed.add();
        let pod = self.eviction.pod();
        if self.outcome.is_some() {
            tracing::error!(
                pod,
                error,
                "the API server does not take the Event of an eviction"
            );
            return;
        }
        tracing::error!(pod, error, "the API server does not take the report");
        self.outcome = Some(format!("refused: {error}"));
    }
}

/// The outcome of a decision by which no pod was killed, and so none is deleted.
fn not_killed(eviction: &EvictionRecord) -> Option<String> {
    let refusal = eviction.error.as_ref();
    let is_shadow = eviction.shadow.then(|| "shadow".to_owned());
    is_shadow.or_else(|| refusal.map(|error| format!("refused: SIGKILL: {error}")))
}

/// Outcome of the removal of a pod.
struct Removed {
    removal: Removal,
    /// Why its status was not taken, where it should have stayed.
    refusal: Option<ApiError>,
}

impl Removed {
    fn by(removal: Removal) -> Self {
        Self {
            removal,
            refusal: None,
        }
    }
}

/// Whether an eviction of this boot was so long ago that its pod may run anew for good.
pub fn is_old(eviction: &EvictionRecord) -> bool {
    let age = monotonic_ns().saturating_sub(eviction.stages.signalled);
    age > UNDER_WAY_NS.cast_unsigned()
}
