//! Starts and ends the thread of the rounds.

use std::{
    io,
    sync::{Arc, Mutex},
};

use evictd_engine::history::Recorder;
use evictd_sys::rt::{MANAGER_PRIORITY, join_root_memcg, prefault_heap, set_sched_fifo};
use tokio::sync::mpsc;

use crate::{
    CommandQueue, ManagerEvent,
    manager_loop::{ManagerLoop, Setup, Status},
};

/// Notes that may wait for the daemon; it empties them at once, and this thread waits when it does not.
const EVENTS: usize = 64;
/// Bytes of heap that an eviction may need beside what each round does; less than glibc would give back (M_TRIM_THRESHOLD).
const SPARE_HEAP: usize = 64 << 10;

/// The running thread, seen from outside.
pub struct ManagerHandle {
    thread: std::thread::JoinHandle<()>,
    inbox: Arc<CommandQueue>,
    status: Arc<Mutex<Status>>,
    recorder: Arc<Recorder>,
}

impl ManagerHandle {
    /// Starts the thread. Its notes come out of the other end.
    ///
    /// # Errors
    /// The system has no thread or descriptor to give.
    pub fn start(mut setup: Setup) -> io::Result<(Self, mpsc::Receiver<ManagerEvent>)> {
        let (notes, receiver) = mpsc::channel(EVENTS);
        let inbox = CommandQueue::new()?;
        let status = Arc::new(Mutex::new(Status::default()));
        let recorder = Arc::<Recorder>::default();
        let shared = (
            Arc::clone(&inbox),
            Arc::clone(&status),
            Arc::clone(&recorder),
        );
        let memory_v1 = setup.memory_v1.take();
        let mut looping = ManagerLoop::new(setup, notes, shared);
        let thread = std::thread::Builder::new()
            .name("rounds".into())
            .spawn(move || {
                // The reflex was refused as well then, and that was said.
                let _ = memory_v1.map(|cgroup| join_root_memcg(&cgroup));
                // A fork bomb leaves nothing to a thread of normal priority; a refusal only makes it slower.
                if let Some(error) = set_sched_fifo(MANAGER_PRIORITY) {
                    tracing::debug!(%error, "the rounds have no real-time priority");
                }
                prefault_heap::<SPARE_HEAP>();
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
    pub fn commands(&self) -> &Arc<CommandQueue> {
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
