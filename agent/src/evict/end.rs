//! Ends pods in threads that may take their time, until nothing is left of them.

use std::{
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use super::kill::Killer;
use crate::observe::cgroup::{PathError, is_gone};

/// Why a pod is not dead.
#[derive(Debug, thiserror::Error)]
pub enum KillError {
    /// A file or process refused.
    #[error(transparent)]
    Path(#[from] PathError),
    /// Processes are left after the time was over: in uninterruptible sleep, or in a frozen v1 group.
    #[error("{path}: processes are still there after {after:?}", path = .path.display())]
    Survivors {
        /// The pod's cgroup.
        path: PathBuf,
        /// How long was waited.
        after: Duration,
    },
}

/// Kills until nothing is left in the cgroup and below, groups that appear meanwhile included; helps the kernel to
/// free the memory (`process_mrelease`, 5.15+). For threads that may take their time.
pub fn kill_until_empty(path: &Path, patience: Duration) -> Result<(), KillError> {
    let start = Instant::now();
    loop {
        let killer = match Killer::open(path) {
            Ok(killer) => killer,
            Err(e) if is_gone(&e.source) => return Ok(()),
            Err(e) => return Err(e.into()),
        };
        killer.kill().map_err(PathError::at(path))?;
        for group in &killer.groups {
            // A group that vanishes here is empty, which the next round sees.
            let _ = group.for_each(release_memory);
        }
        if killer.is_empty() {
            return Ok(());
        }
        if start.elapsed() > patience {
            return Err(KillError::Survivors {
                path: path.to_owned(),
                after: patience,
            });
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Asks every process of a pod to end (SIGTERM), waits until they have or the time is over, and then kills what is left:
/// what a container runtime does at `StopContainer`. Blocks for as long as that takes.
///
/// # Errors
/// See [`kill_until_empty`].
pub fn end_gracefully(path: &Path, grace: Duration, patience: Duration) -> Result<(), KillError> {
    let end = Instant::now() + grace;
    let terminate = |pid| {
        // SAFETY: plain integers. One that has gone meanwhile is what is wanted.
        unsafe { libc::kill(pid, libc::SIGTERM) };
    };
    let mut asked = false;
    loop {
        let pod = match Killer::open(path) {
            Ok(pod) => pod,
            Err(e) if is_gone(&e.source) => return Ok(()),
            Err(e) => return Err(e.into()),
        };
        if !std::mem::replace(&mut asked, true) {
            for group in &pod.groups {
                // A group that vanishes here is empty.
                let _ = group.for_each(terminate);
            }
        }
        if pod.is_empty() {
            return Ok(());
        }
        if Instant::now() >= end {
            return kill_until_empty(path, patience);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Frees a dying process's memory in this thread, while its own waits for a CPU. Refusals change nothing: the process
/// frees it itself.
fn release_memory(pid: i32) {
    // SAFETY: plain integers; the result is checked.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let Ok(fd) = i32::try_from(fd) else {
        return;
    };
    if fd < 0 {
        return;
    }
    // SAFETY: the descriptor is new and nobody else's.
    let pidfd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: a valid pidfd and no flags.
    unsafe { libc::syscall(libc::SYS_process_mrelease, pidfd.as_raw_fd(), 0) };
}
