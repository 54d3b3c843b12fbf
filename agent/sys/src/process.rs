//! What the whole process may use, and gives back.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// As many open files as the system grants, as every Go program has them: each cgroup of a pod takes three, and
/// systemd's 1024 are fewer than a node of 110 pods needs. Nothing here uses `select`, for whose sake they are so few.
///
/// # Errors
/// A seccomp filter refuses it.
pub fn raise_open_files() -> io::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    Ok(setrlimit(Resource::Nofile, raised)?)
}

/// Gives each thread memory of its own to allocate from. By itself glibc has eight arenas for each CPU; with more threads than
/// that a real-time thread waits for one that has lost its CPU. To be called before the first thread starts.
pub fn separate_arenas() {
    const MAX: i32 = 64;
    #[cfg(target_env = "gnu")]
    // SAFETY: sets a number of the allocator.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, MAX)
    };
}

/// Returns to the kernel what the allocator keeps of memory that was freed. On locked memory it would not be able to:
/// the kernel refuses MADV_DONTNEED there.
pub fn give_back_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: touches nothing but memory that is free.
    unsafe {
        libc::malloc_trim(0)
    };
}
