//! What makes a thread fast when everything else is slow: real-time priority, locked and touched memory.

pub mod cpu_group;

use std::{fs, io, path::Path};

use crate::rt::cpu_group::CpuGroup;

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
    const FLAGS: i32 = libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT;
    // SAFETY: plain flags; nothing is freed or moved.
    checked(unsafe { libc::mlockall(FLAGS) })
}

/// Has what the kernel allocates for the calling thread, and for those that it starts, counted at the root of a hierarchy of
/// cgroup v1, which has no limit; `cgroup` is any directory of that hierarchy. The process's own pages count where they did.
///
/// To read afresh who is in a pod takes a page here (the killer reads `cgroup.procs`), and a thread without a page left in its cgroup
/// waits for one, or is killed for it. On v2 the threads of a process cannot be told apart, and nothing is to be taken.
///
/// # Errors
/// No root above this directory, or it may not be written to.
pub fn join_root_memcg(cgroup: &Path) -> io::Result<()> {
    let root = v1_root(cgroup).ok_or(io::ErrorKind::NotFound)?;
    let tasks = root.join("tasks");
    // 0 is the thread that writes.
    fs::write(tasks, "0")
}

/// The root of the hierarchy of cgroup v1 that a cgroup is in; `None` on v2, and where the root is not mounted.
pub fn v1_root(cgroup: &Path) -> Option<&Path> {
    // Only a root has one (cgroup_base_files of `kernel/cgroup/cgroup-v1.c`).
    let is_root = |dir: &&Path| dir.join("release_agent").exists();
    cgroup.ancestors().find(is_root)
}

/// Gives the calling thread the fast path's SCHED_FIFO.
///
/// # Errors
/// See [`set_sched_fifo`].
pub fn become_fifo() -> io::Result<()> {
    set_sched_fifo(FASTPATH_PRIORITY)
}

/// Gives the calling thread SCHED_FIFO with a priority from 1 to 99. Where its cgroup of v1's cpu hierarchy has no budget for
/// real-time tasks, the thread leaves it for the root, which has one.
///
/// # Errors
/// CAP_SYS_NICE is missing, or the thread cannot leave a cgroup without a budget: the error names the true reason.
pub fn set_sched_fifo(priority: i32) -> io::Result<()> {
    let Err(refused) = set_fifo(priority) else {
        return Ok(());
    };
    if refused.raw_os_error() != Some(libc::EPERM) {
        return Err(refused);
    }
    if cpu_group::may_be_nice() == Some(false) {
        return Err(io::Error::other(format!(
            "{refused}: CAP_SYS_NICE is missing"
        )));
    }
    let Some(group) = CpuGroup::without_budget() else {
        return Err(refused);
    };
    group
        .leave()
        .map_err(|left| group.explain(&refused, &left))?;
    set_fifo(priority).inspect_err(|_| group.come_back())
}

fn set_fifo(priority: i32) -> io::Result<()> {
    let parameters = libc::sched_param {
        sched_priority: priority,
    };
    // SCHED_RESET_ON_FORK: what this thread might start is not a real-time program.
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: 0 is the calling thread; the struct outlives the call.
    checked(unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) })
}

/// What a call of libc has answered that gives 0 or sets `errno`.
fn checked(answer: libc::c_int) -> io::Result<()> {
    match answer {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Tries SCHED_FIFO on a thread of its own.
///
/// # Errors
/// See [`set_sched_fifo`].
pub fn probe_realtime() -> io::Result<()> {
    let tried = std::thread::spawn(become_fifo).join();
    tried.unwrap_or_else(|_| Err(io::Error::other("the probing thread has panicked")))
}

/// Touches the stack that will be used, so that no page fault happens later.
#[inline(never)]
pub fn prefault_stack<const BYTES: usize>() {
    let mut stack = [0_u8; BYTES];
    for page in stack.chunks_mut(4096) {
        // Volatile, or the compiler would see that it is never read.
        // SAFETY: a reference into a live local.
        unsafe { std::ptr::write_volatile(&raw mut page[0], 1) };
    }
}

/// Touches so much of the calling thread's heap, and gives it back to its allocator, which keeps it: what the thread needs
/// at once when there is pressure is there.
#[inline(never)]
pub fn prefault_heap<const BYTES: usize>() {
    let mut heap = vec![0_u8; BYTES];
    for page in heap.chunks_mut(4096) {
        // As above.
        // SAFETY: a reference into a live vector.
        unsafe { std::ptr::write_volatile(&raw mut page[0], 1) };
    }
}
