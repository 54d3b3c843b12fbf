//! Decides in the place of a fast path that was woken and does not run in time.
//!
//! Waking a thread that sleeps on another CPU waits until that CPU is awake, and the task that charges goes on
//! meanwhile. The CPU of that task is awake, so each CPU has a wake thread that sleeps on a perf event. When no thread
//! reads a crossing in time, the next charge wakes the wake thread of its CPU ([`Action::WakeLocal`]). That moves the
//! standby thread to this CPU and wakes it, and the standby thread decides as the fast path would have
//! ([`crate::shared_monitor`]). It goes on looking as long as a threshold is met and the fast path does not come: the
//! first look may find it not urgent yet.
//!
//! [`Action::WakeLocal`]: evictd_node::trigger::memory::Action::WakeLocal

#![expect(
    clippy::disallowed_types,
    reason = "only wake threads lock this lock, and all have the same priority"
)]

use std::{
    io,
    os::fd::AsFd,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::{Builder, JoinHandle},
    time::Duration,
};

use evictd_node::{
    bpf::perf_wakeup::{LocalWakeup, LocalWakeups},
    cgroup::realtime::acquire_sched_fifo,
};
use evictd_sys::{
    eventfd::EventFd,
    perf,
    poll::poll,
    rt::{FASTPATH_PRIORITY, prefault_stack},
};
use nix::{
    sched::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity},
    unistd::{Pid, gettid},
};

use crate::shared_monitor::{FASTPATH_STACK, SharedMonitor};

/// Above every thread of normal priority; the standby thread runs as soon as it is called.
const WAKE_PRIORITY: i32 = FASTPATH_PRIORITY - 1;
/// Bytes that a wake thread touches at the start; its calls need half a KiB.
const WAKE_STACK: usize = 4 << 10;
/// Bytes of a stack that are reserved beside those that are touched.
const STACK_MARGIN: usize = 60 << 10;
/// How often a wake thread checks whether its CPU has gone offline and come back. Not all kernels hang up the event of
/// such a CPU.
const CPU_CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// The calling thread, for the scheduler's calls.
const THE_CALLER: Pid = Pid::from_raw(0);

/// State that wake threads and standby thread share.
struct StandbyShared {
    monitor: Arc<SharedMonitor>,
    /// Opening an event waits for memory: never under the monitor's lock.
    wakeups: Mutex<LocalWakeups>,
    standby: Pid,
    /// Wakes the standby thread.
    call: EventFd,
    /// The standby thread was called, and has not gone back to sleep.
    called: AtomicBool,
    /// Ends all of these threads.
    end: EventFd,
}

/// The standby thread and its wake threads; dropped, they end.
pub(super) struct Standby {
    shared: Arc<StandbyShared>,
    threads: Vec<JoinHandle<()>>,
}

impl Standby {
    /// A standby thread, and a wake thread on each CPU that the calling thread may run on. `None` where that is one
    /// CPU, and with a hook that cannot tell on which CPU a crossing happens.
    ///
    /// # Errors
    /// Threads, perf events or real-time priority are refused. Without that priority a wake thread would wait for the
    /// charging task.
    #[expect(clippy::disallowed_methods, reason = "at the start")]
    pub fn start(monitor: &Arc<SharedMonitor>) -> io::Result<Option<Self>> {
        let home = sched_getaffinity(THE_CALLER)?;
        let cpus: Vec<usize> = (0..CpuSet::count())
            .filter(|&cpu| home.is_set(cpu) == Ok(true))
            .collect();
        if cpus.len() < 2 {
            return Ok(None);
        }
        let Some(mut wakeups) = monitor.lock().triggers.set.take_local_wakeups() else {
            return Ok(None);
        };
        let opened: io::Result<Vec<_>> = cpus
            .into_iter()
            .map(|cpu| Ok((cpu, wakeups.open(cpu).map_err(perf::explain)?)))
            .collect();
        let opened = opened?;
        let (call, end) = (EventFd::new()?, EventFd::new()?);
        let (start, started) = mpsc::sync_channel(1);
        let (share, shared) = mpsc::sync_channel::<Arc<StandbyShared>>(1);
        let thread = Builder::new()
            .name("standby".into())
            .stack_size(FASTPATH_STACK + STACK_MARGIN)
            .spawn(move || {
                let granted = acquire_sched_fifo(FASTPATH_PRIORITY);
                prefault_stack::<FASTPATH_STACK>();
                let sent = start.send(granted.map(|()| gettid()));
                if let (Ok(()), Ok(shared)) = (sent, shared.recv()) {
                    shared.run();
                }
            })?;
        let standby = started.recv().map_err(io::Error::other)??;
        let shared = Arc::new(StandbyShared {
            monitor: Arc::clone(monitor),
            wakeups: Mutex::new(wakeups),
            standby,
            call,
            called: AtomicBool::new(false),
            end,
        });
        share.send(Arc::clone(&shared)).map_err(io::Error::other)?;
        let mut standby = Self {
            shared,
            threads: vec![thread],
        };
        for (cpu, wakeup) in opened {
            standby.threads.push(spawn(&standby.shared, cpu, wakeup)?);
        }
        Ok(Some(standby))
    }
}

#[expect(clippy::disallowed_methods, reason = "at the end")]
impl Drop for Standby {
    fn drop(&mut self) {
        self.shared.end.notify();
        for thread in self.threads.drain(..) {
            // A panic has printed its message.
            let _ = thread.join();
        }
    }
}

/// Starts the wake thread of a CPU and waits until it is tied to that CPU.
#[expect(clippy::disallowed_methods, reason = "at the start")]
fn spawn(
    shared: &Arc<StandbyShared>,
    cpu: usize,
    wakeup: LocalWakeup,
) -> io::Result<JoinHandle<()>> {
    let shared = Arc::clone(shared);
    let (ready, started) = mpsc::sync_channel(1);
    let thread = Builder::new()
        .name(format!("wake/{cpu}"))
        .stack_size(WAKE_STACK + STACK_MARGIN)
        .spawn(move || {
            let placed = only(cpu)
                .and_then(|here| sched_setaffinity(THE_CALLER, &here))
                .map_err(io::Error::from)
                .and_then(|()| acquire_sched_fifo(WAKE_PRIORITY));
            let goes_on = placed.is_ok();
            prefault_stack::<WAKE_STACK>();
            if ready.send(placed).is_ok() && goes_on {
                shared.wait_for_wakeup(cpu, wakeup);
            }
        })?;
    started.recv().map_err(io::Error::other)??;
    Ok(thread)
}

impl StandbyShared {
    /// The loop of a wake thread.
    fn wait_for_wakeup(&self, cpu: usize, wakeup: LocalWakeup) {
        let mut wakeup = Some(wakeup);
        loop {
            let event = wakeup.as_ref().map(AsFd::as_fd);
            let [end, alarm] = poll([Some(self.end.fd()), event], Some(CPU_CHECK_INTERVAL));
            if end != 0 {
                return;
            }
            match &mut wakeup {
                Some(wakeup) if alarm & libc::POLLIN != 0 => {
                    // What comes from here on wakes it again.
                    wakeup.clear();
                    // Where the standby thread finds the monitor locked, its holder goes on; if not, the program asks
                    // once more.
                    if self.monitor.has_unread_triggers() {
                        self.wake_standby();
                    }
                }
                Some(_) if alarm == 0 && is_tied_to(cpu) => {}
                // The event is gone, with its CPU; that may be back by now.
                _ => {
                    drop(wakeup.take());
                    wakeup = self.come_back(cpu);
                }
            }
        }
    }

    /// A new event for a CPU that was offline, to which the thread is tied again; `None` as long as the CPU is offline.
    fn come_back(&self, cpu: usize) -> Option<LocalWakeup> {
        sched_setaffinity(THE_CALLER, &only(cpu).ok()?).ok()?;
        let wakeups = self.wakeups.lock();
        let mut wakeups = wakeups.unwrap_or_else(PoisonError::into_inner);
        wakeups.open(cpu).ok()
    }

    fn wake_standby(&self) {
        if self.called.swap(true, Ordering::AcqRel) {
            return;
        }
        // The CPU of now: the cpuset of this thread may have changed. If refused, the standby thread wakes up where it
        // is.
        let _ = sched_getcpu()
            .and_then(only)
            .and_then(|here| sched_setaffinity(self.standby, &here));
        self.call.notify();
    }

    /// The loop of the standby thread.
    fn run(&self) {
        let fds = [&self.end, &self.call].map(|event| Some(event.fd()));
        let mut next_look = None;
        loop {
            let [end, _] = poll(fds, next_look);
            if end != 0 {
                return;
            }
            self.call.clear();
            next_look = self.monitor.take_over();
            self.called.store(false, Ordering::Release);
        }
    }
}

/// Whether the calling thread may run on this CPU alone. The kernel lets it run anywhere when the CPU goes, and for
/// good.
fn is_tied_to(cpu: usize) -> bool {
    let may_run = sched_getaffinity(THE_CALLER);
    may_run.is_ok_and(|cpus| only(cpu) == Ok(cpus))
}

fn only(cpu: usize) -> nix::Result<CpuSet> {
    let mut cpus = CpuSet::new();
    cpus.set(cpu)?;
    Ok(cpus)
}
