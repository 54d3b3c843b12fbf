//! What goes to the manager, and what comes from it.

use std::{
    collections::VecDeque,
    io,
    os::fd::BorrowedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use evictd_engine::{
    EvictionDecision, NodeReclaim, Pod, Recreation, Signal,
    model::settings::MitigationConfig,
    reclaim::Removed,
    record::{NodeState, Stages},
};
use evictd_node::{memory_scope::Scope, pods::table::Entry};
use evictd_sys::{eventfd::EventFd, pi_mutex::PiMutex};

use crate::{
    DiskSources,
    mitigation_worker::{Done, MitigationRequest},
};

/// Commands that may wait; of tables, scopes and settings only the newest does.
const COMMANDS: usize = 256;
/// Further places for answers. The manager has less than so many requests under way at once, so that each answer finds a place.
const ANSWERS: usize = 64;

/// The pods of the node.
#[derive(Clone, Debug, Default)]
pub struct PodSet {
    /// With files held open.
    pub entries: Vec<Arc<Entry>>,
    /// The same pods, in the same order, as the engine wants them; without protected ones.
    pub pods: Arc<Vec<Pod>>,
}

impl PodSet {
    /// From a table's entries.
    pub fn new(entries: &[Arc<Entry>]) -> Self {
        let entries: Vec<_> = entries.iter().filter(|e| !e.protected).cloned().collect();
        Self {
            pods: Arc::new(entries.iter().map(|e| e.pod.clone()).collect()),
            entries,
        }
    }

    /// The same, with the pods of `before` where only their containers have changed.
    pub fn after(before: &Self, entries: &[Arc<Entry>]) -> Self {
        let evictable = || entries.iter().filter(|e| !e.protected);
        match evictable().map(|e| &e.pod).eq(before.pods.iter()) {
            true => Self {
                entries: evictable().cloned().collect(),
                pods: Arc::clone(&before.pods),
            },
            false => Self::new(entries),
        }
    }

    /// The entry of a UID.
    pub fn entry(&self, uid: &str) -> Option<&Arc<Entry>> {
        self.entries.iter().find(|e| e.pod.uid == uid)
    }
}

/// To the manager.
#[derive(Debug)]
pub enum Command {
    /// Who runs here from now on.
    Members(PodSet),
    /// The cgroup of all pods has come, or is another one or of another size now.
    PodsMemory(Box<Scope>),
    /// The node's memory has another capacity now.
    NodeMemory(Box<Scope>),
    /// The disks, which could not be told apart before.
    Disks(Box<DiskSources>),
    /// The fast path has evicted a pod.
    EvictedByFastPath {
        /// The pod's UID.
        uid: String,
        /// Which signal was short.
        signal: Signal,
        /// What was available then, in the signal's unit.
        available: u64,
        /// It was only reported: the pod lives on.
        shadow: bool,
        /// The kernel has refused SIGKILL: the pod lives on too.
        refused: bool,
    },
    /// What came of a [`SoftEvictionRequest`].
    SoftEvictionFinished {
        /// The UID of the pod that was chosen first.
        chosen: String,
        /// The pod that goes, if one does.
        gone: Option<EvictionDecision>,
    },
    /// A reclaim by [`ManagerEvent::Reclaim`] is over: what was removed, or `None` when there is no runtime to ask.
    Reclaimed(Option<Removed>),
    /// A step by [`ManagerEvent::Mitigate`] is over.
    MitigationDone(Box<Done>),
    /// Other settings.
    Settings {
        /// Thresholds and all that the engine is told.
        settings: Box<evictd_engine::Settings>,
        /// Decide, tell, and do nothing.
        shadow: bool,
        /// What is done before a pod is evicted.
        mitigation: MitigationConfig,
    },
}

impl Command {
    /// Places that it may take in the queue, those of all others included.
    fn places(&self) -> usize {
        match self {
            Self::EvictedByFastPath { .. } => COMMANDS,
            Self::SoftEvictionFinished { .. } | Self::Reclaimed(_) | Self::MitigationDone(_) => {
                COMMANDS + ANSWERS
            }
            // One of each.
            Self::Members(_)
            | Self::PodsMemory(_)
            | Self::NodeMemory(_)
            | Self::Disks(_)
            | Self::Settings { .. } => usize::MAX,
        }
    }

    /// Whether only the newest of these two counts.
    fn replaces(&self, other: &Self) -> bool {
        matches!(
            (self, other),
            (Self::Members(_), Self::Members(_))
                | (Self::PodsMemory(_), Self::PodsMemory(_))
                | (Self::NodeMemory(_), Self::NodeMemory(_))
                | (Self::Disks(_), Self::Disks(_))
                | (Self::Settings { .. }, Self::Settings { .. })
        )
    }
}

/// Where commands wait. Never full of what matters: a table replaces the one before.
#[derive(Debug)]
pub struct CommandQueue {
    event: EventFd,
    commands: PiMutex<VecDeque<Command>>,
    dropped: AtomicU64,
    stop: AtomicBool,
    turned: AtomicU64,
}

impl CommandQueue {
    /// An empty one.
    ///
    /// # Errors
    /// The system has no descriptor to give.
    pub fn new() -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            event: EventFd::new()?,
            commands: PiMutex::new(VecDeque::with_capacity(COMMANDS + ANSWERS)),
            dropped: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            turned: AtomicU64::new(0),
        }))
    }

    /// Sends a command; one that is dropped because too many wait already is counted, and the answer is false.
    pub fn send(&self, command: Command) -> bool {
        // What is replaced or refused is freed when the mutex is free again.
        let (replaced, refused);
        {
            let mut commands = self.commands.lock();
            let before = commands.iter().position(|other| command.replaces(other));
            replaced = before.and_then(|at| commands.remove(at));
            refused = match commands.len() < command.places() {
                true => {
                    commands.push_back(command);
                    None
                }
                false => Some(command),
            };
        }
        self.event.notify();
        drop(replaced);
        self.dropped
            .fetch_add(u64::from(refused.is_some()), Ordering::Relaxed);
        refused.is_none()
    }

    /// Commands that were dropped since the start.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Asks the thread to end.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.event.notify();
    }

    pub(super) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    pub(super) fn beat(&self, now: u64) {
        self.turned.store(now, Ordering::Relaxed);
    }

    /// When the thread last turned, in nanoseconds of CLOCK_MONOTONIC; 0: never.
    pub fn last_beat(&self) -> u64 {
        self.turned.load(Ordering::Relaxed)
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.event.fd()
    }

    /// The oldest command.
    pub(super) fn next(&self) -> Option<Command> {
        self.event.clear();
        self.commands.lock().pop_front()
    }
}

/// From the manager.
#[derive(Debug)]
pub enum ManagerEvent {
    /// A pod was killed, or would have been.
    Evicted(Box<EvictionReport>),
    /// A pod is to be asked to go; answered by [`Command::SoftEvictionFinished`].
    Soft(Box<SoftEvictionRequest>),
    /// What the node should say has changed.
    Node(NodeState),
    /// The node is to give back what it can; pods wait for that, and a look at the signals says whether it has come.
    Reclaim(ReclaimRequest),
    /// What a reclaim has brought.
    Reclaimed(Box<Reclaimed>),
    /// A step before an eviction is to be taken; answered by [`Command::MitigationDone`] unless it is shadow mode's.
    Mitigate(Box<MitigationRequest>),
    /// What such a step has brought.
    Graduated(Box<MitigationOutcome>),
    /// An evicted pod's owner has put another one here.
    Recreated(Recreation),
    /// A threshold is met as it comes into force.
    MetInForce {
        /// The threshold's signal.
        signal: Signal,
        /// What is available, in the signal's unit.
        available: u64,
        /// What should be.
        threshold: u64,
    },
    /// The processes of an evicted pod do not end.
    Stuck(Arc<Entry>),
    /// A kernel hook could not be armed, for this reason; the sampler goes on alone.
    HookRefused(String),
}

/// The node is to give back what it can.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReclaimRequest {
    /// What the disk that is short is helped by, in this order.
    pub what: Vec<NodeReclaim>,
    /// Who is asked.
    pub of: ReclaimBy,
}

/// What may remove what is not in use on a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReclaimBy {
    /// The container runtime; answered by [`Command::Reclaimed`].
    Runtime,
    /// The kubelet beside this agent, which has the same thresholds.
    Kubelet,
    /// None: shadow mode only speaks of it.
    None,
}

/// What a reclaim by the container runtime has brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reclaimed {
    /// What the disk was to be helped by.
    pub what: Vec<NodeReclaim>,
    /// What was removed.
    pub removed: Removed,
    /// How much more of each signal that was short is available now, in its unit; less where others have used more
    /// meanwhile.
    pub freed: Vec<(Signal, i64)>,
    /// No threshold that asked for it is met any more, minimum reclaim included: no pod has to go.
    pub is_enough: bool,
    /// How long it took.
    pub took: std::time::Duration,
}

/// A pod that the manager has killed.
#[derive(Clone, Debug)]
pub struct EvictionReport {
    /// The victim.
    pub pod: Arc<Entry>,
    /// The number of this eviction: the manager counts its own from 1.
    pub number: u64,
    /// The engine's decision.
    pub eviction: EvictionDecision,
    /// What asked for it: a signal, or the name of the pod's own limit.
    pub signal: String,
    /// What woke the thread.
    pub hook: String,
    /// When.
    pub stages: Stages,
    /// What was available, in the signal's unit.
    pub available: u64,
    /// What should have been.
    pub threshold: u64,
    /// What the pod used of it.
    pub usage: u64,
    /// Nothing was killed.
    pub shadow: bool,
    /// SIGKILL was refused with this errno, 0 when it was not.
    pub errno: i32,
}

/// A pod is to be evicted for a soft threshold.
pub type SoftEvictionRequest = evictd_engine::soft::SoftEvictionRequest<Arc<Entry>>;

/// What a step has brought.
#[derive(Clone, Debug)]
pub struct MitigationOutcome {
    /// What was done.
    pub done: Done,
    /// What was available of the signal before, in bytes; for a release, when the throttle was set.
    pub available_before: i64,
    /// And now.
    pub available_after: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evicted(n: u64) -> Command {
        Command::EvictedByFastPath {
            uid: String::new(),
            signal: Signal::MemoryAvailable,
            available: n,
            shadow: false,
            refused: false,
        }
    }

    fn all(queue: &CommandQueue) -> Vec<Command> {
        std::iter::from_fn(|| queue.next()).collect()
    }

    #[test]
    fn answers_and_tables_find_a_place_in_a_full_queue() {
        let queue = CommandQueue::new().unwrap();
        for n in 0..=COMMANDS as u64 {
            queue.send(evicted(n));
        }
        assert_eq!(queue.dropped(), 1, "the last one");
        for _ in 0..ANSWERS {
            queue.send(Command::Reclaimed(None));
        }
        for _ in 0..3 {
            queue.send(Command::Members(PodSet::default()));
        }
        assert_eq!(queue.dropped(), 1);
        let commands = all(&queue);
        assert_eq!(commands.len(), COMMANDS + ANSWERS + 1, "one table");
        assert!(matches!(commands.last(), Some(Command::Members(_))));
        assert!(all(&queue).is_empty());
    }
}
