//! CPUs, and which threads run on them.

use std::{
    hint::spin_loop,
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::JoinHandle,
};

use nix::{
    errno::Errno,
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};

use crate::prelude::*;

/// A SCHED_FIFO priority above all that the agent has.
pub const BEFORE_THE_AGENT: i32 = 60;

/// The CPUs that this thread may run on.
pub fn allowed() -> Vec<usize> {
    let cpus = sched_getaffinity(Pid::from_raw(0)).unwrap_or_default();
    (0..CpuSet::count())
        .filter(|&cpu| cpus.is_set(cpu) == Ok(true))
        .collect()
}

/// Ties a thread (0: the caller) to these CPUs.
pub fn tie(thread: u32, to: &[usize]) -> Result<()> {
    let mut cpus = CpuSet::new();
    for &cpu in to {
        cpus.set(cpu)?;
    }
    let thread = i32::try_from(thread).map_err(|_| Errno::ESRCH)?;
    Ok(sched_setaffinity(Pid::from_raw(thread), &cpus)?)
}

/// Gives a thread SCHED_FIFO with a priority from 1 to 99.
pub fn make_fifo(thread: u32, priority: i32) -> Result<()> {
    let thread = i32::try_from(thread).map_err(|_| Errno::ESRCH)?;
    let parameters = libc::sched_param {
        sched_priority: priority,
    };
    // SAFETY: the struct outlives the call.
    let outcome =
        unsafe { libc::sched_setscheduler(thread, libc::SCHED_FIFO, &raw const parameters) };
    Ok(Errno::result(outcome).map(drop)?)
}

/// A number about a thread of this process: a field of proc(5)'s stat, behind the third.
pub fn stat(thread: i32, field: usize) -> Option<u64> {
    text_of(thread, field)?.parse().ok()
}

/// Whether a thread of this process waits for something else than a CPU.
pub fn is_asleep(thread: i32) -> bool {
    text_of(thread, 3).is_some_and(|state| state == "S")
}

fn text_of(thread: i32, field: usize) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).ok()?;
    // The name before that may hold anything. What follows begins with the state, which is field 3.
    let fields = stat.rsplit(") ").next()?;
    fields
        .split(' ')
        .nth(field.checked_sub(3)?)
        .map(str::to_owned)
}

/// The CPU that a thread of this process runs on, or ran on last.
pub fn of(thread: i32) -> Option<usize> {
    stat(thread, 39)?.try_into().ok()
}

/// Has a CPU for itself, before the agent's threads, until it is dropped.
pub struct Obstacle {
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Obstacle {
    /// Returns when it has the CPU.
    pub fn on(cpu: usize) -> Result<Self> {
        let end = Arc::new(AtomicBool::new(false));
        let (tell, told) = mpsc::sync_channel(1);
        let flag = Arc::clone(&end);
        let thread = std::thread::spawn(move || {
            let placed = tie(0, &[cpu]).and_then(|()| make_fifo(0, BEFORE_THE_AGENT));
            let goes_on = placed.is_ok();
            let told = tell.send(placed);
            while goes_on && told.is_ok() && !flag.load(Ordering::Relaxed) {
                spin_loop();
            }
        });
        let obstacle = Self {
            end,
            thread: Some(thread),
        };
        told.recv()??;
        Ok(obstacle)
    }
}

impl Drop for Obstacle {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It cannot panic.
            let _ = thread.join();
        }
    }
}
