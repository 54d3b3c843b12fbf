//! The way from the daemon to the manager thread.

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
    EvictionDecision, Resource, Signal,
    model::settings::MitigationConfig,
    node_reclaim::Removed,
    record::{Departure, KillOutcome},
};
use evictd_node::memory_scope::Scope;
use evictd_sys::{eventfd::EventFd, pi_mutex::PiMutex};

use crate::{DiskSources, PodSet, StepEffect};

/// A command to the manager.
#[derive(Debug)]
pub enum Command {
    /// The pods of the node from now on.
    Pods(PodSet),
    /// The cgroup of all pods has come, or is another one or of another size now; `None` where no threshold can be held
    /// against its limit.
    PodsMemory(Option<Box<Scope>>),
    /// The node's memory has another capacity now.
    NodeMemory(Box<Scope>),
    /// The disks, which could not be watched before.
    Disks(Box<DiskSources>),
    /// The fast path has evicted a pod.
    EvictedByFastPath {
        /// The pod's UID.
        uid: String,
        /// Signal that was short.
        signal: Signal,
        /// Amount that was available then by the kubelet's count, in the signal's unit.
        available: u64,
        /// Outcome of the eviction for the pod.
        outcome: KillOutcome,
    },
    /// The kubelet has evicted a pod.
    EvictedByKubelet {
        /// The pod's UID.
        uid: String,
        /// Resource that was short; `None` for a limit of the pod's own.
        resource: Option<Resource>,
    },
    /// Outcome of a [`SoftEvictionRequest`](crate::SoftEvictionRequest).
    SoftEvictionFinished {
        /// The UID of the pod that was chosen first.
        chosen: String,
        /// The pod that goes, if one does.
        gone: Option<(EvictionDecision, Departure)>,
    },
    /// A reclaim by [`ManagerEvent::NodeReclaim`](crate::ManagerEvent::NodeReclaim) is over: what was removed, or
    /// `None` when there is no runtime to ask.
    NodeReclaimDone(Option<Removed>),
    /// A step by [`ManagerEvent::Mitigate`](crate::ManagerEvent::Mitigate) is over.
    MitigationDone(Box<StepEffect>),
    /// The manager goes on with other settings.
    Settings {
        /// Thresholds and all other settings of the engine.
        settings: Box<evictd_engine::PlannerSettings>,
        /// Decide and report, and kill nothing.
        shadow: bool,
        /// Settings of the steps that are taken before a pod is evicted.
        mitigation: MitigationConfig,
    },
}

/// Commands that may wait; of tables, scopes and settings only the newest does.
const COMMANDS: usize = 256;
/// Further places for answers. The manager has less than so many requests under way at once, so that each answer finds
/// a place.
const ANSWERS: usize = 64;

impl Command {
    /// Places that it may take in the queue, those of all others included.
    fn places(&self) -> usize {
        match self {
            Self::EvictedByFastPath { .. } | Self::EvictedByKubelet { .. } => COMMANDS,
            Self::SoftEvictionFinished { .. }
            | Self::NodeReclaimDone(_)
            | Self::MitigationDone(_) => COMMANDS + ANSWERS,
            // One of each.
            Self::Pods(_)
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
            (Self::Pods(_), Self::Pods(_))
                | (Self::PodsMemory(_), Self::PodsMemory(_))
                | (Self::NodeMemory(_), Self::NodeMemory(_))
                | (Self::Disks(_), Self::Disks(_))
                | (Self::Settings { .. }, Self::Settings { .. })
        )
    }
}

/// Queue of commands, and the request to stop. A table, a scope or settings always find a place: each replaces the one
/// before.
#[derive(Debug)]
pub struct CommandQueue {
    wakeup: EventFd,
    commands: PiMutex<VecDeque<Command>>,
    dropped: AtomicU64,
    stop: AtomicBool,
}

impl CommandQueue {
    /// An empty one.
    ///
    /// # Errors
    /// The system has no descriptor to give.
    pub fn new() -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            wakeup: EventFd::new()?,
            commands: PiMutex::new(VecDeque::with_capacity(COMMANDS + ANSWERS)),
            dropped: AtomicU64::new(0),
            stop: AtomicBool::new(false),
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
        self.wakeup.notify();
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
        self.wakeup.notify();
    }

    pub(super) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.wakeup.fd()
    }

    /// The oldest command.
    pub(super) fn next(&self) -> Option<Command> {
        self.wakeup.clear();
        self.commands.lock().pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evicted(n: u64) -> Command {
        Command::EvictedByFastPath {
            uid: String::new(),
            signal: Signal::MemoryAvailable,
            available: n,
            outcome: KillOutcome::Killed,
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
            queue.send(Command::NodeReclaimDone(None));
        }
        for _ in 0..3 {
            queue.send(Command::Pods(PodSet::default()));
        }
        assert_eq!(queue.dropped(), 1);
        let commands = all(&queue);
        assert_eq!(commands.len(), COMMANDS + ANSWERS + 1, "one table");
        assert!(matches!(commands.last(), Some(Command::Pods(_))));
        assert!(all(&queue).is_empty());
    }
}
