//! CPUs, and who runs on which.

use std::io;

use nix::{
    errno::Errno,
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};

/// The CPUs that this thread may run on.
pub fn allowed() -> Vec<usize> {
    let cpus = sched_getaffinity(Pid::from_raw(0)).unwrap_or_default();
    (0..CpuSet::count())
        .filter(|&cpu| cpus.is_set(cpu) == Ok(true))
        .collect()
}

/// Binds a thread (0: the caller) to one CPU.
pub fn pin(thread: u32, cpu: usize) -> io::Result<()> {
    let mut cpus = CpuSet::new();
    cpus.set(cpu)?;
    let thread = i32::try_from(thread).map_err(|_| Errno::ESRCH)?;
    Ok(sched_setaffinity(Pid::from_raw(thread), &cpus)?)
}

/// Gives a thread SCHED_FIFO with a priority from 1 to 99.
pub fn make_fifo(thread: u32, priority: i32) -> io::Result<()> {
    let thread = i32::try_from(thread).map_err(|_| Errno::ESRCH)?;
    let parameters = libc::sched_param {
        sched_priority: priority,
    };
    // SAFETY: the struct outlives the call.
    let outcome =
        unsafe { libc::sched_setscheduler(thread, libc::SCHED_FIFO, &raw const parameters) };
    Ok(Errno::result(outcome).map(drop)?)
}
