//! The way from the manager thread to the daemon. The manager never waits for its reader: the queue is bounded, and
//! what does not fit is dropped and counted, reports before evictions and requests.

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsRawFd, RawFd},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use evictd_engine::{
    EvictionDecision, NodeReclaim, NodeState, Recreation, Signal,
    node_reclaim::{ReclaimBy, Removed},
    record::{KillOutcome, Stages},
};
use evictd_node::pods::table::PodEntry;
use evictd_sys::{eventfd::EventFd, pi_mutex::PiMutex};

use crate::{MitigationOutcome, MitigationRequest};

/// An event of the manager.
#[derive(Debug)]
pub enum ManagerEvent {
    /// A pod was killed, or would have been.
    Evicted(Box<ManagerEviction>),
    /// A pod is to be asked to go; answered by [`Command::SoftEvictionFinished`](crate::Command::SoftEvictionFinished).
    Soft(Box<SoftEvictionRequest>),
    /// The state that the node should report has changed.
    Node(NodeState),
    /// The node is to give back what it can; pods wait for that, and a look at the signals says whether it has come.
    NodeReclaim(NodeReclaimRequest),
    /// A reclaim has ended with this outcome.
    NodeReclaimed(Box<NodeReclaimOutcome>),
    /// A step before an eviction is to be taken; answered by
    /// [`Command::MitigationDone`](crate::Command::MitigationDone) unless it is shadow mode's.
    Mitigate(Box<MitigationRequest>),
    /// A step before an eviction has ended with this outcome.
    Mitigated(Box<MitigationOutcome>),
    /// An evicted pod's owner has put another one here.
    Recreated(Recreation),
    /// A threshold is met as it comes into force.
    MetInForce(ThresholdMet),
    /// A threshold asks for an eviction, and no pod may go: so many are denied by a policy, a limit or a pause, or it is not
    /// urgent.
    NoCandidates {
        /// The threshold.
        met: ThresholdMet,
        /// Pods that are denied.
        denied: usize,
        /// No pod may go where that is not urgent.
        urgent_only: bool,
    },
    /// The processes of an evicted pod do not end.
    Stuck(Arc<PodEntry>),
    /// The files of evicted pods are not removed: for now pods go for files only where that is urgent.
    FilesStay,
    /// A kernel hook could not be armed, or counts nothing, for this reason; the sampler goes on alone.
    HookRefused(String),
}

/// A threshold that is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThresholdMet {
    /// The threshold's signal.
    pub signal: Signal,
    /// Whether it is a hard one.
    pub is_hard: bool,
    /// Amount that is available, in the signal's unit.
    pub available: u64,
    /// Amount that should be available, in the signal's unit.
    pub threshold: u64,
}

/// The node is to give back what it can.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeReclaimRequest {
    /// Kinds of reclaim that help the disk that is short, in this order.
    pub what: Vec<NodeReclaim>,
    /// Component that is asked to reclaim.
    pub by: ReclaimBy,
}

/// Outcome of a reclaim by the container runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeReclaimOutcome {
    /// Kinds of reclaim that were to help the disk.
    pub what: Vec<NodeReclaim>,
    /// Containers, sandboxes and images that were removed.
    pub removed: Removed,
    /// How much more of each signal that was short is available now, in its unit; less where others have used more
    /// meanwhile.
    pub freed: Vec<(Signal, i64)>,
    /// No threshold that asked for it is met any more, minimum reclaim included: no pod has to go.
    pub is_enough: bool,
    /// Time that the reclaim took.
    pub took: std::time::Duration,
}

/// A pod that the manager has killed.
#[derive(Clone, Debug)]
pub struct ManagerEviction {
    /// The victim.
    pub pod: Arc<PodEntry>,
    /// The number of this eviction: the manager counts its own from 1.
    pub number: u64,
    /// The engine's decision.
    pub eviction: EvictionDecision,
    /// The reason for the eviction: a signal, or the name of the pod's own limit.
    pub signal: String,
    /// Name of the hook that woke the thread.
    pub hook: String,
    /// Moments of the eviction, in nanoseconds of CLOCK_MONOTONIC; 0 where a hook cannot tell.
    pub stages: Stages,
    /// Amount that was available, in the signal's unit.
    pub available: u64,
    /// Threshold: the amount that should have been available, in the signal's unit.
    pub threshold: u64,
    /// Amount that the pod used, in the signal's unit.
    pub usage: u64,
    /// Whether SIGKILL was sent, or why not.
    pub outcome: KillOutcome,
}

/// A pod is to be evicted for a soft threshold.
pub type SoftEvictionRequest = evictd_engine::soft::SoftEvictionRequest<Arc<PodEntry>>;

/// Events that may wait.
const EVENTS: usize = 256;

/// Events of the manager, oldest first.
#[derive(Debug)]
pub struct ManagerEventQueue {
    wakeup: EventFd,
    events: PiMutex<VecDeque<ManagerEvent>>,
    dropped: AtomicU64,
}

impl ManagerEventQueue {
    /// An empty queue.
    ///
    /// # Errors
    /// The system has no descriptor to give.
    pub fn new() -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            wakeup: EventFd::new()?,
            events: PiMutex::new(VecDeque::with_capacity(EVENTS)),
            dropped: AtomicU64::new(0),
        }))
    }

    /// Adds an event; a state of the node replaces the one before. In a full queue an eviction or a request takes the
    /// place of the oldest report. Says whether the event was taken.
    pub(crate) fn send(&self, event: ManagerEvent) -> bool {
        // What is taken out is freed when the mutex is free again.
        let (replaced, displaced, refused);
        {
            let mut events = self.events.lock();
            replaced = match event {
                ManagerEvent::Node(_) => {
                    remove(&mut events, |other| matches!(other, ManagerEvent::Node(_)))
                }
                _ => None,
            };
            displaced = match events.len() < EVENTS || is_report(&event) {
                true => None,
                false => remove(&mut events, is_report),
            };
            refused = match events.len() < EVENTS {
                true => {
                    events.push_back(event);
                    None
                }
                false => Some(event),
            };
        }
        let lost = u64::from(displaced.is_some()) + u64::from(refused.is_some());
        self.dropped.fetch_add(lost, Ordering::Relaxed);
        self.wakeup.notify();
        drop((replaced, displaced));
        refused.is_none()
    }

    /// The oldest event.
    pub fn next(&self) -> Option<ManagerEvent> {
        self.wakeup.clear();
        self.events.lock().pop_front()
    }

    /// Events that did not fit since the start.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// Takes out the oldest of a kind.
fn remove(
    events: &mut VecDeque<ManagerEvent>,
    is_it: impl Fn(&ManagerEvent) -> bool,
) -> Option<ManagerEvent> {
    let at = events.iter().position(is_it)?;
    events.remove(at)
}

/// Whether it is only a report: nothing follows from it.
fn is_report(event: &ManagerEvent) -> bool {
    match event {
        ManagerEvent::Evicted(_)
        | ManagerEvent::Soft(_)
        | ManagerEvent::Node(_)
        | ManagerEvent::NodeReclaim(_)
        | ManagerEvent::Mitigate(_)
        | ManagerEvent::Stuck(_) => false,
        ManagerEvent::NodeReclaimed(_)
        | ManagerEvent::Mitigated(_)
        | ManagerEvent::Recreated(_)
        | ManagerEvent::MetInForce(_)
        | ManagerEvent::NoCandidates { .. }
        | ManagerEvent::FilesStay
        | ManagerEvent::HookRefused(_) => true,
    }
}

/// Becomes readable when there is an event.
impl AsRawFd for ManagerEventQueue {
    fn as_raw_fd(&self) -> RawFd {
        self.wakeup.fd().as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use evictd_engine::NodeCondition;

    use super::*;

    fn met(n: u64) -> ManagerEvent {
        ManagerEvent::MetInForce(ThresholdMet {
            signal: Signal::PidAvailable,
            is_hard: true,
            available: n,
            threshold: 0,
        })
    }

    fn request() -> ManagerEvent {
        ManagerEvent::NodeReclaim(NodeReclaimRequest {
            what: Vec::new(),
            by: ReclaimBy::None,
        })
    }

    fn node(message: &str) -> ManagerEvent {
        ManagerEvent::Node(NodeState {
            conditions: [NodeCondition::PidPressure].into(),
            message: message.to_owned(),
            ..NodeState::default()
        })
    }

    fn all(queue: &ManagerEventQueue) -> Vec<String> {
        let kind = |event| match event {
            ManagerEvent::MetInForce(met) => format!("met {}", met.available),
            ManagerEvent::Node(state) => state.message,
            ManagerEvent::NodeReclaim(_) => "request".to_owned(),
            other => panic!("{other:?}"),
        };
        std::iter::from_fn(|| queue.next()).map(kind).collect()
    }

    #[test]
    fn of_the_nodes_states_only_the_newest_waits() {
        let queue = ManagerEventQueue::new().unwrap();
        for event in [node("old"), met(1), node("new")] {
            assert!(queue.send(event));
        }
        assert_eq!(all(&queue), ["met 1", "new"]);
        assert_eq!(queue.dropped(), 0);
    }

    #[test]
    fn without_a_reader_nothing_waits_and_reports_give_way_first() {
        let queue = ManagerEventQueue::new().unwrap();
        for n in 0..EVENTS as u64 {
            assert!(queue.send(met(n)));
        }
        assert!(!queue.send(met(1000)), "a report takes no other's place");
        assert!(queue.send(request()));
        assert!(queue.send(node("state")));
        assert_eq!(queue.dropped(), 3);
        let left = all(&queue);
        assert_eq!(left.len(), EVENTS);
        assert_eq!(left.first().unwrap(), "met 2", "the oldest have gone");
        assert_eq!(left[EVENTS - 2..], ["request", "state"]);
        for _ in 0..EVENTS {
            assert!(queue.send(request()));
        }
        assert!(!queue.send(request()), "the sender knows");
        assert_eq!(queue.dropped(), 4);
    }
}
