//! Starts and ends the fast path.

use std::{io, sync::Arc};

use evictd_node::{
    cgroup::realtime::{acquire_fastpath_fifo, join_root_memcg},
    memory_scope::Scope,
};
use evictd_sys::rt::{lock_memory, prefault_stack};

use crate::{
    FastPathControl,
    monitor::{FastPathSetup, MemoryMonitor},
    shared_monitor::{FASTPATH_STACK, SharedMonitor},
    standby::Standby,
};

/// A running fast path thread.
pub struct FastPath {
    thread: std::thread::JoinHandle<()>,
    control: Arc<FastPathControl>,
    tid: i32,
}

impl FastPath {
    /// Starts the thread and waits until its triggers are armed.
    ///
    /// # Errors
    /// The thread cannot be started, a scope cannot be read, a trigger cannot be armed.
    #[expect(clippy::disallowed_methods, reason = "at the start")]
    pub fn start(setup: FastPathSetup) -> io::Result<(Self, StartRefusals)> {
        let control = Arc::clone(&setup.control);
        let (started, ready) = std::sync::mpsc::sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("fastpath".into())
            .spawn(move || {
                let mut refusals = StartRefusals {
                    // Before another thread is started from here.
                    limit: Scope::memory_v1(&setup.scopes)
                        .and_then(|cgroup| join_root_memcg(cgroup).err()),
                    lock: lock_memory().err(),
                    fifo: acquire_fastpath_fifo().err(),
                    standby: None,
                };
                prefault_stack::<FASTPATH_STACK>();
                let monitor = match share_monitor(setup) {
                    Ok(monitor) => monitor,
                    Err(error) => return drop(started.send(Err(error))),
                };
                let standby = match refusals.fifo {
                    Some(_) => Ok(None),
                    None => Standby::start(&monitor),
                };
                let _standby = standby.unwrap_or_else(|refused| {
                    refusals.standby = Some(refused);
                    None
                });
                let tid = nix::unistd::gettid().as_raw();
                if started.send(Ok((refusals, tid))).is_ok() {
                    monitor.run();
                }
            })?;
        let (refusals, tid) = ready
            .recv()
            .map_err(|_| io::Error::other("the fast path ended before it was ready"))??;
        Ok((
            Self {
                thread,
                control,
                tid,
            },
            refusals,
        ))
    }

    /// The kernel's id of the thread, for its counters in `/proc/self/task`.
    pub fn tid(&self) -> i32 {
        self.tid
    }

    /// Ends the thread.
    #[expect(clippy::disallowed_methods, reason = "the caller has normal priority")]
    pub fn stop(self) {
        self.control.stop();
        // A panic has printed its message.
        let _ = self.thread.join();
    }
}

/// The shared monitor, with all triggers armed.
fn share_monitor(setup: FastPathSetup) -> io::Result<Arc<SharedMonitor>> {
    let mut monitor = MemoryMonitor::new(setup);
    monitor.arm_scopes()?;
    SharedMonitor::new(monitor).map(Arc::new)
}

/// What the system has refused. The daemon logs each once; a refusal makes the agent slower, and nothing else.
#[derive(Debug, Default)]
pub struct StartRefusals {
    /// [`acquire_fastpath_fifo`]: needs CAP_SYS_NICE, and a budget where the kernel groups real-time tasks.
    pub fifo: Option<io::Error>,
    /// `mlockall`: needs CAP_IPC_LOCK or a large enough RLIMIT_MEMLOCK.
    pub lock: Option<io::Error>,
    /// [`join_root_memcg`]: needs the hierarchy's root, mounted to be written to.
    pub limit: Option<io::Error>,
    /// A standby thread and its wake threads: perf_event_open needs CAP_PERFMON ([`evictd_sys::perf::explain`]). Not tried without `fifo`.
    pub standby: Option<io::Error>,
}
