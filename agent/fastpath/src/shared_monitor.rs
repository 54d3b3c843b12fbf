//! The state of the loop, shared by the fast path and the standby thread, which takes over where the fast path is late.

#![expect(
    clippy::disallowed_types,
    reason = "the threads that lock this lock have the same priority, or only try"
)]

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use evictd_sys::{clock::monotonic_ns, poll::poll};

use crate::{Control, monitor::MemoryMonitor, spin::Wait};

/// Awake, the loop looks at the hook so often for each pod that it asks. Only to ask it needs the state, which a standby thread has to
/// find free if this thread's CPU goes away.
const LOOKS_PER_POD: usize = 8;

/// How long a record that is being written is left alone: its writer needs less than a microsecond.
const HALF_WRITTEN: Duration = Duration::from_micros(100);

/// Where one thread at a time decides.
pub(super) struct SharedMonitor {
    /// Locked by the fast path (`lock`) and the standby thread (`try_lock`), both SCHED_FIFO 50. Never held while sleeping: the standby thread
    /// goes away again when it is taken.
    monitor: Mutex<MemoryMonitor>,
    control: Arc<Control>,
    /// The hook's descriptor; none for the sampler.
    trigger: Option<OwnedFd>,
}

impl SharedMonitor {
    /// # Errors
    /// The system has no descriptor to give.
    pub fn new(watch: MemoryMonitor) -> io::Result<Self> {
        let trigger = watch.setup.trigger.fd();
        Ok(Self {
            control: Arc::clone(&watch.setup.control),
            trigger: trigger.map(|fd| fd.try_clone_to_owned()).transpose()?,
            monitor: Mutex::new(watch),
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
            let mut watch = self.lock();
            let before = watch.told;
            waiting = watch.run_once(woken);
            let has_told = watch.told != before;
            drop(watch);
            if is_readable && !has_told && self.has_unread_triggers() {
                self.let_it_write();
            }
        }
    }

    /// A program has reserved a record and not submitted it: it may wait for this CPU, which a thread that asks again and again would
    /// keep from it.
    fn let_it_write(&self) {
        poll([Some(self.control.fd())], Some(HALF_WRITTEN));
    }

    /// Decides in place of the fast path when there is something to decide and it has not come.
    pub fn take_over(&self) {
        let woken = monotonic_ns();
        let Some(mut watch) = self.try_take() else {
            return;
        };
        watch.handle_pending_triggers(woken);
        drop(watch);
        // What it was woken for may not be there any more, and a call that waits goes on waiting then.
        self.control.wake();
    }

    /// Whether the hook has reported a crossing that no thread has read.
    pub fn has_unread_triggers(&self) -> bool {
        poll([self.trigger_fd()], Some(Duration::ZERO)) != [0]
    }

    /// The state, if no other thread has it.
    pub fn try_take(&self) -> Option<MutexGuard<'_, MemoryMonitor>> {
        self.monitor.try_lock().ok()
    }

    pub fn lock(&self) -> MutexGuard<'_, MemoryMonitor> {
        // What panics ends the agent.
        self.monitor.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn trigger_fd(&self) -> Option<BorrowedFd<'_>> {
        self.trigger.as_ref().map(AsFd::as_fd)
    }

    /// Sleeps until the hook or the control block has something to tell, and no longer than this; what the time is then, and whether the
    /// hook has something.
    fn sleep(&self, interval: Duration) -> (u64, bool) {
        let fds = [self.trigger_fd(), Some(self.control.fd())];
        let [trigger, _] = poll(fds, Some(interval));
        (monotonic_ns(), trigger != 0)
    }

    /// Waits without sleeping until a threshold's trigger trips, or is seen to be met; when that was.
    fn spin_until(&self, until: u64) -> u64 {
        let turns = {
            let mut watch = self.lock();
            watch.warm_up();
            watch.cycles
        };
        loop {
            let mut watch = self.lock();
            if watch.drain_triggers() || watch.sees_a_crossing() {
                return monotonic_ns();
            }
            let now = monotonic_ns();
            // The standby thread has decided, if another turn has begun.
            if watch.cycles != turns || now >= until || self.control.stopped() {
                return now;
            }
            watch.refresh_next(now);
            drop(watch);
            for _ in 0..LOOKS_PER_POD {
                if self.has_unread_triggers() {
                    break;
                }
            }
        }
    }
}

/// Stack that the fast path may use. Its deepest call holds one `memory.stat` (8 KiB); a painted stack has shown 22 KiB.
pub const FASTPATH_STACK: usize = 64 << 10;
