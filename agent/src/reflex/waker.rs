//! A waker on every CPU: whoever crosses a wire wakes it where they run, and it brings the reflex there.
//!
//! To wake a thread that sleeps on another CPU means to wake that CPU, out of its idle state or from wherever a hypervisor
//! has put it: some 100 us on a virtual machine, and milliseconds now and then. The CPU that charges is awake, and whoever
//! allocates there does not run meanwhile.

use std::{
    io, mem,
    os::fd::{AsFd as _, AsRawFd as _},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::{Builder, JoinHandle},
};

use evictd_common::memory::WAKER_PRIORITY;
use nix::{
    sched::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity},
    unistd::{Pid, gettid},
};

use super::{
    mailbox::Bell,
    thread::{become_fifo_at, touch_stack},
};
use crate::kernel::{tripwire::Tripwire, wakeup::LocalWakeup};

/// A waker calls nothing that is deep.
const STACK_BYTES: usize = 64 << 10;
const TOUCHED_BYTES: usize = 12 << 10;
/// What the scheduler's calls take for the thread that makes them.
const THE_CALLER: Pid = Pid::from_raw(0);

/// Where the reflex sits, as far as its wakers have to know.
struct Seat {
    /// Brings it to its feet.
    bell: Bell,
    /// Ends the wakers.
    end: Bell,
    reflex: Pid,
    /// It sleeps, and may be carried.
    asleep: AtomicBool,
    /// It was carried to one CPU, and is tied to that one.
    carried: AtomicBool,
    /// The CPUs that it had at the start.
    home: CpuSet,
}

impl Seat {
    /// Carries the reflex to the CPU of the caller, if it sleeps; and wakes it.
    fn summon(&self) {
        if self.asleep.load(Ordering::SeqCst) {
            // Not the CPU that this thread was tied to: its cpuset may have changed.
            let carried = sched_getcpu()
                .and_then(only)
                .and_then(|here| sched_setaffinity(self.reflex, &here));
            // Refused, it wakes up where it was.
            if carried.is_ok() {
                self.carried.store(true, Ordering::SeqCst);
            }
        }
        self.bell.ring();
    }
}

/// The wakers of a reflex; dropped, they end.
pub(super) struct Wakers {
    seat: Arc<Seat>,
    threads: Vec<JoinHandle<()>>,
    /// The bell has to be silenced.
    rung: bool,
}

impl Wakers {
    /// For the calling thread, which is the reflex, one on each CPU that it may run on. None on a rung without a kernel
    /// program, and none without real-time priority: whoever crosses goes before a waker then. The reason is why there are
    /// not as many as there should be.
    ///
    /// # Errors
    /// The system has no descriptor to give.
    pub fn start(
        tripwire: &mut dyn Tripwire,
        realtime: bool,
    ) -> io::Result<(Self, Option<io::Error>)> {
        let home = sched_getaffinity(THE_CALLER);
        let seat = Seat {
            bell: Bell::new()?,
            end: Bell::new()?,
            reflex: gettid(),
            asleep: AtomicBool::new(false),
            carried: AtomicBool::new(false),
            home: home.unwrap_or_default(),
        };
        let mut wakers = Self {
            seat: Arc::new(seat),
            threads: Vec::new(),
            rung: false,
        };
        let refused = match home {
            Ok(_) if !realtime => None,
            Ok(home) => wakers.fill(tripwire, &home).err(),
            // There are more CPUs than fit.
            Err(error) => Some(error.into()),
        };
        Ok((wakers, refused))
    }

    fn fill(&mut self, tripwire: &mut dyn Tripwire, cpus: &CpuSet) -> io::Result<()> {
        for cpu in (0..CpuSet::count()).filter(|&cpu| cpus.is_set(cpu) == Ok(true)) {
            let number = u32::try_from(cpu).unwrap_or(u32::MAX);
            let Some(wakeup) = tripwire.local_wakeup(number)? else {
                return Ok(());
            };
            self.threads.push(spawn(&self.seat, cpu, wakeup)?);
        }
        Ok(())
    }

    /// Becomes readable when the reflex is wanted.
    pub fn fd(&self) -> i32 {
        self.seat.bell.fd().as_raw_fd()
    }

    /// The caller is about to sleep. From here on it may be carried.
    pub fn lie_down(&mut self) {
        // What it rang for has been looked at; what it rings for from now on is in the tripwire as well.
        if mem::take(&mut self.rung) {
            self.seat.bell.silence();
        }
        if self.seat.carried.swap(false, Ordering::SeqCst) {
            // Refused, it stays where it was carried, which is as good a place as any.
            let _ = sched_setaffinity(THE_CALLER, &self.seat.home);
        }
        self.seat.asleep.store(true, Ordering::SeqCst);
    }

    /// The caller is awake; `rung`: [`Self::fd`] was readable.
    pub fn get_up(&mut self, rung: bool) {
        self.seat.asleep.store(false, Ordering::SeqCst);
        self.rung = rung;
    }
}

impl Drop for Wakers {
    fn drop(&mut self) {
        self.seat.end.ring();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a waker has panicked");
            }
        }
    }
}

/// Starts the waker of a CPU and waits until it is in its place.
fn spawn(seat: &Arc<Seat>, cpu: usize, mut wakeup: LocalWakeup) -> io::Result<JoinHandle<()>> {
    let seat = Arc::clone(seat);
    let (ready, started) = mpsc::sync_channel(1);
    let thread = Builder::new()
        .name(format!("waker/{cpu}"))
        .stack_size(STACK_BYTES)
        .spawn(move || {
            let tied = only(cpu).and_then(|here| sched_setaffinity(THE_CALLER, &here));
            let placed = match tied {
                Ok(()) => become_fifo_at(WAKER_PRIORITY).map_or(Ok(()), Err),
                Err(errno) => Err(errno.into()),
            };
            let goes_on = placed.is_ok();
            touch_stack::<TOUCHED_BYTES>();
            if ready.send(placed).is_ok() && goes_on {
                attend(&seat, &mut wakeup);
            }
        })?;
    match started.recv() {
        Ok(Ok(())) => Ok(thread),
        Ok(Err(refused)) => Err(refused),
        Err(_) => Err(io::Error::other("a waker ended before it was in its place")),
    }
}

/// What a waker does all its life: sleep.
fn attend(seat: &Seat, wakeup: &mut LocalWakeup) {
    let poll = |fd| libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    let mut fds = [
        poll(seat.end.fd().as_raw_fd()),
        poll(wakeup.as_fd().as_raw_fd()),
    ];
    loop {
        // SAFETY: the pointer is to a local that outlives the call.
        unsafe { libc::poll(fds.as_mut_ptr(), 2, -1) };
        let [end, crossed] = fds.map(|fd| fd.revents);
        if end != 0 {
            return;
        }
        if crossed & libc::POLLIN != 0 {
            seat.summon();
            wakeup.silence();
        } else if crossed != 0 {
            // The event is gone, with its CPU: crossings wake the reflex itself.
            fds[1].fd = -1;
        }
    }
}

fn only(cpu: usize) -> nix::Result<CpuSet> {
    let mut cpus = CpuSet::new();
    cpus.set(cpu)?;
    Ok(cpus)
}
