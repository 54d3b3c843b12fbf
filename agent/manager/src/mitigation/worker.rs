//! Takes one step, which may block, and answers with its effect.
#![expect(
    clippy::disallowed_types,
    reason = "runs on threads of normal priority, which share nothing with the manager but its queues"
)]

use std::{
    cmp::Reverse,
    collections::HashSet,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use evictd_engine::mitigation::portions;
use evictd_node::{
    cgroup::{
        memory::MemoryCgroup,
        reclaim::{self, ReclaimResult},
        throttle::{Left, ThrottleList, can_throttle},
    },
    pods::table::PodEntry,
};
use evictd_sys::mutex::locked;

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
    /// UIDs of the pods that are to be throttled as of the newest request, which may wait for its thread still.
    wanted: Mutex<HashSet<String>>,
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
            wanted: Mutex::default(),
            counters,
            reported: Mutex::default(),
        })
    }

    /// Counters of what was done.
    pub fn counters(&self) -> &MitigationCounters {
        &self.counters
    }

    /// Notes what is requested, in the order of the requests and before a thread has it: a throttle that waits for the
    /// disk meanwhile sets no pod that is released.
    pub fn note(&self, action: &MitigationAction) {
        let uids =
            |pods: &[Arc<PodEntry>]| pods.iter().map(|entry| entry.pod.uid.clone()).collect();
        match action {
            MitigationAction::Reclaim { .. } => {}
            MitigationAction::Throttle(pods) => *self.wanted() = uids(pods),
            MitigationAction::Release(pods) => {
                let released: HashSet<String> = uids(pods);
                self.wanted().retain(|uid| !released.contains(uid));
            }
            MitigationAction::ReleaseAll => self.wanted().clear(),
        }
    }

    fn wanted(&self) -> MutexGuard<'_, HashSet<String>> {
        locked(&self.wanted)
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
            MitigationAction::Release(_) | MitigationAction::ReleaseAll => (self.release(), None),
        };
        if let Some(refusal) = &refusal {
            add(&self.counters.refused, 1);
            let mut reported = locked(&self.reported);
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
            let uid = &entry.pod.uid;
            match self
                .throttles
                .set(uid, memory, || self.wanted().contains(uid))
            {
                Ok(Some(throttle)) => {
                    add(&self.counters.throttles, 1);
                    done.push(pod(entry, ReclaimResult::default(), Some(throttle.high)));
                }
                Ok(None) => {}
                Err(error) => refusal = Some(error.to_string()),
            }
        }
        (done, refusal)
    }

    /// Releases all pods that are not wanted any more, so that each release does the work of one that found no place.
    fn release(&self) -> Vec<PodEffect> {
        let is_wanted = |uid: &String| self.wanted().contains(uid);
        let released = self.throttles.release(|throttle| !is_wanted(&throttle.uid));
        add(&self.counters.released, released.len() as u64);
        let pods = released.into_iter().map(|throttle| PodEffect {
            namespace: String::new(),
            name: String::new(),
            uid: throttle.uid,
            given: ReclaimResult::default(),
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
fn first_refusal(
    pods: &[(&Arc<PodEntry>, MemoryCgroup)],
    ask: fn(&MemoryCgroup) -> Result<(), &'static str>,
) -> Option<String> {
    ask(&pods.first()?.1).err().map(str::to_owned)
}

fn pod(entry: &PodEntry, given: ReclaimResult, high: Option<u64>) -> PodEffect {
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

#[cfg(test)]
mod tests {
    use std::{fs, process::Command, sync::mpsc::channel, time::Duration};

    use evictd_engine::{Signal, mitigation::Step};

    use super::*;
    use crate::{MitigationThreads, tests::pod};

    fn request(action: MitigationAction) -> MitigationRequest {
        MitigationRequest {
            action,
            signal: Signal::MemoryAvailable,
            shadow: false,
        }
    }

    fn throttled<const N: usize>(pods: &[Arc<PodEntry>; N]) -> [bool; N] {
        let high = |pod: &Arc<PodEntry>| fs::read_to_string(pod.memory.path().join("memory.high"));
        std::array::from_fn(|n| high(&pods[n]).unwrap() != "max")
    }

    /// A pipe that is opened to be written hangs until another process reads it, as a disk may.
    // R46
    #[test]
    fn a_throttle_that_waits_for_the_disk_sets_no_pod_that_is_released() {
        for names_pods in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let pods = ["one", "other", "third"].map(|name| pod(dir.path(), name, false));
            let pipe = dir.path().join("brakes.new");
            let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
            assert!(made.success());
            let worker = MitigationWorker::open(dir.path());
            let (answer, answers) = channel();
            let answer = move |effect| answer.send(effect).unwrap_or_default();
            let threads = MitigationThreads::start(&worker, answer).unwrap();
            let answer = || answers.recv_timeout(Duration::from_secs(20)).unwrap().step;
            let throttle = || request(MitigationAction::Throttle(pods.to_vec()));
            threads.take(throttle());
            while worker.throttles.held().is_empty() {
                std::thread::yield_now();
            }
            // All of this one waits behind the first one.
            threads.take(throttle());
            threads.take(request(match names_pods {
                true => MitigationAction::Release(pods[..2].to_vec()),
                false => MitigationAction::ReleaseAll,
            }));
            assert_eq!(answer(), Step::Unthrottle);
            drop(fs::File::open(&pipe).unwrap());
            assert_eq!([answer(), answer()], [Step::Throttle; 2]);
            assert_eq!(throttled(&pods), [false, false, names_pods]);
            threads.take(request(MitigationAction::ReleaseAll));
            assert_eq!(answer(), Step::Unthrottle);
            assert_eq!(throttled(&pods), [false; 3]);
        }
    }
}
