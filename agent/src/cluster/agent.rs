//! The agent's side of the cluster: the pods it works with, and what it tells.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use tokio::{
    sync::{mpsc, watch as channel},
    task::JoinHandle,
};

use super::{
    access,
    client::{AccessError, Connection},
    node::{NodeWriter, Wanted},
    watch::{self, Shared},
};
use crate::{
    config::{ClusterConfig, Config},
    daemon::RunError,
    engine::{NodeCondition, Observation, Observations, Pressure, Signal, Threshold},
    evict::{
        journal::{Eviction, SharedJournal},
        report::{QUEUE, Reporter},
    },
    pods::{joined::Joined, table::PodTable},
    reflex::{Scope, thread::now_ns},
};

/// How long the start waits for the API server's list; without it the cgroups tell who runs here.
const FIRST_LIST: Duration = Duration::from_secs(2);
/// The agent looks at least this often.
const LOOK: Duration = Duration::from_secs(1);
/// How long the end waits until the node is clean and the last evictions are told.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// A wall clock that differs by more from the monotonic one between two looks has been set.
const JUMP: Duration = Duration::from_secs(2);

/// The cluster, as the agent sees it.
pub struct Cluster {
    connection: Arc<Connection>,
    pods: Arc<Shared>,
    joined: Joined,
    evictions: mpsc::Sender<Eviction>,
    wanted: channel::Sender<Wanted>,
    pressure: NodePressure,
    clock: (Instant, SystemTime),
    tasks: Tasks,
}

struct Tasks {
    watch: JoinHandle<()>,
    check: JoinHandle<()>,
    reporter: JoinHandle<()>,
    node: JoinHandle<()>,
}

impl Cluster {
    /// Opens the way to the API server, takes over what an earlier agent has left, and answers with the first table.
    ///
    /// # Errors
    /// A kubeconfig that cannot be used, a journal that cannot be read. A server that does not answer is no error.
    pub async fn start(
        config: &Config,
        cluster: &ClusterConfig,
        scope: Scope,
        journal: &SharedJournal,
    ) -> Result<(Self, Box<PodTable>), RunError> {
        let node = &cluster.node_name;
        let connection = Connection::open(cluster.kubeconfig.clone()).await;
        let connection = Arc::new(connection.map_err(|e: AccessError| e)?);
        let pods = Arc::new(Shared::default());
        let watching = watch::run(Arc::clone(&connection), node.clone(), Arc::clone(&pods));
        let left_over = journal.lock().follow()?;
        if !left_over.is_empty() {
            tracing::info!(
                evictions = left_over.len(),
                "an earlier agent has left evictions to report"
            );
        }
        let reporter = Reporter::new(
            Arc::clone(&connection),
            journal.clone(),
            Arc::clone(&pods),
            node,
            left_over,
        );
        let (evictions, queue) = mpsc::channel(QUEUE);
        let (wanted, wishes) = channel::channel(Wanted::default());
        let writer = NodeWriter::new(Arc::clone(&connection), node, cluster.taint);
        let transition = config.eviction.pressure_transition_period;
        let joined = Joined::new(scope.cgroup().path(), config.mode);
        let pressure = NodePressure::new(scope, &config.eviction.thresholds, transition);
        let adopted = Arc::clone(&pressure.adopted);
        let checked = Arc::clone(&connection);
        let tasks = Tasks {
            watch: tokio::spawn(watching),
            check: tokio::spawn(async move {
                access::check(&checked).await;
            }),
            reporter: tokio::spawn(reporter.run(queue)),
            node: tokio::spawn(keep_node(writer, wishes, adopted)),
        };
        let mut started = Self {
            connection,
            pods,
            joined,
            evictions,
            wanted,
            pressure,
            clock: (Instant::now(), SystemTime::now()),
            tasks,
        };
        started.wait_for_list().await;
        let table = started.refresh().unwrap_or_default();
        Ok((started, table))
    }

    async fn wait_for_list(&self) {
        let listed = async {
            while !self.pods.with(|roster| roster.is_synced()) {
                self.pods.changed.notified().await;
            }
        };
        if tokio::time::timeout(FIRST_LIST, listed).await.is_err() {
            tracing::warn!("the API server has not answered yet: the cgroups tell who runs here");
        }
    }

    /// Ends when the API server has told something new.
    pub async fn changed(&self) {
        self.pods.changed.notified().await;
    }

    /// A new table when something has changed; and what the node says is brought up to date.
    pub fn refresh(&mut self) -> Option<Box<PodTable>> {
        self.watch_clock();
        self.pressure.look();
        self.tell_node();
        let pods = Arc::clone(&self.pods);
        let look = self
            .joined
            .look(|uid| pods.with(|roster| roster.get(uid).cloned()));
        if look.table.is_some() && look.unknown > 0 && !self.pods.with(|r| r.is_synced()) {
            let counter = &self.connection.counters.pods_from_cgroups;
            if counter.add_first() {
                tracing::warn!(
                    pods = look.unknown,
                    "pods are known by their cgroups alone: their priority counts as 0"
                );
            }
        }
        look.table
    }

    /// Takes an eviction that is in the journal. It never waits: what does not fit stays there for the next start.
    pub fn evicted(&mut self, eviction: Eviction) {
        self.pressure.evicted(&eviction);
        self.tell_node();
        if self.evictions.try_send(eviction).is_err() {
            self.connection.counters.report_dropped.add();
            tracing::error!(
                "too many evictions wait to be reported: this one waits for the next start"
            );
        }
    }

    fn tell_node(&self) {
        let conditions = self.pressure.conditions();
        self.wanted.send_if_modified(|wanted| {
            let changed = wanted.conditions != conditions;
            if changed {
                wanted.message = self.pressure.message.clone();
                wanted.conditions = conditions;
            }
            changed
        });
    }

    /// Nothing is decided on the wall clock; but times in Events and in the journal are the wall clock's.
    fn watch_clock(&mut self) {
        let now = (Instant::now(), SystemTime::now());
        let expected = self.clock.1 + now.0.duration_since(self.clock.0);
        let off = match now.1.duration_since(expected) {
            Ok(ahead) => ahead,
            Err(behind) => behind.duration(),
        };
        if off > JUMP && self.connection.counters.clock_jumps.add_first() {
            tracing::warn!(
                ?off,
                "the wall clock was set: times before and after do not compare"
            );
        }
        self.clock = now;
    }

    /// What was counted.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Tells what is left to tell, takes conditions and taint away, and ends; all within a few seconds.
    pub async fn stop(self) {
        self.tasks.watch.abort();
        self.tasks.check.abort();
        // Without a sender both tasks come to their end by themselves.
        drop((self.evictions, self.wanted));
        let both = futures::future::join(self.tasks.reporter, self.tasks.node);
        if tokio::time::timeout(LAST_WORDS, both).await.is_err() {
            tracing::warn!("the API server has not heard everything: the next agent goes on");
        }
    }
}

/// Conditions that an earlier agent has left, until its transition period is over.
type Adopted = Arc<std::sync::Mutex<BTreeSet<NodeCondition>>>;

/// Finds what an earlier agent has left, then keeps the node as it is wanted.
async fn keep_node(writer: NodeWriter, mut wanted: channel::Receiver<Wanted>, adopted: Adopted) {
    let mut pause = Duration::from_millis(500);
    let left = loop {
        match writer.left_over().await {
            Ok(left) => break left,
            Err(error) if error.is_passing() && wanted.has_changed().is_ok() => {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(Duration::from_secs(30));
            }
            Err(_) => break BTreeSet::new(),
        }
    };
    if !left.is_empty() {
        tracing::info!(?left, "an earlier agent has left conditions on the node");
        if let Ok(mut adopted) = adopted.lock() {
            adopted.clone_from(&left);
        }
        // The next look says for how long they stay; without an answer they go at once.
        let _ = tokio::time::timeout(2 * LOOK, wanted.changed()).await;
        wanted.mark_changed();
    }
    writer.run(left, wanted).await;
}

/// Which conditions hold, thresholds met or met not long ago.
struct NodePressure {
    scope: Scope,
    pressure: Pressure,
    transition: Duration,
    started: Instant,
    adopted: Adopted,
    message: String,
}

impl NodePressure {
    fn new(scope: Scope, thresholds: &[Threshold], transition: Duration) -> Self {
        Self {
            scope,
            pressure: Pressure::new(thresholds.to_vec(), transition),
            transition,
            started: Instant::now(),
            adopted: Adopted::default(),
            message: String::new(),
        }
    }

    /// Looks at what is available now.
    fn look(&mut self) {
        // A scope that is gone is the reflex's to report.
        if let Ok(look) = self.scope.look() {
            self.observe(look.available);
        }
    }

    /// The dip that led to an eviction is over before anybody looks.
    fn evicted(&mut self, eviction: &Eviction) {
        self.message = eviction.message.trim_end().to_owned();
        self.observe(eviction.available);
    }

    fn observe(&mut self, available: u64) {
        let signed = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let mut observations = Observations::default();
        let seen = Observation {
            available: signed(available),
            capacity: signed(self.scope.capacity()),
            time: None,
        };
        observations.set(Signal::MemoryAvailable, seen);
        let met = self.pressure.update(signed(now_ns()), &observations);
        if let Some(threshold) = met.first() {
            self.message = format!("{threshold}");
        }
    }

    fn conditions(&self) -> BTreeSet<NodeCondition> {
        let now = i64::try_from(now_ns()).unwrap_or(i64::MAX);
        let mut conditions: BTreeSet<_> = self.pressure.conditions(now).into_iter().collect();
        if self.started.elapsed() < self.transition
            && let Ok(adopted) = self.adopted.lock()
        {
            conditions.extend(adopted.iter());
        }
        conditions
    }
}
