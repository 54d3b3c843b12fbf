//! Who decides when the reflex is woken and does not come.
//!
//! To wake a thread that sleeps on another CPU means to wake that CPU: out of its idle state, or from wherever a hypervisor
//! has put it. On a virtual machine that is some 100 us, and milliseconds now and then, in which whoever charges on the CPU
//! beside it goes on. But that CPU is awake by definition. So there is a waker on each, a thread that is tied to it and
//! sleeps on a perf event of its own. Where nobody has heard of a crossing in time, the next charge wakes the one of its CPU
//! ([`evictd_node::trigger::memory::Act::Alarm`]); that one ties the deputy to its CPU and wakes it, and the deputy decides as the
//! reflex would have ([`crate::shared_monitor`]). The deputy is never woken from anywhere else: a thread that is on its way to another
//! CPU could not be brought here.

use std::{
    io,
    os::fd::{AsFd as _, AsRawFd as _},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::{Builder, JoinHandle},
};

use evictd_node::bpf::perf_wakeup::LocalWakeup;
use evictd_sys::{
    eventfd::EventFd,
    poll::poll,
    rt::{FASTPATH_PRIORITY, prefault_stack, set_sched_fifo},
};
use nix::{
    sched::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity},
    unistd::{Pid, gettid},
};

use crate::shared_monitor::{FASTPATH_STACK, SharedMonitor};

/// Above every thread of normal priority; the deputy runs as soon as it is called.
const WAKER_PRIORITY: i32 = FASTPATH_PRIORITY - 1;
/// A waker calls nothing that is deep: half a KiB.
const WAKER_STACK: usize = 4 << 10;
/// What is reserved, beside what is touched.
const STACK_ROOM: usize = 60 << 10;
/// What the scheduler's calls take for the thread that makes them.
const THE_CALLER: Pid = Pid::from_raw(0);

/// What wakers and deputy share.
struct StandbyShared {
    monitor: Arc<SharedMonitor>,
    standby: Pid,
    /// Wakes the deputy.
    call: EventFd,
    /// It was called, and has not gone back to sleep.
    called: AtomicBool,
    /// Ends them all.
    end: EventFd,
}

/// The deputy and its wakers; dropped, they end.
pub(super) struct Standby {
    shared: Arc<StandbyShared>,
    threads: Vec<JoinHandle<()>>,
}

impl Standby {
    /// A deputy, and a waker on each CPU that the calling thread may run on. `None` where there is only one of them, and on a
    /// rung that cannot tell where a crossing happens.
    ///
    /// # Errors
    /// Why there is none: threads or perf events are refused, or real-time priority is, without which whoever charges
    /// goes before a waker.
    pub fn start(seat: &Arc<SharedMonitor>) -> io::Result<Option<Self>> {
        let home = sched_getaffinity(THE_CALLER)?;
        let cpus: Vec<usize> = (0..CpuSet::count())
            .filter(|&cpu| home.is_set(cpu) == Ok(true))
            .collect();
        if cpus.len() < 2 {
            return Ok(None);
        }
        let mut wakeups = Vec::with_capacity(cpus.len());
        for cpu in cpus {
            let number = u32::try_from(cpu).unwrap_or(u32::MAX);
            match seat.lock().setup.trigger.local_wakeup(number)? {
                Some(wakeup) => wakeups.push((cpu, wakeup)),
                None => return Ok(None),
            }
        }
        let (call, end) = (EventFd::new()?, EventFd::new()?);
        let (tell, told) = mpsc::sync_channel(1);
        let (hand, handed) = mpsc::sync_channel::<Arc<StandbyShared>>(1);
        let thread = Builder::new()
            .name("deputy".into())
            .stack_size(FASTPATH_STACK + STACK_ROOM)
            .spawn(move || {
                let refused = set_sched_fifo(FASTPATH_PRIORITY);
                prefault_stack::<FASTPATH_STACK>();
                let told = tell.send(refused.map_or_else(|| Ok(gettid()), Err));
                if let (Ok(()), Ok(office)) = (told, handed.recv()) {
                    office.run();
                }
            })?;
        let deputy = told.recv().map_err(io::Error::other)??;
        let office = Arc::new(StandbyShared {
            monitor: Arc::clone(seat),
            standby: deputy,
            call,
            called: AtomicBool::new(false),
            end,
        });
        hand.send(Arc::clone(&office)).map_err(io::Error::other)?;
        let mut deputy = Self {
            shared: office,
            threads: vec![thread],
        };
        for (cpu, wakeup) in wakeups {
            deputy.threads.push(spawn(&deputy.shared, cpu, wakeup)?);
        }
        Ok(Some(deputy))
    }

    /// The kernel's id of the deputy's thread.
    pub fn tid(&self) -> i32 {
        self.shared.standby.as_raw()
    }
}

impl Drop for Standby {
    fn drop(&mut self) {
        self.shared.end.notify();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("the deputy or one of its wakers has panicked");
            }
        }
    }
}

/// Starts the waker of a CPU and waits until it is in its place.
fn spawn(
    office: &Arc<StandbyShared>,
    cpu: usize,
    mut wakeup: LocalWakeup,
) -> io::Result<JoinHandle<()>> {
    let office = Arc::clone(office);
    let (ready, started) = mpsc::sync_channel(1);
    let thread = Builder::new()
        .name(format!("waker/{cpu}"))
        .stack_size(WAKER_STACK + STACK_ROOM)
        .spawn(move || {
            let placed = only(cpu)
                .and_then(|here| sched_setaffinity(THE_CALLER, &here))
                .map_err(io::Error::from)
                .and_then(|()| set_sched_fifo(WAKER_PRIORITY).map_or(Ok(()), Err));
            let goes_on = placed.is_ok();
            prefault_stack::<WAKER_STACK>();
            if ready.send(placed).is_ok() && goes_on {
                office.wait_for_wakeup(&mut wakeup);
            }
        })?;
    started.recv().map_err(io::Error::other)??;
    Ok(thread)
}

impl StandbyShared {
    /// What a waker does all its life: sleep.
    fn wait_for_wakeup(&self, wakeup: &mut LocalWakeup) {
        let mut fds = [self.end.fd().as_raw_fd(), wakeup.as_fd().as_raw_fd()];
        loop {
            let [end, alarm] = poll(fds, None);
            if end != 0 {
                return;
            }
            if alarm & libc::POLLIN != 0 {
                // What comes from here on wakes it again.
                wakeup.clear();
                // Where the deputy finds the seat taken, whoever has it goes on; if not, the program asks once more.
                if self.monitor.has_unread_triggers() {
                    self.wake_standby();
                }
            } else if alarm != 0 {
                // The event is gone, with its CPU.
                fds[1] = -1;
            }
        }
    }

    fn wake_standby(&self) {
        if self.called.swap(true, Ordering::AcqRel) {
            return;
        }
        // Not the CPU that this thread was tied to: its cpuset may have changed. Refused, the deputy wakes up where it is.
        let _ = sched_getcpu()
            .and_then(only)
            .and_then(|here| sched_setaffinity(self.standby, &here));
        self.call.notify();
    }

    /// What the deputy does all its life: sleep, until it is called.
    fn run(&self) {
        let fds = [&self.end, &self.call].map(|bell| bell.fd().as_raw_fd());
        loop {
            let [end, _] = poll(fds, None);
            if end != 0 {
                return;
            }
            self.call.clear();
            self.monitor.take_over();
            self.called.store(false, Ordering::Release);
        }
    }
}

fn only(cpu: usize) -> nix::Result<CpuSet> {
    let mut cpus = CpuSet::new();
    cpus.set(cpu)?;
    Ok(cpus)
}
