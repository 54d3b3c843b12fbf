//! Soft eviction: pods are asked to go, and may take their time.
//!
//! A dry run of the Eviction API says whether PodDisruptionBudgets let a pod go; a DELETE with the same preconditions
//! follows. A pod that its budget protects is passed over for the next candidate, and so are static pods, which the API
//! server cannot end. Before each request it is checked whether evictions are paused, held back or used up by now, and
//! whether the threshold is met still: the decision may be minutes old.
//!
//! When budgets protect all candidates for longer than is configured, or the hard threshold is met, the first candidate
//! goes nevertheless, by DELETE; the journal, an Event and a counter say so and why.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use evictd_config::Config;
use evictd_engine::{Pod, Signal, message::EVICTED, model::settings::Mode};
use evictd_policy::{PolicyEvaluator, evaluator::BlockReason};
use evictd_store::{
    disk_queue::DiskQueue,
    record::{Record, RequestRecord, counted::Counted},
};
use tokio::sync::{Mutex, oneshot};

use crate::{
    backoff::Backoff,
    client::{ADMISSION_DEADLINE, ApiClient, ApiError},
    event_queue::EventQueue,
    events::{EventSpec, OVERRIDDEN, SERIES_GAP, request_note},
    eviction_api::{self, PodRef, Removal},
    reporter::RETRY_DELAYS,
};

/// Time that a request waits for the disk.
const DISK_TIME: Duration = Duration::from_secs(2);
/// Without a request for so long pressure has been over in between.
pub(crate) const RELIEVED: Duration = Duration::from_secs(60);
/// Pods that are on their way and need not be asked again; the oldest are forgotten.
const MAX_REQUESTED: usize = 256;

/// Time to withdraw a condition from a pod that is not deleted: no other pod is asked meanwhile. One attempt has all of the
/// time that webhooks may take.
const WITHDRAWAL_TIME: Duration = ADMISSION_DEADLINE.saturating_add(Duration::from_secs(5));

/// A pod that may be evicted through the API.
pub type SoftCandidate = evictd_engine::soft::SoftCandidate<Pod>;
/// A request for one eviction through the API.
pub type SoftRequest = evictd_engine::soft::SoftEvictionRequest<Pod>;

/// Outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SoftOutcome {
    /// The candidate at this index goes.
    Evicted {
        /// Position among the candidates.
        index: usize,
        /// Request as it stands in the journal.
        asked: Box<RequestRecord>,
    },
    /// The candidate at this index was gone already: its memory is on its way back, no other pod needs to go for now.
    Gone {
        /// Position among the candidates.
        index: usize,
    },
    /// Budgets protect all candidates.
    ProtectedByBudgets {
        /// Time for which budgets have protected all candidates.
        since: Duration,
    },
    /// A pause, the fleet brake, policies or limits hold back the pods that could have been asked.
    Blocked {
        /// Reason why the last pod was held back.
        by: BlockReason,
        /// Number of pods that policies and limits have denied.
        denied: usize,
    },
    /// The threshold is not met any more.
    NotNeeded,
    /// No pod could be asked: the API server does not answer or is busy, the agent may not ask, or there is no
    /// candidate.
    NoneRequested,
}

/// Why a pod was not asked to go.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("the threshold is not met any more")]
    NotNeeded,
    #[error("{0}")]
    Blocked(BlockReason),
    #[error(transparent)]
    Api(#[from] ApiError),
}

/// What came of a DELETE.
enum Deleted {
    /// The pod goes, or was gone.
    Yes(Removal),
    /// The pod lives on.
    No(Refusal),
    /// Neither the answer nor the API server's list of pods tells.
    Unknown(ApiError),
}

/// How long budgets have protected all candidates of a signal without a break.
struct ProtectedByBudgets {
    since: Instant,
    /// Last moment to which `since` is right.
    known: Instant,
    /// Last request for this signal: after [`RELIEVED`] without one the time begins anew.
    last_request: Instant,
}

/// Evicts through the API.
pub struct SoftEvictor {
    client: Arc<ApiClient>,
    journal: DiskQueue,
    policies: Arc<PolicyEvaluator>,
    events: EventQueue,
    mode: Mode,
    override_after: Option<Duration>,
    /// Signals whose candidates are all protected by budgets.
    budget_blocked: BTreeMap<Signal, ProtectedByBudgets>,
    /// UIDs of the pods that are on their way.
    recently_requested: VecDeque<String>,
    /// For each signal the last time at which a pod was asked for it: the node has one Event for all that follow each other.
    node_events: BTreeMap<String, Instant>,
    /// Whether it was logged that the agent may not ask; logged again when pressure was over in between.
    is_forbidden_logged: bool,
    /// Requests that are in the journal, with their signals, by the pod's UID: the same pod is asked again and again while
    /// its budget protects it. One is forgotten when its pod is no candidate of its signal any more.
    noted: BTreeMap<String, (Signal, String)>,
    /// Held from a DELETE until it is in the journal and told.
    under_way: Arc<Mutex<()>>,
}

impl SoftEvictor {
    /// An evictor with the configured grace period and patience, whose Events go this way.
    pub fn new(
        client: Arc<ApiClient>,
        journal: DiskQueue,
        policies: Arc<PolicyEvaluator>,
        events: EventQueue,
        config: &Config,
    ) -> Self {
        Self {
            client,
            journal,
            policies,
            events,
            mode: config.mode,
            override_after: config.cluster.as_ref().and_then(|c| c.soft_override_after),
            budget_blocked: BTreeMap::new(),
            recently_requested: VecDeque::new(),
            node_events: BTreeMap::new(),
            is_forbidden_logged: false,
            noted: BTreeMap::new(),
            under_way: Arc::default(),
        }
    }

    /// What is held from a DELETE until it is in the journal and told: for as long as another holds it, no pod is
    /// deleted.
    pub fn under_way(&self) -> Arc<Mutex<()>> {
        Arc::clone(&self.under_way)
    }

    /// Pressure is over: a missing right is logged again.
    pub fn relieved(&mut self) {
        self.is_forbidden_logged = false;
    }

    /// Checks whether the pod may go, as the hard paths do just before SIGKILL. `is_for_hard`: against its budget, because
    /// the hard threshold is met.
    fn may_go(&self, request: &SoftRequest, pod: &Pod, is_for_hard: bool) -> Result<(), Refusal> {
        if !is_needed(request) || is_for_hard && !is_hard_due(request) {
            return Err(Refusal::NotNeeded);
        }
        let held = self.policies.block_reason(&pod.uid);
        held.map_or(Ok(()), |by| Err(Refusal::Blocked(by)))
    }

    /// One pod, if the Eviction API would let it go; `None` where its budget protects it.
    async fn ask(
        &mut self,
        request: &SoftRequest,
        index: usize,
        candidate: &SoftCandidate,
    ) -> Result<Option<SoftOutcome>, Refusal> {
        self.may_go(request, &candidate.pod, false)?;
        let mut record = self.record(candidate);
        match self.noted.get(&record.uid) {
            Some((_, id)) => record.id.clone_from(id),
            None => {
                let noted = (request.signal, record.id.clone());
                self.noted.insert(record.uid.clone(), noted);
                // On disk before the API server is asked.
                self.write_down(Record::Requested(Box::new(record.clone())))
                    .await;
            }
        }
        let (pod, grace) = (&candidate.pod, record.grace_period_seconds);
        let outcome = match eviction_api::may_evict(&self.client, pod.into(), grace).await {
            Ok(Removal::Deleted) => self.remove(request, index, pod, record, false).await?,
            Ok(removal) => self.done(index, pod, removal, record).await,
            Err(error) if error.is_budget() => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        Ok(Some(outcome))
    }

    /// Does what the Eviction API does for a pod that may go. Soft evictions are the kubelet's too, for pressure alone.
    async fn remove(
        &mut self,
        request: &SoftRequest,
        index: usize,
        pod: &Pod,
        record: RequestRecord,
        is_for_hard: bool,
    ) -> Result<SoftOutcome, Refusal> {
        let under_way = self.under_way();
        let _held = under_way.lock().await;
        self.may_go(request, pod, is_for_hard)?;
        // One that has completed since it was chosen would lose its status and logs, and gives back nothing.
        if let Ok(true) = eviction_api::is_over(&self.client, pod.into()).await {
            return Ok(SoftOutcome::Gone { index });
        }
        let target = PodRef::from(pod);
        let set = eviction_api::set_disruption_target(
            &self.client,
            target,
            record.message.trim_end(),
            &record.time,
            // Nothing restarts a pod that was not killed: there is time.
            ADMISSION_DEADLINE,
        )
        .await;
        if let Err(error) = &set {
            tracing::debug!(%pod, %error, "DisruptionTarget is not set");
        }
        let may_be_set = set.err().is_none_or(|error| error.may_be_done());
        let grace = record.grace_period_seconds;
        let deleted = match self.may_go(request, pod, is_for_hard) {
            Ok(()) => self.delete(target, grace).await,
            Err(refusal) => Deleted::No(refusal),
        };
        match deleted {
            Deleted::Yes(removal) => Ok(self.done(index, pod, removal, record).await),
            Deleted::No(refusal) => {
                if may_be_set {
                    self.withdraw_condition(target).await;
                }
                Err(refusal)
            }
            Deleted::Unknown(error) => Err(error.into()),
        }
    }

    /// Deletes a pod, and finds out whether that was done where no answer tells.
    async fn delete(&self, pod: PodRef<'_>, grace: i64) -> Deleted {
        let sent = Instant::now();
        let error = match eviction_api::delete(&self.client, pod, grace).await {
            Ok(removal) => return Deleted::Yes(removal),
            Err(error) if !error.may_be_done() => return Deleted::No(error.into()),
            Err(error) => error,
        };
        // Without an answer the server may be at it still.
        let until = match error.code() {
            0 => sent + ADMISSION_DEADLINE,
            _ => sent,
        };
        match self.is_active(pod, until).await {
            Ok(false) => Deleted::Yes(Removal::Deleted),
            Ok(true) => Deleted::No(error.into()),
            Err(_) => Deleted::Unknown(error),
        }
    }

    /// Whether a pod is neither deleted nor over, asked until the API server says that it is, or says at some moment or
    /// later that it is not. Meanwhile no other pod can be asked to go either.
    async fn is_active(&self, pod: PodRef<'_>, until: Instant) -> Result<bool, ApiError> {
        let mut backoff = Backoff::new(RETRY_DELAYS);
        loop {
            let asked = Instant::now();
            match eviction_api::is_active(&self.client, pod).await {
                Err(error) if error.is_retryable() => {}
                Ok(true) if asked < until => {}
                answer => return answer,
            }
            tokio::time::sleep(backoff.next_delay()).await;
        }
    }

    /// Withdraws DisruptionTarget from a pod that lives on: no other component would.
    async fn withdraw_condition(&self, pod: PodRef<'_>) {
        let mut backoff = Backoff::new(RETRY_DELAYS);
        let accepted = async {
            loop {
                match eviction_api::withdraw_disruption_target(&self.client, pod).await {
                    Err(error) if error.is_retryable() => {
                        tokio::time::sleep(backoff.next_delay()).await;
                    }
                    answer => return answer,
                }
            }
        };
        let error = match tokio::time::timeout(WITHDRAWAL_TIME, accepted).await {
            Ok(Ok(())) => return,
            // The pod is gone, or another one has its name.
            Ok(Err(error)) if matches!(error.code(), 404 | 409) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("not accepted within {WITHDRAWAL_TIME:?}"),
        };
        let (namespace, name) = (pod.namespace, pod.name);
        tracing::warn!(
            namespace,
            name,
            error,
            "DisruptionTarget stays on a pod that was not deleted"
        );
    }

    /// One pod against its budget.
    async fn force(
        &mut self,
        request: &SoftRequest,
        protected: &[usize],
        since: Duration,
    ) -> Option<SoftOutcome> {
        let is_for_hard = is_hard_due(request);
        let why = if is_for_hard {
            "the hard threshold is met".to_owned()
        } else if self.override_after.is_some_and(|after| since >= after) {
            format!("budgets have protected every candidate for {since:?}")
        } else {
            return None;
        };
        let index = *protected.first()?;
        let candidate = request.candidates.get(index)?;
        let pod = &candidate.pod;
        let refused = |refusal| match refusal {
            // The hard threshold alone has ended: budgets count again.
            Refusal::NotNeeded if is_needed(request) => None,
            Refusal::NotNeeded => Some(SoftOutcome::NotNeeded),
            Refusal::Blocked(by) => Some(SoftOutcome::Blocked { by, denied: 0 }),
            Refusal::Api(error) => {
                tracing::warn!(%pod, %error, "the override has failed");
                None
            }
        };
        if let Err(refusal) = self.may_go(request, pod, is_for_hard) {
            return refused(refusal);
        }
        tracing::warn!(%pod, why, "a PodDisruptionBudget is overridden");
        let record = RequestRecord {
            override_reason: Some(why),
            ..self.record(candidate)
        };
        self.write_down(Record::Requested(Box::new(record.clone())))
            .await;
        match self.remove(request, index, pod, record, is_for_hard).await {
            Ok(outcome) => {
                if let SoftOutcome::Evicted { .. } = outcome {
                    self.client.counters.pdb_overrides.add();
                }
                Some(outcome)
            }
            Err(refusal) => refused(refusal),
        }
    }

    /// Remembers and reports what has happened.
    async fn done(
        &mut self,
        index: usize,
        pod: &Pod,
        removal: Removal,
        record: RequestRecord,
    ) -> SoftOutcome {
        if self.recently_requested.len() == MAX_REQUESTED {
            self.recently_requested.pop_front();
        }
        self.recently_requested.push_back(pod.uid.clone());
        if removal != Removal::Deleted {
            return SoftOutcome::Gone { index };
        }
        // Here it is certain that limits count it.
        self.write_down(Record::Counted(Box::new(Counted::agreed(&record))))
            .await;
        self.client.counters.soft_evictions.add();
        let event = EventSpec {
            pod: pod.into(),
            id: &format!("soft-{}", pod.uid),
            time: &jiff::Timestamp::now().to_string(),
            reason: match record.override_reason {
                Some(_) => OVERRIDDEN,
                None => EVICTED,
            },
            note: request_note(&record),
            annotations: Some(&record.annotations),
        };
        self.events.about_pod(&event);
        let now = Instant::now();
        let last = self.node_events.get(&record.signal);
        let is_said = last.is_some_and(|last| now.duration_since(*last) < SERIES_GAP);
        if is_said || self.events.about_request(&record) {
            self.node_events.insert(record.signal.clone(), now);
        }
        let asked = Box::new(record);
        SoftOutcome::Evicted { index, asked }
    }

    fn record(&self, candidate: &SoftCandidate) -> RequestRecord {
        let SoftCandidate {
            pod,
            decision,
            reading,
        } = candidate;
        RequestRecord {
            may_be_refused: true,
            ..RequestRecord::new(pod, decision, *reading)
        }
    }

    /// Waits until the record is on disk, but not for long: an eviction must not fail because a disk does not answer.
    async fn write_down(&self, record: Record) {
        let (done, written) = oneshot::channel();
        // The receiver is gone when the wait was over before.
        let acknowledge = move || {
            let _ = done.send(());
        };
        if self.journal.append_then(record, acknowledge).is_ok()
            && tokio::time::timeout(DISK_TIME, written).await.is_err()
        {
            tracing::warn!(
                "the disk does not answer: a pod is asked to go before that is in the journal"
            );
        }
    }
}

impl SoftEvictor {
    /// Evicts the first of the candidates, which are in the order of eviction, that may go: one pod at a time. Where the
    /// hard threshold is met as well, budgets no longer count.
    pub async fn evict_soft(&mut self, request: &SoftRequest) -> SoftOutcome {
        let began = Instant::now();
        self.budget_blocked
            .retain(|_, blocked| began.duration_since(blocked.last_request) <= RELIEVED);
        let outcome = self.evict_first(request).await;
        // Requests are handled one at a time: the time that one takes does not count for the other signals.
        let took = began.elapsed();
        self.budget_blocked
            .values_mut()
            .for_each(|blocked| blocked.last_request += took);
        match outcome {
            SoftOutcome::Evicted { .. } | SoftOutcome::Gone { .. } => {
                self.budget_blocked.remove(&request.signal);
            }
            _ => {
                if let Some(blocked) = self.budget_blocked.get_mut(&request.signal) {
                    let now = Instant::now();
                    if !matches!(outcome, SoftOutcome::ProtectedByBudgets { .. }) {
                        // Whether budgets protect them is not known of this time.
                        blocked.since += now.duration_since(blocked.known);
                    }
                    (blocked.known, blocked.last_request) = (now, now);
                }
            }
        }
        outcome
    }

    async fn evict_first(&mut self, request: &SoftRequest) -> SoftOutcome {
        let candidates = request.candidates.iter().map(|c| c.pod.uid.as_str());
        let candidates: BTreeSet<&str> = candidates.collect();
        self.noted.retain(|uid, (signal, _)| {
            *signal != request.signal || candidates.contains(uid.as_str())
        });
        let mut protected = Vec::new();
        let (mut block_reason, mut denied) = (None, 0);
        for (index, candidate) in request.candidates.iter().enumerate() {
            let pod = &candidate.pod;
            // One that is on its way needs no second request.
            let is_requested = self.recently_requested.contains(&pod.uid);
            if !pod.can_be_deleted() || pod.is_protected(self.mode) || is_requested {
                continue;
            }
            match self.ask(request, index, candidate).await {
                Ok(Some(outcome)) => return outcome,
                Ok(None) => {
                    self.client.counters.pdb_blocked.add();
                    tracing::info!(%pod, "a PodDisruptionBudget protects the pod: the next one is asked");
                    protected.push(index);
                }
                Err(Refusal::NotNeeded) => return SoftOutcome::NotNeeded,
                Err(Refusal::Blocked(by)) => {
                    tracing::info!(%pod, %by, "the pod is not asked to go after all");
                    block_reason = Some(by);
                    denied += usize::from(by == BlockReason::Denied);
                    // What holds for all pods holds for the next one.
                    if by != BlockReason::Denied {
                        break;
                    }
                }
                // A server that cannot answer for this one cannot for the next one either, which would go for nothing.
                Err(Refusal::Api(error)) if error.is_server_wide() => {
                    tracing::warn!(%pod, %error, "no pod can be evicted through the API");
                    return SoftOutcome::NoneRequested;
                }
                // Nor will a right be there for the next one.
                Err(Refusal::Api(error)) if error.is_missing_right() => {
                    if !std::mem::replace(&mut self.is_forbidden_logged, true) {
                        tracing::warn!(%error, "no pod can be asked to go: the agent has no right to");
                    }
                    return SoftOutcome::NoneRequested;
                }
                // This pod's own trouble, such as two budgets for one pod (500), or a policy that protects it (403).
                Err(error) => tracing::warn!(%pod, %error, "the pod cannot be asked to go"),
            }
        }
        match block_reason {
            Some(by) if protected.is_empty() || by != BlockReason::Denied => {
                return SoftOutcome::Blocked { by, denied };
            }
            None if protected.is_empty() => return SoftOutcome::NoneRequested,
            _ => {}
        }
        let now = Instant::now();
        let new = ProtectedByBudgets {
            since: now,
            known: now,
            last_request: now,
        };
        let blocked = self.budget_blocked.entry(request.signal).or_insert(new);
        let since = blocked.since.elapsed();
        match self.force(request, &protected, since).await {
            Some(outcome) => outcome,
            None if !is_needed(request) => SoftOutcome::NotNeeded,
            None => SoftOutcome::ProtectedByBudgets { since },
        }
    }
}

fn is_needed(request: &SoftRequest) -> bool {
    request.is_needed.load(Ordering::Relaxed)
}

fn is_hard_due(request: &SoftRequest) -> bool {
    request.is_hard_due.load(Ordering::Relaxed)
}
