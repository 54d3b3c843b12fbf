//! The agent's side of the cluster: its watches, and what it reports.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use evictd_config::{ClusterConfig, Config};
use evictd_engine::{EvictionDecision, NodeState, Pod, node_reclaim::KnownPods, record::Departure};
use evictd_policy::{PauseState, PolicyStore};
use evictd_store::{
    disk_queue::DiskQueue,
    record::{EvictionRecord, Record, RequestRecord, oom_kill::PodName, shadow::KubeletEviction},
};
use evictd_sys::clock::{ClockJump, boottime_ns};
use tokio::{
    sync::{Mutex, mpsc, oneshot, watch as channel},
    task::JoinHandle,
};

use super::{
    access::{self, Right, TENANT_RIGHTS},
    admission,
    client::{AccessError, ApiClient, PATIENCE_AT_START},
    event_queue::EventQueue,
    followers::Followers,
    scraper_access::SCRAPER_RIGHTS,
};
use crate::{
    announcement::Announcements,
    cache::{CacheSettings, ClusterCache},
    fleet_brake::FleetBrake,
    node_status::{NodeWriter, PreviousStatus, StaleConditions},
    oom_events::OomEventLimiter,
    reporter::{Job, QUEUE, Reporter, is_old},
    soft_eviction::{SoftEvictor, SoftRequest},
    soft_task,
    watch::pods::{self, WatchedPods},
};

/// How often the Node's conditions and taints are written again while they hold: the kubelet's
/// `nodeStatusReportFrequency`.
const NODE_STATUS_REPORT: Duration = Duration::from_secs(300);
/// How long the start waits for the API server's list; without it the pods are known by their cgroups.
const FIRST_LIST: Duration = Duration::from_secs(2);
/// What an earlier agent has left stays at least for so long: by then this one has looked at every signal.
const LEFT_OVER_STAYS: Duration = Duration::from_secs(2);
/// Pods that go and that were not handed to the daemon yet.
const REQUESTED: usize = 8;

/// The cluster, as the agent sees it.
pub struct Cluster {
    client: Arc<ApiClient>,
    /// Events other than those that the reporter sends.
    events: EventQueue,
    pods: Arc<WatchedPods>,
    evictions: mpsc::Sender<Job>,
    announcements: Announcements,
    /// Evictions that an earlier agent has left long ago.
    old: Vec<EvictionRecord>,
    /// Number of evictions that the reporter has taken and not reported.
    unreported: Arc<AtomicUsize>,
    desired: channel::Sender<NodeState>,
    soft: Option<SoftTask>,
    /// Pods that were asked to go and will.
    requested: Option<mpsc::Receiver<RequestRecord>>,
    clock: ClockJump,
    oom_events: OomEventLimiter,
    begin: Option<oneshot::Sender<()>>,
    followers: Followers,
    cache: Arc<ClusterCache>,
    tasks: Tasks,
}

/// Task that asks pods to go.
struct SoftTask {
    requests: mpsc::Sender<SoftRequest>,
    /// See [`SoftEvictor::under_way`].
    under_way: Arc<Mutex<()>>,
    task: JoinHandle<()>,
}

struct Tasks {
    watch: JoinHandle<()>,
    check: JoinHandle<()>,
    cache: JoinHandle<()>,
    reporter: JoinHandle<()>,
    events: JoinHandle<()>,
    node: JoinHandle<()>,
}

impl Cluster {
    /// Opens the way to the API server and takes over what an earlier agent has left to report; the first list of pods
    /// is there, or late.
    ///
    /// # Errors
    /// A kubeconfig that cannot be used. A server that does not answer is no error.
    pub async fn start(
        config: &Config,
        cluster: &ClusterConfig,
        journal: &DiskQueue,
        left_over: Vec<EvictionRecord>,
        policies: &Arc<PolicyStore>,
        pauses: &Arc<PauseState>,
    ) -> Result<Self, AccessError> {
        let node = &cluster.node_name;
        let client = ApiClient::open(cluster.kubeconfig.clone()).await;
        let client = Arc::new(client?);
        client.set_shadow(config.shadow);
        let pods = Arc::new(WatchedPods::default());
        let fleet = cluster.fleet_brake.as_ref().map(|brake| {
            let limiter = Arc::clone(policies.evaluator().limiter());
            FleetBrake::new(Arc::clone(&client), brake.clone(), node, limiter)
        });
        let cache = Arc::new(ClusterCache::new(
            &config.state_dir,
            Arc::clone(&client),
            Arc::clone(&pods),
            Arc::clone(policies),
            Arc::clone(pauses),
            fleet.clone(),
            CacheSettings {
                uses_pause_config_map: cluster.pause_config_map.is_some(),
                follows_tenants: cluster.tenant_grace.is_some(),
            },
        ));
        let is_known = cache.restore();
        let mut followers = Followers::start(&client, cluster, policies, pauses, fleet);
        let settled = Arc::clone(&cache);
        followers.when_settled(move || settled.set_policies_known());
        let (old, left_over) = by_age(left_over, config.shadow);
        let reporter = Reporter::new(
            Arc::clone(&client),
            journal.clone(),
            (Arc::clone(&pods), Arc::clone(followers.evaluator())),
            node,
            cluster.evicted_pods,
            left_over,
        );
        let unreported = reporter.unreported();
        let (evictions, queue) = mpsc::channel(QUEUE + old.len());
        let (desired, followed) = channel::channel(NodeState::default());
        let (begin, begun) = oneshot::channel();
        let (events, sending) = EventQueue::start(&client, node);
        let watching = pods::run(Arc::clone(&client), node.clone(), Arc::clone(&pods));
        let rights = needed(config, cluster);
        let checking = check(Arc::clone(&client), cluster.clone(), rights);
        let kept = Arc::clone(&cache);
        let tasks = Tasks {
            watch: tokio::spawn(watching),
            check: tokio::spawn(checking),
            cache: tokio::spawn(async move { kept.run().await }),
            reporter: tokio::spawn(reporter.run(queue)),
            events: sending,
            node: start_node_writer(&client, config, cluster, followed, begun),
        };
        let mut started = Self {
            client,
            events,
            pods,
            evictions,
            announcements: Announcements::new(cluster.evicted_pods),
            old,
            unreported,
            desired,
            soft: None,
            requested: None,
            clock: ClockJump::new(boottime_ns(), SystemTime::now()),
            oom_events: OomEventLimiter::default(),
            begin: Some(begin),
            followers,
            cache,
            tasks,
        };
        started.wait_for_list(is_known).await;
        Ok(started)
    }

    async fn wait_for_list(&mut self, is_known: bool) {
        let pods = &self.pods;
        let listed = async {
            while !pods.with(|store| store.is_synced()) {
                pods.changed.notified().await;
            }
        };
        let listed = futures::future::join(listed, self.followers.settled());
        let patience = match is_known {
            // The cache has the names, priorities and policies of an earlier agent.
            true => PATIENCE_AT_START,
            false => FIRST_LIST,
        };
        if tokio::time::timeout(patience, listed).await.is_ok() {
            return;
        }
        if is_known {
            tracing::info!("the API server has not answered yet: what the cache has holds");
        } else {
            tracing::warn!(
                "the API server has not answered yet: the cgroups tell which pods run here"
            );
            self.followers.hold_until_settled();
        }
    }

    /// Ends when the API server has sent something new.
    pub async fn changed(&self) {
        self.pods.changed.notified().await;
    }

    /// Looks at the pod of a UID, as far as the API server has sent it.
    pub fn with_pod<T>(&self, uid: &str, look: impl FnOnce(Option<&Pod>) -> T) -> T {
        self.pods.with(|store| look(store.get(uid)))
    }

    /// The phase of the pod of a UID, if the API server has it still although it is over.
    pub fn phase_if_over(&self, uid: &str) -> Option<String> {
        self.pods
            .with(|store| store.phase_if_over(uid).map(str::to_owned))
    }

    /// Logs once that so many pods are known by their cgroups alone, unless the API server has listed its pods.
    pub fn note_unknown(&self, pods: usize) {
        if pods == 0 || self.pods.with(|r| r.is_synced()) {
            return;
        }
        if self.client.counters.pods_from_cgroups.add_first() {
            tracing::warn!(
                pods,
                "pods are known by their cgroups alone: they go after all others"
            );
        }
    }

    /// Has the pod of an eviction say at once what has ended it. Everything else waits for the journal.
    pub fn announce(&mut self, eviction: &EvictionRecord) {
        let ends = |pod: &Pod| pod.uid != eviction.uid || pod.ends_by_api();
        if self.pods.with(|store| store.pods().all(ends)) {
            self.announcements.send(&self.client, eviction);
        }
    }

    /// Takes an eviction that is in the journal. It never waits: what does not fit stays there for the next start.
    pub fn evicted(&mut self, eviction: EvictionRecord) {
        let announced = self.announcements.take(&eviction.id);
        if self
            .evictions
            .try_send(Job::new(eviction, announced))
            .is_err()
        {
            self.client.counters.reports_deferred.add();
            tracing::error!(
                "too many evictions wait to be reported: this one waits for the next start"
            );
        }
    }

    /// Whether the API server has heard of all evictions that were handed over, and no pod is being deleted for a soft
    /// threshold.
    pub fn is_reported(&self) -> bool {
        let is_taken = self.evictions.capacity() == self.evictions.max_capacity();
        let is_deleting = |soft: &SoftTask| soft.under_way.try_lock().is_err();
        is_taken
            && self.unreported.load(Ordering::Relaxed) == 0
            && !self.soft.as_ref().is_some_and(is_deleting)
    }

    /// Whether it has all Events besides that were handed over.
    pub fn has_sent_events(&self) -> bool {
        self.events.waiting() == 0
    }

    /// Creates the Event of a record that has one.
    pub fn report(&mut self, mut record: Record) {
        if let Record::OomKill(kill) = &mut record {
            let Some(pod) = &mut kill.pod else {
                return;
            };
            self.name_pod(pod);
            // The API server does not know it, or too many kills have had an Event.
            if pod.name.is_empty() || !self.oom_events.allows(&pod.uid, Instant::now()) {
                return;
            }
        }
        self.events.about_record(&record);
    }

    /// A pod that is known by its cgroup only has its name here.
    fn name_pod(&self, pod: &mut PodName) {
        self.pods.with(|store| {
            if let Some(known) = store.get(&pod.uid) {
                pod.namespace.clone_from(&known.namespace);
                pod.name.clone_from(&known.name);
                pod.uid.clone_from(&known.uid);
            }
        });
    }

    /// Whether nothing may be changed from now on.
    pub fn set_shadow(&self, shadow: bool) {
        self.client.set_shadow(shadow);
    }

    /// Pods that the kubelet has evicted since this was asked last.
    pub fn kubelet_evictions(&self) -> Vec<KubeletEviction> {
        self.pods.kubelet_evictions()
    }

    /// Hands over what the Node should say from now on.
    pub fn node_state(&self, state: NodeState) {
        self.desired.send_if_modified(|desired| {
            let changed = (&desired.conditions, &desired.under_pressure)
                != (&state.conditions, &state.under_pressure);
            if changed {
                *desired = state;
            }
            changed
        });
    }

    /// Starts asking pods to go when soft thresholds want it; what comes of it is given to `settle`, with the UID of
    /// the first candidate. The agent knows its pods by now, and the loop looks at every signal from now on: the time
    /// of what an earlier agent has left begins.
    pub fn start_soft(
        &mut self,
        config: &Config,
        journal: &DiskQueue,
        settle: impl Fn(String, Option<(EvictionDecision, Departure)>) + Send + 'static,
    ) {
        if let Some(begin) = self.begin.take() {
            // The receiver is gone where the node's task has ended.
            let _ = begin.send(());
        }
        for eviction in std::mem::take(&mut self.old) {
            self.evicted(eviction);
        }
        let client = Arc::clone(&self.client);
        let policies = Arc::clone(self.followers.evaluator());
        let evictor = SoftEvictor::new(
            client,
            journal.clone(),
            policies,
            self.events.clone(),
            config,
        );
        // One is under way, and the manager asks for no other until it is settled.
        let (requests, queue) = mpsc::channel(1);
        let under_way = evictor.under_way();
        // Read every second; a caller that fills it sooner waits.
        let (requested, asked) = mpsc::channel(REQUESTED);
        self.requested = Some(asked);
        let task = tokio::spawn(soft_task::run(evictor, queue, settle, requested));
        self.soft = Some(SoftTask {
            requests,
            under_way,
            task,
        });
    }

    /// Takes a request; false when it cannot be taken.
    pub fn request_soft(&self, request: SoftRequest) -> bool {
        let soft = self.soft.as_ref();
        soft.is_some_and(|soft| soft.requests.try_send(request).is_ok())
    }

    /// A pod that goes because it was asked to, each once.
    pub fn next_request(&mut self) -> Option<RequestRecord> {
        self.requested.as_mut()?.try_recv().ok()
    }

    /// Says once that the wall clock was set.
    pub fn watch_clock(&mut self) {
        let Some(off) = self.clock.jump(boottime_ns(), SystemTime::now()) else {
            return;
        };
        if self.client.counters.clock_jumps.add_first() {
            tracing::warn!(
                ?off,
                "the wall clock was set: times before and after do not compare"
            );
        }
    }

    /// Pods that the API server has on this node, those that are over included; not known before its first list is
    /// complete.
    pub fn known_pods(&self) -> KnownPods {
        KnownPods {
            uids: self
                .pods
                .with(|store| store.is_synced().then(|| store.known_uids())),
            has_kubelet: true,
        }
    }

    /// The pods that run by the API server's word and not by `is_found`, each with the UID that its cgroup has in its
    /// name; none before its first list is complete.
    pub fn running_without(&self, is_found: impl Fn(&str) -> bool) -> BTreeMap<String, String> {
        self.pods.with(|store| {
            let running = store.running().filter(|_| store.is_synced());
            let missing = running.filter(|(uid, _)| !is_found(uid));
            let named = missing.map(|(uid, pod)| (uid.to_owned(), pod.to_string()));
            named.collect()
        })
    }

    /// Connection to the API server, with its counters.
    pub fn connection(&self) -> &Arc<ApiClient> {
        &self.client
    }

    /// This node's part of the fleet brake, if there is one.
    pub fn fleet_brake(&self) -> Option<&Arc<FleetBrake>> {
        self.followers.fleet()
    }

    /// Reports what is left to report, writes down what is known of the cluster, and ends, all by a moment. Conditions
    /// and taints that hold stay for the next agent.
    pub async fn stop(self, by: tokio::time::Instant) {
        drop(self.followers);
        self.tasks.watch.abort();
        self.tasks.check.abort();
        self.tasks.cache.abort();
        let soft = async {
            if let Some(soft) = self.soft {
                // A DELETE that is out is written down and told; the next one is the next agent's.
                let _held = soft.under_way.lock().await;
                soft.task.abort();
            }
        };
        let unsent = self.events.places();
        // Without a sender these tasks come to their end by themselves.
        drop((self.evictions, self.desired, self.events));
        let Tasks {
            reporter,
            events,
            node,
            ..
        } = self.tasks;
        let tasks = futures::future::join4(reporter, node, soft, events);
        // A disk that does not answer holds up no report, and neither of them the end.
        let kept = tokio::time::timeout_at(by, self.cache.keep());
        let reported = tokio::time::timeout_at(by, tasks);
        let (kept, reported) = futures::future::join(kept, reported).await;
        if kept.is_err() {
            tracing::warn!(
                "the cache of the cluster's objects is not written: the next agent asks the API server for them"
            );
        }
        if reported.is_err() {
            tracing::warn!(
                "some reports are not sent to the API server yet: the next agent sends them"
            );
            let lost = unsent.taken();
            if lost > 0 {
                tracing::warn!(
                    lost,
                    "the agent ends before the API server has taken its Events"
                );
            }
        }
    }
}

/// Splits what an earlier agent has left to report: old evictions, and those that are reported at once.
fn by_age(
    mut left_over: Vec<EvictionRecord>,
    shadow: bool,
) -> (Vec<EvictionRecord>, Vec<EvictionRecord>) {
    // Nothing is deleted in shadow mode: they wait for an agent that is not.
    left_over.retain(|eviction| eviction.shadow || !shadow);
    if !left_over.is_empty() {
        tracing::info!(
            evictions = left_over.len(),
            "an earlier agent has left evictions to report"
        );
    }
    // Whether the pods of old ones run anew is known once the agent knows its pods.
    left_over.into_iter().partition(is_old)
}

/// Starts the task that writes the Node's conditions and taints ([`keep_node`]).
fn start_node_writer(
    client: &Arc<ApiClient>,
    config: &Config,
    cluster: &ClusterConfig,
    desired: channel::Receiver<NodeState>,
    begun: oneshot::Receiver<()>,
) -> JoinHandle<()> {
    let writer = NodeWriter::new(
        Arc::clone(client),
        &cluster.node_name,
        cluster.taint.clone(),
        cluster.former_taint_prefixes.clone(),
        NODE_STATUS_REPORT,
    );
    let transition = config.eviction.pressure_transition_period;
    let stay = transition.max(LEFT_OVER_STAYS);
    tokio::spawn(keep_node(writer, desired, begun, stay))
}

/// The rights that this configuration needs everywhere, besides those that all agents need.
fn needed(config: &Config, cluster: &ClusterConfig) -> Vec<Right> {
    let tenants = TENANT_RIGHTS.into_iter();
    let tenants = tenants.filter(|_| cluster.tenant_grace.is_some());
    let reviews = config.metrics_tls.as_ref().is_some_and(|t| t.authorization);
    let scrapers = SCRAPER_RIGHTS.into_iter().filter(|_| reviews);
    tenants.chain(scrapers).collect()
}

/// Asks for the agent's rights, and whether an admission policy holds them to its node.
async fn check(client: Arc<ApiClient>, cluster: ClusterConfig, needed: Vec<Right>) {
    let pause = cluster.pause_config_map.as_ref();
    let brake = cluster.fleet_brake.as_ref().map(|f| &f.config_map);
    access::check(&client, access::AGAIN, pause, brake, needed).await;
    if cluster.admission_policies {
        admission::check(&client, &admission::SETTLES, admission::AGAIN).await;
    }
}

/// Keeps the node as it is wanted until the sender is gone, but leaves it alone in shadow mode. What is found on it
/// stays for so long once this agent looks for itself.
async fn keep_node(
    writer: NodeWriter,
    mut desired: channel::Receiver<NodeState>,
    begun: oneshot::Receiver<()>,
    stay: Duration,
) {
    let mut begun = Some(begun);
    loop {
        let found = find_previous_status(&writer, &mut desired).await;
        if writer.is_shadow() {
            if !found.is_empty() {
                tracing::warn!(
                    ?found,
                    "there are conditions or taints on the node: shadow mode leaves them alone"
                );
            }
            writer.wait_for_live(&mut desired).await;
        } else {
            if !found.is_empty() {
                tracing::info!(
                    ?found,
                    "there are conditions or taints on the node: they stay for a transition period"
                );
                if let Some(begun) = begun.take() {
                    // Loading programs may take as long as the period. An end before that is an end too.
                    let _ = begun.await;
                }
            }
            let left = StaleConditions::new(found, stay);
            writer.run(left, &mut desired).await;
        }
        if desired.has_changed().is_err() {
            return;
        }
    }
}

/// What is on the node, as read from the API server; nothing where the agent ends before, or shadow mode begins. After a
/// refusal what this agent wants is written meanwhile: it may have the right to that.
async fn find_previous_status(
    writer: &NodeWriter,
    desired: &mut channel::Receiver<NodeState>,
) -> PreviousStatus {
    const FIRST_PAUSE: Duration = Duration::from_millis(500);
    let mut pause = FIRST_PAUSE;
    let mut is_logged = false;
    loop {
        let error = match writer.previous_status().await {
            Ok(found) => return found,
            Err(error) => error,
        };
        if desired.has_changed().is_err() {
            return PreviousStatus::default();
        }
        if error.is_retryable() {
            sleep_and_double(&mut pause, Duration::from_secs(30)).await;
            continue;
        }
        if !std::mem::replace(&mut is_logged, true) {
            tracing::warn!(
                %error,
                "the Node cannot be read: what an earlier agent has left on it is not known yet"
            );
        }
        // An API server that is starting may answer 403 or 404 by mistake.
        let readable = async {
            loop {
                sleep_and_double(&mut pause, Duration::from_secs(300)).await;
                if writer.previous_status().await.is_ok() {
                    return;
                }
            }
        };
        let nothing = StaleConditions::new(PreviousStatus::default(), Duration::ZERO);
        // It is read again while nothing is written.
        if writer.run_until(readable, nothing, desired).await.is_none() {
            return PreviousStatus::default();
        }
        pause = FIRST_PAUSE;
    }
}

/// Sleeps; the next pause is twice as long, up to the longest.
async fn sleep_and_double(pause: &mut Duration, longest: Duration) {
    tokio::time::sleep(*pause).await;
    *pause = (*pause * 2).min(longest);
}
