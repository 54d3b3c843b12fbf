//! The blocking side: does one step and says what came of it.
#![expect(
    clippy::disallowed_types,
    reason = "runs on threads of normal priority, which share nothing with the manager but its queues"
)]

use std::{
    cmp::Reverse,
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use evictd_engine::{
    Signal,
    mitigation::{self, Step},
};
use evictd_node::{
    cgroup::{
        memory::MemoryCgroup,
        reclaim::{self, Given, Refusal},
        throttle::{Left, ThrottleList},
    },
    pods::table::Entry,
};

/// A step to take.
#[derive(Clone, Debug)]
pub struct MitigationRequest {
    /// What to do.
    pub action: MitigationAction,
    /// Which signal is short.
    pub signal: Signal,
    /// Only speak of it.
    pub shadow: bool,
}

/// What may be done before a pod is evicted.
#[derive(Clone, Debug)]
pub enum MitigationAction {
    /// Reclaim page cache.
    Reclaim {
        /// So many bytes of what counts as used.
        deficit: u64,
        /// From these pods.
        pods: Vec<Arc<Entry>>,
        /// How long it may take.
        within: Duration,
    },
    /// Keep these from growing: the first candidates, in their order.
    Throttle(Vec<Arc<Entry>>),
    /// Let these grow again.
    Release(Vec<Arc<Entry>>),
    /// Let all pods grow again.
    ReleaseAll,
}

impl MitigationAction {
    /// The engine's name for it.
    pub fn step(&self) -> Step {
        match self {
            Self::Reclaim { deficit, .. } => Step::Reclaim(*deficit),
            Self::Throttle(_) => Step::Throttle,
            Self::Release(_) | Self::ReleaseAll => Step::Unthrottle,
        }
    }

    /// The pods that it names.
    pub fn pods(&self) -> &[Arc<Entry>] {
        match self {
            Self::Reclaim { pods, .. } | Self::Throttle(pods) | Self::Release(pods) => pods,
            Self::ReleaseAll => &[],
        }
    }
}

/// What came of one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The pod's UID.
    pub uid: String,
    /// What it has given back.
    pub given: Given,
    /// The limit that it was given or that was taken away, in bytes.
    pub high: Option<u64>,
}

/// What came of a step.
#[derive(Clone, Debug)]
pub struct Done {
    /// The step.
    pub step: Step,
    /// Which signal was short.
    pub signal: Signal,
    /// Pod by pod.
    pub pods: Vec<Pod>,
    /// Why nothing was done, or not everything.
    pub refusal: Option<String>,
    /// How long it took.
    pub took: Duration,
}

/// What was done so far; all of it only grows.
#[derive(Debug, Default)]
pub struct Counters {
    /// Reclaims that were begun.
    pub reclaims: AtomicU64,
    /// What they have given back, in bytes of usage.
    pub reclaimed: AtomicU64,
    /// What of that counted as used, in bytes.
    pub reclaimed_working_set: AtomicU64,
    /// Pods that were kept from growing.
    pub throttles: AtomicU64,
    /// Pods that were let go again, those of an earlier agent included.
    pub released: AtomicU64,
    /// Steps or pods that were refused.
    pub refused: AtomicU64,
}

/// Does what is demanded.
#[derive(Debug)]
pub struct MitigationWorker {
    throttles: ThrottleList,
    counters: Counters,
    /// What was refused the last time: said once.
    reported: Mutex<Option<String>>,
}

impl MitigationWorker {
    /// Releases the pods that an earlier agent has left throttled.
    pub fn open(state_dir: &Path) -> Arc<Self> {
        let (throttles, left) = ThrottleList::open(state_dir).unwrap_or_else(|error| {
            tracing::error!(%error, "the list of pods that an earlier agent has left throttled cannot be read: no pod is throttled");
            let throttles = ThrottleList::refusing(state_dir, error.source.to_string());
            (throttles, Left::default())
        });
        for list in &left.unreadable {
            tracing::error!(
                list = %list.display(),
                "a list of throttled pods is not understood: pods may be throttled still, which memory.high of their cgroups shows; remove the list afterwards"
            );
        }
        if left.released > 0 {
            tracing::warn!(
                pods = left.released,
                "an earlier agent has left pods throttled: they were released"
            );
        }
        let counters = Counters::default();
        add(&counters.released, left.released as u64);
        Arc::new(Self {
            throttles,
            counters,
            reported: Mutex::default(),
        })
    }

    /// What was done.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Takes a step; blocks for as long as it takes. A release does not wait for the disk: [`Self::save`] is to follow.
    pub fn work(&self, request: &MitigationRequest) -> Done {
        let begun = Instant::now();
        let step = request.action.step();
        let (pods, refusal) = match &request.action {
            MitigationAction::Reclaim {
                deficit,
                pods,
                within,
            } => self.reclaim(pods, *deficit, begun + *within),
            MitigationAction::Throttle(pods) => self.throttle(pods),
            MitigationAction::Release(pods) => {
                let named = |uid: &str| pods.iter().any(|entry| entry.pod.uid == uid);
                (self.release(named), None)
            }
            MitigationAction::ReleaseAll => (self.release(|_| true), None),
        };
        if let Some(refusal) = &refusal {
            add(&self.counters.refused, 1);
            let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
            if reported.as_ref() != Some(refusal) {
                tracing::warn!(?step, refusal, "a step before the eviction is refused");
                *reported = Some(refusal.clone());
            }
        }
        Done {
            step,
            signal: request.signal,
            pods,
            refusal,
            took: begun.elapsed(),
        }
    }

    /// Releases all pods, for good; no disk is waited for.
    pub fn close(&self) {
        add(&self.counters.released, self.throttles.close().len() as u64);
    }

    /// Writes down who is throttled; waits for the disk.
    pub fn save(&self) {
        if let Err(error) = self.throttles.save() {
            // What it still names is not throttled any more, which the next agent sees.
            tracing::warn!(%error, "the list of throttled pods is an old one");
        }
    }

    fn reclaim(&self, pods: &[Arc<Entry>], deficit: u64, until: Instant) -> Outcome {
        add(&self.counters.reclaims, 1);
        let pods = opened(pods);
        if let Some(refusal) = first_refusal(&pods, reclaim::can_reclaim) {
            return (Vec::new(), Some(refusal));
        }
        // Whose numbers cannot be read is on its way out.
        let readable = pods
            .into_iter()
            .filter_map(|pod| Some((pod.1.read().ok()?, pod)));
        let (readings, pods): (Vec<_>, Vec<_>) = readable.unzip();
        let (mut done, mut refusal) = (Vec::new(), None);
        for portion in mitigation::portions(&readings, deficit) {
            let Some((entry, memory)) = pods.get(portion.pod) else {
                continue;
            };
            match reclaim::reclaim(memory, portion.bytes, until) {
                Ok(given) => {
                    add(&self.counters.reclaimed, given.usage());
                    add(&self.counters.reclaimed_working_set, given.working_set());
                    done.push(pod(entry, given, None));
                }
                Err(error) => refusal = Some(format!("memory.reclaim of {}: {error}", entry.pod)),
            }
        }
        (done, refusal)
    }

    fn throttle(&self, pods: &[Arc<Entry>]) -> Outcome {
        let pods = opened(pods);
        if let Some(refusal) = first_refusal(&pods, reclaim::can_throttle) {
            return (Vec::new(), Some(refusal));
        }
        let (mut done, mut refusal) = (Vec::new(), None);
        for (entry, memory) in &pods {
            match self.throttles.set(&entry.pod.uid, memory) {
                Ok(Some(throttle)) => {
                    add(&self.counters.throttles, 1);
                    done.push(pod(entry, Given::default(), Some(throttle.high)));
                }
                Ok(None) => {}
                Err(error) => refusal = Some(error.to_string()),
            }
        }
        (done, refusal)
    }

    fn release(&self, which: impl Fn(&str) -> bool) -> Vec<Pod> {
        let released = self.throttles.release(|throttle| which(&throttle.uid));
        add(&self.counters.released, released.len() as u64);
        let pods = released.into_iter().map(|throttle| Pod {
            namespace: String::new(),
            name: String::new(),
            uid: throttle.uid,
            given: Given::default(),
            high: Some(throttle.high),
        });
        let mut pods: Vec<_> = pods.collect();
        pods.sort_by_key(|pod| Reverse(pod.high));
        pods
    }
}

type Outcome = (Vec<Pod>, Option<String>);

/// Pods whose cgroups are there, with their memory.
fn opened(pods: &[Arc<Entry>]) -> Vec<(&Arc<Entry>, MemoryCgroup)> {
    let opened = pods
        .iter()
        .filter_map(|entry| Some((entry, entry.open_memory().ok()?)));
    opened.collect()
}

/// A machine refuses for all of its pods, so that the first one tells.
fn first_refusal(
    pods: &[(&Arc<Entry>, MemoryCgroup)],
    ask: impl Fn(&MemoryCgroup) -> Result<(), Refusal>,
) -> Option<String> {
    let refusal = ask(&pods.first()?.1).err()?;
    Some(refusal.to_string())
}

fn pod(entry: &Entry, given: Given, high: Option<u64>) -> Pod {
    Pod {
        namespace: entry.pod.namespace.clone(),
        name: entry.pod.name.clone(),
        uid: entry.pod.uid.clone(),
        given,
        high,
    }
}

fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}
