//! The state of the loop, and whoever has it: the reflex, or its deputy where the reflex is late.

use std::{
    io,
    os::fd::{AsRawFd as _, OwnedFd, RawFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use evictd_sys::{clock::now_ns, poll::poll};

use crate::{Mailbox, monitor::Watch, spin::Waiting};

/// Awake, the loop looks at the rung so often for each pod that it asks. Only to ask it needs the state, which a deputy has to
/// find free if this thread's CPU goes away.
const LOOKS_PER_POD: usize = 8;

/// Where one thread at a time decides.
pub(super) struct Seat {
    /// Whoever waits has it not. Two threads take it, of the same real-time priority: nobody slow can hold it, and the deputy
    /// goes away again when it is taken.
    watch: Mutex<Watch>,
    mailbox: Arc<Mailbox>,
    /// The rung's descriptor; none for the sampler.
    tripwire: Option<OwnedFd>,
}

impl Seat {
    /// # Errors
    /// The system has no descriptor to give.
    pub fn new(watch: Watch) -> io::Result<Self> {
        let tripwire = watch.setup.tripwire.fd();
        Ok(Self {
            mailbox: Arc::clone(&watch.setup.mailbox),
            tripwire: tripwire.map(|fd| fd.try_clone_to_owned()).transpose()?,
            watch: Mutex::new(watch),
        })
    }

    /// The loop, until the mailbox says stop.
    pub fn run(&self) {
        let mut waiting = Waiting::Asleep(Duration::ZERO);
        while !self.mailbox.stopped() {
            let woken = match waiting {
                Waiting::Asleep(interval) => self.sleep(interval),
                Waiting::Awake(until) => self.stay_awake(until),
            };
            waiting = self.take().go_round(woken);
        }
    }

    /// Decides in place of the reflex when there is something to decide and it has not come.
    pub fn stand_in(&self) {
        let woken = now_ns();
        let Ok(mut watch) = self.watch.try_lock() else {
            return;
        };
        watch.decide_what_has_tripped(woken);
        drop(watch);
        // What it was woken for may not be there any more, and a call that waits goes on waiting then.
        self.mailbox.wake();
    }

    /// Whether the rung has told something that nobody has heard.
    pub fn is_untold(&self) -> bool {
        poll([self.tripwire_fd()], Some(Duration::ZERO)) != [0]
    }

    pub fn take(&self) -> MutexGuard<'_, Watch> {
        // What panics ends the agent.
        self.watch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A negative one, which is left out, where there is none.
    fn tripwire_fd(&self) -> RawFd {
        self.tripwire.as_ref().map_or(-1, |fd| fd.as_raw_fd())
    }

    /// Sleeps until the rung or the mailbox has something to tell, and no longer than this; what the time is then.
    fn sleep(&self, interval: Duration) -> u64 {
        let fds = [self.tripwire_fd(), self.mailbox.fd().as_raw_fd()];
        poll(fds, Some(interval));
        now_ns()
    }

    /// Waits without sleeping until a threshold's wire trips, or is seen to be met; when that was.
    fn stay_awake(&self, until: u64) -> u64 {
        let turns = {
            let mut watch = self.take();
            watch.rehearse();
            watch.turns
        };
        loop {
            let mut watch = self.take();
            if watch.hear() || watch.sees_a_crossing() {
                return now_ns();
            }
            let now = now_ns();
            // The deputy has decided, if another turn has begun.
            if watch.turns != turns || now >= until || self.mailbox.stopped() {
                return now;
            }
            watch.ask_the_next(now);
            drop(watch);
            for _ in 0..LOOKS_PER_POD {
                if self.is_untold() {
                    break;
                }
            }
        }
    }
}

/// Stack that the reflex may use. Its deepest call holds one `memory.stat` (8 KiB); a painted stack has shown 22 KiB.
pub const REFLEX_STACK: usize = 64 << 10;
