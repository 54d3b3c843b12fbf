//! Starts and ends the thread of the manager.

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
const RESERVED_HEAP: usize = 64 << 10;

/// The running thread, seen from outside.
pub struct ManagerHandle {
    thread: std::thread::JoinHandle<()>,
    commands: Arc<CommandQueue>,
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
        let commands = CommandQueue::new()?;
        let status = Arc::new(Mutex::new(Status::default()));
        let recorder = Arc::<Recorder>::default();
        let shared = (
            Arc::clone(&commands),
            Arc::clone(&status),
            Arc::clone(&recorder),
        );
        let memory_v1 = setup.memory_v1.take();
        let mut looping = ManagerLoop::new(setup, notes, shared);
        let thread = std::thread::Builder::new()
            .name("manager".into())
            .spawn(move || {
                // The fast path was refused as well then, and that was said.
                let _ = memory_v1.map(|cgroup| join_root_memcg(&cgroup));
                // A fork bomb leaves nothing to a thread of normal priority; a refusal only makes it slower.
                if let Some(error) = set_sched_fifo(MANAGER_PRIORITY) {
                    tracing::debug!(%error, "the manager has no real-time priority");
                }
                prefault_heap::<RESERVED_HEAP>();
                looping.run();
            })?;
        let running = Self {
            thread,
            commands,
            status,
            recorder,
        };
        Ok((running, receiver))
    }

    /// Where commands go.
    pub fn commands(&self) -> &Arc<CommandQueue> {
        &self.commands
    }

    /// What the last round saw.
    pub fn status(&self) -> Arc<Mutex<Status>> {
        Arc::clone(&self.status)
    }

    /// What the manager have seen lately.
    pub fn recorder(&self) -> &Arc<Recorder> {
        &self.recorder
    }

    /// Ends the thread. The receiver of its notes must be gone or go on reading.
    pub fn stop(self) {
        self.commands.stop();
        if self.thread.join().is_err() {
            tracing::error!("the manager has panicked");
        }
    }
}
