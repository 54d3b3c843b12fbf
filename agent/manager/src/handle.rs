//! Starts and ends the thread of the rounds.

use std::{
    collections::BTreeSet,
    io,
    path::PathBuf,
    sync::{Arc, Mutex},
};

use evictd_engine as engine;
use evictd_engine::{
    NodeCondition, Observations, Signal, SignalForecast, Threshold, history::Recorder,
    limiter::Restraint, settings::GraduatedConfig,
};
use evictd_node::trigger::counter::Drift;
use evictd_sys::rt::{ROUNDS_PRIORITY, become_fifo_at, leave_memory_limit, touch_heap};
use tokio::sync::mpsc;

use crate::{Inbox, Members, Note, Reclaiming, Sensors, Walker, manager_loop::Loop};

/// Notes that may wait for the daemon; it empties them at once, and this thread waits when it does not.
const NOTES: usize = 64;
/// Bytes of heap that an eviction may need beside what each round does; less than glibc would give back (M_TRIM_THRESHOLD).
const SPARE_HEAP: usize = 64 << 10;

/// What the rounds need.
pub struct Setup {
    /// Thresholds, layout and all that the engine is told.
    pub settings: engine::Settings,
    /// What is looked at.
    pub sensors: Sensors,
    /// Walks the pods' directories.
    pub walker: Arc<Walker>,
    /// Who runs here at the start.
    pub members: Members,
    /// What holds for all pods: limits and the pause.
    pub restraint: Arc<Restraint>,
    /// Decide, tell, and do nothing (R47).
    pub shadow: bool,
    /// Who may do what [`Note::Reclaim`] asks for: pods wait for it, for a while.
    pub reclaims: Reclaiming,
    /// What is done about a soft threshold on memory before anybody is evicted (R46).
    pub graduated: GraduatedConfig,
    /// A directory of cgroup v1's memory hierarchy, where there is one ([`leave_memory_limit`]).
    pub memory_v1: Option<PathBuf>,
    /// What an earlier agent has done.
    pub earlier: engine::Earlier,
}

/// What the last round saw, for whoever shows it.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// What was left of everything.
    pub observations: Observations,
    /// The thresholds in force.
    pub thresholds: Vec<Threshold>,
    /// Where signals are heading (R44).
    pub forecasts: Vec<SignalForecast>,
    /// The conditions that hold.
    pub conditions: BTreeSet<NodeCondition>,
    /// How far the counts of hooks were off, by signal.
    pub drift: Vec<(Signal, Drift)>,
    /// Rounds since the start.
    pub rounds: u64,
    /// Pods that came back after an eviction (R17, R29).
    pub comebacks: u64,
}

/// The running thread, seen from outside.
pub struct Rounds {
    thread: std::thread::JoinHandle<()>,
    inbox: Arc<Inbox>,
    status: Arc<Mutex<Status>>,
    recorder: Arc<Recorder>,
}

impl Rounds {
    /// Starts the thread. Its notes come out of the other end.
    ///
    /// # Errors
    /// The system has no thread or descriptor to give.
    pub fn start(mut setup: Setup) -> io::Result<(Self, mpsc::Receiver<Note>)> {
        let (notes, receiver) = mpsc::channel(NOTES);
        let inbox = Inbox::new()?;
        let status = Arc::new(Mutex::new(Status::default()));
        let recorder = Arc::<Recorder>::default();
        let shared = (
            Arc::clone(&inbox),
            Arc::clone(&status),
            Arc::clone(&recorder),
        );
        let memory_v1 = setup.memory_v1.take();
        let mut looping = Loop::new(setup, notes, shared);
        let thread = std::thread::Builder::new()
            .name("rounds".into())
            .spawn(move || {
                // The reflex was refused as well then, and that was said.
                let _ = memory_v1.map(|cgroup| leave_memory_limit(&cgroup));
                // A fork bomb leaves nothing to a thread of normal priority; a refusal only makes it slower.
                if let Some(error) = become_fifo_at(ROUNDS_PRIORITY) {
                    tracing::debug!(%error, "the rounds have no real-time priority");
                }
                touch_heap::<SPARE_HEAP>();
                looping.run();
            })?;
        let running = Self {
            thread,
            inbox,
            status,
            recorder,
        };
        Ok((running, receiver))
    }

    /// Where letters go.
    pub fn inbox(&self) -> &Arc<Inbox> {
        &self.inbox
    }

    /// What the last round saw.
    pub fn status(&self) -> Arc<Mutex<Status>> {
        Arc::clone(&self.status)
    }

    /// What the rounds have seen lately.
    pub fn recorder(&self) -> &Arc<Recorder> {
        &self.recorder
    }

    /// Ends the thread. The receiver of its notes must be gone or go on reading.
    pub fn stop(self) {
        self.inbox.stop();
        if self.thread.join().is_err() {
            tracing::error!("the thread of the rounds has panicked");
        }
    }
}
