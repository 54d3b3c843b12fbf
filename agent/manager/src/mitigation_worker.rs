//! The blocking side: does one step and says what came of it.
#![expect(
    clippy::disallowed_types,
    reason = "runs on threads of normal priority, which share nothing with the manager but its queues"
)]

use std::{
    cmp::Reverse,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
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
        throttle::ThrottleList,
    },
    pods::table::Entry,
};

/// A step to take.
#[derive(Clone, Debug)]
pub struct MitigationRequest {
    /// Which one.
    pub step: Step,
    /// Which signal is short.
    pub signal: Signal,
    /// The pods in question: for a reclaim all, for the throttle the first candidates in their order; for a release those
    /// who are let go, all of them if none is named.
    pub pods: Vec<Arc<Entry>>,
    /// How long a reclaim may take.
    pub within: Duration,
    /// Only speak of it.
    pub shadow: bool,
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
    throttles: Mutex<ThrottleList>,
    counters: Counters,
    /// What was refused the last time: said once.
    reported: Mutex<Option<String>>,
}

impl MitigationWorker {
    /// Releases the pods that an earlier agent has left throttled.
    pub fn open(state_dir: &Path) -> Arc<Self> {
        let (throttles, left) = ThrottleList::open(state_dir).unwrap_or_else(|error| {
            tracing::error!(%error, "the list of pods that an earlier agent has left throttled cannot be read");
            (ThrottleList::empty(state_dir), 0)
        });
        if left > 0 {
            tracing::warn!(
                pods = left,
                "an earlier agent has left pods throttled: they were released"
            );
        }
        let counters = Counters::default();
        add(&counters.released, left as u64);
        Arc::new(Self {
            throttles: Mutex::new(throttles),
            counters,
            reported: Mutex::default(),
        })
    }

    /// What was done.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Takes a step; blocks for as long as it takes.
    pub fn work(&self, demand: &MitigationRequest) -> Done {
        let begun = Instant::now();
        let (pods, refusal) = match demand.step {
            Step::Reclaim(deficit) => self.reclaim(demand, deficit, begun),
            Step::Throttle => self.throttle(demand),
            Step::Unthrottle => self.release(demand),
        };
        if let Some(refusal) = &refusal {
            add(&self.counters.refused, 1);
            let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
            if reported.as_ref() != Some(refusal) {
                tracing::warn!(step = ?demand.step, refusal, "a step before the eviction is refused");
                *reported = Some(refusal.clone());
            }
        }
        Done {
            step: demand.step,
            signal: demand.signal,
            pods,
            refusal,
            took: begun.elapsed(),
        }
    }

    /// Releases all pods, for good.
    pub fn close(&self) {
        match self.throttles().close() {
            Ok(released) => add(&self.counters.released, released.len() as u64),
            Err(error) => {
                tracing::error!(%error, "the next agent releases the pods that stay throttled")
            }
        }
    }

    fn throttles(&self) -> MutexGuard<'_, ThrottleList> {
        self.throttles
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn reclaim(&self, demand: &MitigationRequest, deficit: u64, begun: Instant) -> Outcome {
        add(&self.counters.reclaims, 1);
        let pods = opened(&demand.pods);
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
            match reclaim::reclaim(memory, portion.bytes, begun + demand.within) {
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

    fn throttle(&self, demand: &MitigationRequest) -> Outcome {
        let pods = opened(&demand.pods);
        if let Some(refusal) = first_refusal(&pods, reclaim::can_throttle) {
            return (Vec::new(), Some(refusal));
        }
        let mut throttles = self.throttles();
        let (mut done, mut refusal) = (Vec::new(), None);
        for (entry, memory) in &pods {
            match throttles.set(&entry.pod.uid, memory) {
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

    fn release(&self, demand: &MitigationRequest) -> Outcome {
        let named = |uid: &str| demand.pods.iter().any(|entry| entry.pod.uid == uid);
        let released = self
            .throttles()
            .release(|throttle| demand.pods.is_empty() || named(&throttle.uid));
        match released {
            Ok(released) => {
                add(&self.counters.released, released.len() as u64);
                let reported = released.into_iter().map(|throttle| Pod {
                    namespace: String::new(),
                    name: String::new(),
                    uid: throttle.uid,
                    given: Given::default(),
                    high: Some(throttle.high),
                });
                let mut reported: Vec<_> = reported.collect();
                reported.sort_by_key(|pod| Reverse(pod.high));
                (reported, None)
            }
            Err(error) => (Vec::new(), Some(error.to_string())),
        }
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
