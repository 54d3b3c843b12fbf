//! Takes one step, which may block, and answers with its effect.
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
    time::Instant,
};

use evictd_engine::mitigation::portions;
use evictd_node::{
    cgroup::{
        memory::MemoryCgroup,
        reclaim::{self, Given},
        throttle::{Left, ThrottleList, can_throttle},
    },
    pods::table::PodEntry,
};

use super::{MitigationAction, MitigationRequest, PodEffect, StepEffect};

/// Counters of what was done since the start; all of them only grow.
#[derive(Debug, Default)]
pub struct MitigationCounters {
    /// Reclaims that were begun.
    pub reclaims: AtomicU64,
    /// Bytes of usage that those reclaims have brought back.
    pub reclaimed: AtomicU64,
    /// Bytes of `reclaimed` that counted as used.
    pub reclaimed_working_set: AtomicU64,
    /// Pods that were kept from growing.
    pub throttles: AtomicU64,
    /// Pods that were let go again, those of an earlier agent included.
    pub released: AtomicU64,
    /// Steps or pods that were refused.
    pub refused: AtomicU64,
}

/// Takes the steps that are requested.
#[derive(Debug)]
pub struct MitigationWorker {
    throttles: ThrottleList,
    counters: MitigationCounters,
    /// The last refusal, which is logged once.
    reported: Mutex<Option<String>>,
}

impl MitigationWorker {
    /// Releases the pods that an earlier agent has left throttled.
    pub fn open(state_dir: &Path) -> Arc<Self> {
        let (throttles, left) = ThrottleList::open(state_dir).unwrap_or_else(|error| {
            tracing::error!(
                %error,
                "the list of pods that an earlier agent has left throttled cannot be read: no pod is throttled"
            );
            let throttles = ThrottleList::refusing(state_dir, error.source.to_string());
            (throttles, Left::default())
        });
        for list in &left.unreadable {
            tracing::error!(
                list = %list.display(),
                "a list of throttled pods is not understood: pods may be throttled still, which memory.high of their \
                cgroups shows; remove the list afterwards"
            );
        }
        if left.released > 0 {
            tracing::warn!(
                pods = left.released,
                "an earlier agent has left pods throttled: they were released"
            );
        }
        let counters = MitigationCounters::default();
        add(&counters.released, left.released as u64);
        Arc::new(Self {
            throttles,
            counters,
            reported: Mutex::default(),
        })
    }

    /// Counters of what was done.
    pub fn counters(&self) -> &MitigationCounters {
        &self.counters
    }

    /// Takes a step; blocks for as long as it takes. A release does not wait for the disk: [`Self::save`] is to follow.
    pub fn work(&self, request: &MitigationRequest) -> StepEffect {
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
        StepEffect {
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

    /// Writes the list of throttled pods; waits for the disk.
    pub fn save(&self) {
        if let Err(error) = self.throttles.save() {
            // What it still names is not throttled any more, which the next agent sees.
            tracing::warn!(%error, "the list of throttled pods is an old one");
        }
    }

    fn reclaim(&self, pods: &[Arc<PodEntry>], deficit: u64, until: Instant) -> Effects {
        add(&self.counters.reclaims, 1);
        let pods = opened(pods);
        if let Some(refusal) = first_refusal(&pods, reclaim::can_reclaim) {
            return (Vec::new(), Some(refusal));
        }
        // A pod whose numbers cannot be read is about to end.
        let readable = pods
            .into_iter()
            .filter_map(|pod| Some((pod.1.read().ok()?, pod)));
        let (readings, pods): (Vec<_>, Vec<_>) = readable.unzip();
        let (mut done, mut refusal) = (Vec::new(), None);
        for portion in portions(&readings, deficit) {
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

    fn throttle(&self, pods: &[Arc<PodEntry>]) -> Effects {
        let pods = opened(pods);
        if let Some(refusal) = first_refusal(&pods, can_throttle) {
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

    fn release(&self, which: impl Fn(&str) -> bool) -> Vec<PodEffect> {
        let released = self.throttles.release(|throttle| which(&throttle.uid));
        add(&self.counters.released, released.len() as u64);
        let pods = released.into_iter().map(|throttle| PodEffect {
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

/// The pods that were changed, and why nothing was done or not everything.
type Effects = (Vec<PodEffect>, Option<String>);

/// Pods whose cgroups are there, with their memory.
fn opened(pods: &[Arc<PodEntry>]) -> Vec<(&Arc<PodEntry>, MemoryCgroup)> {
    let opened = pods
        .iter()
        .filter_map(|entry| Some((entry, entry.open_memory().ok()?)));
    opened.collect()
}

/// A kernel that refuses one pod refuses all: the first one is asked.
fn first_refusal<R: ToString>(
    pods: &[(&Arc<PodEntry>, MemoryCgroup)],
    ask: impl Fn(&MemoryCgroup) -> Result<(), R>,
) -> Option<String> {
    let refusal = ask(&pods.first()?.1).err()?;
    Some(refusal.to_string())
}

fn pod(entry: &PodEntry, given: Given, high: Option<u64>) -> PodEffect {
    PodEffect {
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
