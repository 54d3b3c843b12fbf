//! Starts and ends the thread of the manager.

use std::{io, sync::Arc, time::Duration};

use evictd_engine::recorder::Recorder;
use evictd_node::cgroup::realtime::{acquire_sched_fifo, join_root_memcg};
use evictd_sys::{
    rt::{MANAGER_PRIORITY, prefault_heap},
    thread::wait_for_end,
};

use crate::{
    CommandQueue, ManagerEventQueue, SharedStatus,
    manager_loop::{ManagerLoop, ManagerSetup},
};

/// Bytes of heap that an eviction may need beside what each cycle does; less than glibc would give back
/// (M_TRIM_THRESHOLD).
const RESERVED_HEAP: usize = 64 << 10;

/// The running thread, seen from outside.
pub struct ManagerHandle {
    thread: std::thread::JoinHandle<()>,
    /// Queue to which commands go.
    pub commands: Arc<CommandQueue>,
    /// Queue of the manager's events.
    pub events: Arc<ManagerEventQueue>,
    /// Status of the last cycle, and its time.
    pub status: Arc<SharedStatus>,
    /// Recorder of what the manager has seen lately.
    pub recorder: Arc<Recorder>,
}

impl ManagerHandle {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system has no thread or descriptor to give.
    pub fn start(mut setup: ManagerSetup) -> io::Result<Self> {
        let events = ManagerEventQueue::new()?;
        let commands = CommandQueue::new()?;
        let status = Arc::<SharedStatus>::default();
        let recorder = Arc::<Recorder>::default();
        let memory_v1 = setup.memory_v1.take();
        let mut looping = ManagerLoop::new(
            setup,
            Arc::clone(&events),
            Arc::clone(&commands),
            Arc::clone(&status),
            Arc::clone(&recorder),
        );
        let thread = std::thread::Builder::new()
            .name("manager".into())
            .spawn(move || {
                // The fast path was refused as well then, and that was logged.
                let _ = memory_v1.map(|cgroup| join_root_memcg(&cgroup));
                // A fork bomb leaves nothing to a thread of normal priority. Where this is refused, the fast path was
                // refused as well, and that was logged.
                let _ = acquire_sched_fifo(MANAGER_PRIORITY);
                prefault_heap::<RESERVED_HEAP>();
                looping.run();
            })?;
        Ok(Self {
            thread,
            commands,
            events,
            status,
            recorder,
        })
    }

    /// Ends the thread. False when it has not ended in time: a call into the kernel does not return.
    pub fn stop(self, patience: Duration) -> bool {
        self.commands.stop();
        wait_for_end(&self.thread, patience)
    }
}
