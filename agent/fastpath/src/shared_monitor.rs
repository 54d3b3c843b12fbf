//! The state of the loop, shared by the fast path and the standby thread, which decides where the fast path is late.

#![expect(
    clippy::disallowed_types,
    reason = "the threads that lock this lock have the same priority, or only try"
)]

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use evictd_node::cgroup::limit_writes::LimitWrites;
use evictd_sys::{clock::monotonic_ns, mutex::locked, poll::poll};

use crate::{FastPathControl, monitor::MemoryMonitor, spin::Wait};

/// Polls of the hook between two usage reads while spinning. The monitor is locked only for a read, so that the standby
/// thread finds it free if the hypervisor takes this CPU.
const POLLS_PER_POD: usize = 8;

/// Time that the thread sleeps for the writer of a record, which needs less than a microsecond.
const HALF_WRITTEN: Duration = Duration::from_micros(100);

/// The monitor, with which one thread at a time decides.
pub(super) struct SharedMonitor {
    /// Locked by `fastpath` (`lock`) and `standby` (`try_lock` only), both SCHED_FIFO 50. Never held while sleeping.
    monitor: Mutex<MemoryMonitor>,
    control: Arc<FastPathControl>,
    /// The hook's descriptor; `None` for the sampler.
    trigger: Option<OwnedFd>,
    /// A limit that is lowered may be near at once, far from the one before.
    limit_writes: Arc<LimitWrites>,
}

impl SharedMonitor {
    /// # Errors
    /// No descriptor is free.
    pub fn new(monitor: MemoryMonitor) -> io::Result<Self> {
        let trigger = monitor.triggers.set.fd();
        Ok(Self {
            control: Arc::clone(&monitor.control),
            limit_writes: Arc::clone(&monitor.limit_writes),
            trigger: trigger.map(|fd| fd.try_clone_to_owned()).transpose()?,
            monitor: Mutex::new(monitor),
        })
    }

    /// The loop, until the control block says stop.
    pub fn run(&self) {
        let mut waiting = Wait::Sleep(Duration::ZERO);
        while !self.control.stopped() {
            let (woken, is_readable) = match waiting {
                Wait::Sleep(interval) => self.sleep(interval),
                Wait::Spin(until) => (self.spin_until(until), false),
            };
            let mut monitor = self.lock();
            let before = monitor.triggers.events_read;
            waiting = monitor.run_once(woken);
            let has_read = monitor.triggers.events_read != before;
            drop(monitor);
            if is_readable && !has_read && self.has_unread_triggers() {
                self.yield_to_writer();
            }
        }
    }

    /// A program has reserved a record and not submitted it: its task may wait for this CPU, and would do so as long as
    /// this thread polls.
    fn yield_to_writer(&self) {
        poll([Some(self.control.fd())], Some(HALF_WRITTEN));
    }

    /// Decides in place of the fast path, if that has not read the crossing yet, or not come since. Returns when to
    /// call again in case it still has not; `None` if the next crossing is soon enough.
    pub fn take_over(&self) -> Option<Duration> {
        let woken = monotonic_ns();
        let mut monitor = self.try_take()?;
        if !monitor.take_over(woken) {
            return None;
        }
        let next = monitor.next_take_over();
        drop(monitor);
        // The event that woke the fast path is read: its poll(2) would go on waiting.
        self.control.wake();
        next
    }

    /// Whether the hook has reported a crossing that no thread has read.
    pub fn has_unread_triggers(&self) -> bool {
        poll([self.trigger_fd()], Some(Duration::ZERO)) != [0]
    }

    /// The monitor, if no other thread has locked it.
    pub fn try_take(&self) -> Option<MutexGuard<'_, MemoryMonitor>> {
        self.monitor.try_lock().ok()
    }

    pub fn lock(&self) -> MutexGuard<'_, MemoryMonitor> {
        locked(&self.monitor)
    }

    fn trigger_fd(&self) -> Option<BorrowedFd<'_>> {
        self.trigger.as_ref().map(AsFd::as_fd)
    }

    /// Sleeps until the hook or the control block is readable, or a limit was written, and no longer than `interval`. Returns
    /// the time, and whether the hook is readable.
    fn sleep(&self, interval: Duration) -> (u64, bool) {
        let limits = self.limit_writes.fd();
        let fds = [self.trigger_fd(), Some(self.control.fd()), limits];
        let [trigger, _, limit] = poll(fds, Some(interval));
        if limit != 0 {
            self.limit_writes.drain();
        }
        (monotonic_ns(), trigger != 0)
    }

    /// Waits without sleeping until a threshold's trigger trips, or a threshold is met by the counter. Returns the
    /// time.
    fn spin_until(&self, until: u64) -> u64 {
        let cycles = {
            let mut monitor = self.lock();
            monitor.warm_up();
            monitor.cycles
        };
        loop {
            let mut monitor = self.lock();
            if monitor.triggers.drain() || monitor.sees_a_crossing() {
                return monotonic_ns();
            }
            let now = monotonic_ns();
            // The standby thread has decided, if another cycle has begun.
            if monitor.cycles != cycles || now >= until || self.control.stopped() {
                return now;
            }
            monitor.refresh_next(now);
            drop(monitor);
            for _ in 0..POLLS_PER_POD {
                if self.has_unread_triggers() {
                    break;
                }
            }
        }
    }
}

/// Stack that the fast path may use. Its deepest call holds one `memory.stat` (8 KiB).
pub const FASTPATH_STACK: usize = 64 << 10;
