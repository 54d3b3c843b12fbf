//! What makes a thread fast when everything else is slow: real-time priority, locked and touched memory.

use std::{hint::black_box, io};

use rustix::mm::{MlockAllFlags, mlockall};

/// Above every thread of normal priority, below the kernel's own watchdogs and migration threads (99).
pub const FASTPATH_PRIORITY: i32 = 50;
/// The manager: above every thread of normal priority, below the fast path.
pub const MANAGER_PRIORITY: i32 = 1;

/// Locks what the process has and what it will touch; pages that are never touched stay unallocated
/// (`MCL_ONFAULT`), or a thread's unused stack would count as the agent's memory.
///
/// # Errors
/// CAP_IPC_LOCK is missing, and RLIMIT_MEMLOCK is too small.
pub fn lock_memory() -> io::Result<()> {
    let flags = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    Ok(mlockall(flags)?)
}

/// Gives the calling thread SCHED_FIFO with a priority from 1 to 99.
///
/// # Errors
/// CAP_SYS_NICE is missing, or the thread is in a cgroup of v1's cpu hierarchy that has no budget for real-time tasks.
pub fn set_sched_fifo(priority: i32) -> io::Result<()> {
    let parameters = libc::sched_param {
        sched_priority: priority,
    };
    // SCHED_RESET_ON_FORK: what this thread might start is not a real-time program.
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: 0 is the calling thread; the struct outlives the call.
    match unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Touches the stack that will be used, so that no page fault happens later.
#[inline(never)]
pub fn prefault_stack<const BYTES: usize>() {
    let mut stack = [1_u8; BYTES];
    // Or the compiler would see that it is never read.
    black_box(&mut stack);
}

/// Touches so much of the calling thread's heap, and gives it back to its allocator, which keeps it: what the thread
/// needs at once when there is pressure is there.
#[inline(never)]
pub fn prefault_heap<const BYTES: usize>() {
    // Not zeros: for those the allocator asks the kernel for pages that nothing touches.
    black_box(vec![1_u8; BYTES]);
}
