//! Ends pods in threads that may take their time, until nothing is left of them.

use std::{
    fs::File,
    io::{self, Read as _, Write as _},
    ops::ControlFlow,
    os::fd::{AsFd as _, BorrowedFd},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    thread::Builder,
    time::{Duration, Instant},
};

use evictd_engine::units::MS;
use evictd_sys::fs::{PathError, is_gone};
use rustix::fs::{Mode, OFlags, openat};

use super::{
    kill::CgroupKiller,
    open_cgroup::open_directory,
    tree::is_lacking,
    walk::{WalkLimits, walk},
};
use crate::{
    cgroup::hierarchy::v1_sibling,
    proc::pidfd::{Pidfd, Signal},
};

/// Why a pod is not dead.
#[derive(Debug, thiserror::Error)]
pub enum KillError {
    /// A file or process refused.
    #[error(transparent)]
    Path(#[from] PathError),
    /// Processes are left after the time was over: in uninterruptible sleep, or in a v1 cgroup that could not be
    /// thawed.
    #[error("{path}: processes are still there after {after:?}", path = .path.display())]
    Survivors {
        /// The pod's cgroup.
        path: PathBuf,
        /// Time that was waited.
        after: Duration,
    },
}

/// Kills until nothing is left in the cgroup and below, cgroups that appear meanwhile included; helps the kernel to
/// free the memory (`process_mrelease`, 5.15+). For threads that may take their time.
///
/// # Errors
/// A cgroup that cannot be opened, a signal that the kernel refuses, or processes that are there after `timeout`.
pub fn kill_until_empty(path: &Path, timeout: Duration) -> Result<(), KillError> {
    let start = Instant::now();
    loop {
        let killer = match CgroupKiller::open(path) {
            Ok(killer) => killer,
            Err(e) if is_gone(&e.source) => return Ok(()),
            // No descriptor is left: others close theirs in time.
            Err(e) if is_lacking(&e.source) && start.elapsed() < timeout => {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            Err(e) => return Err(e.into()),
        };
        killer.kill_all().map_err(PathError::at(path))?;
        release_memory(&killer);
        if killer.is_empty() {
            return Ok(());
        }
        thaw(path);
        if start.elapsed() > timeout {
            return Err(KillError::Survivors {
                path: path.to_owned(),
                after: timeout,
            });
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A process that a container runtime was about to start at SIGKILL may be there so much later, in nanoseconds.
pub const STARTING: u64 = 100 * MS;

/// Kills once what is left of a pod that got SIGKILL at a moment, in nanoseconds of CLOCK_MONOTONIC: cgroups that
/// appeared meanwhile included, but not a container that was started anew. True when nothing is left. For threads that
/// may take their time.
///
/// # Errors
/// A file or process refuses. Lacking descriptors are no error: others close theirs in time.
pub fn kill_left(path: &Path, signalled: u64) -> Result<bool, PathError> {
    let killer = match CgroupKiller::open(path) {
        Ok(killer) => killer,
        Err(e) if is_gone(&e.source) => return Ok(true),
        Err(e) if is_lacking(&e.source) => return Ok(false),
        Err(e) => return Err(e),
    };
    let moment = signalled.saturating_add(STARTING);
    if !killer.holds_older_than(moment) {
        return Ok(true);
    }
    killer
        .kill_older_than(moment)
        .map_err(PathError::at(path))?;
    release_memory(&killer);
    if !killer.holds_older_than(moment) {
        return Ok(true);
    }
    thaw(path);
    Ok(false)
}

/// Asks every process of a pod to end (SIGTERM), and waits until they have or the time is over: the first half of what a
/// container runtime does at `StopContainer`, before [`kill_until_empty`]. True when they have ended. Blocks for as long as
/// that takes.
///
/// # Errors
/// The cgroup cannot be opened.
pub fn ask_to_end(path: &Path, grace: Duration) -> Result<bool, KillError> {
    let end = Instant::now() + grace;
    let mut asked = false;
    loop {
        let pod = match CgroupKiller::open(path) {
            Ok(pod) => pod,
            Err(e) if is_gone(&e.source) => return Ok(true),
            // Others close theirs in time.
            Err(e) if is_lacking(&e.source) && Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(10));
                continue;
            }
            Err(e) => return Err(e.into()),
        };
        if !std::mem::replace(&mut asked, true) {
            // Those that refuse are killed when their time is over, and the refusal is told then.
            pod.signal_all(Signal::TERM);
        }
        if pod.is_empty() {
            return Ok(true);
        }
        if Instant::now() >= end {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Thaws the cgroups of a pod in v1's freezer, where a frozen task does not act on SIGKILL. A container runtime or the
/// kubelet's checkpoint (CRIU) may have left them so. v2 kills frozen tasks.
fn thaw(path: &Path) {
    let Some(freezer) = v1_sibling(path, "freezer") else {
        return;
    };
    let Ok(top) = open_directory(&freezer) else {
        return;
    };
    // Refused, the pod is one that does not die, and is reported as such.
    let _ = walk(top.as_fd(), WalkLimits::ALL, &mut |cgroup| {
        let _ = thaw_one(cgroup);
        ControlFlow::Continue(())
    });
}

fn thaw_one(cgroup: BorrowedFd<'_>) -> io::Result<()> {
    let state = openat(
        cgroup,
        c"freezer.state",
        OFlags::RDWR | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let mut state = File::from(state);
    let mut text = String::new();
    state.read_to_string(&mut text)?;
    match text == "THAWED\n" {
        true => Ok(()),
        false => state.write_all(b"THAWED"),
    }
}

/// Processes of a pod whose memory is freed at a look, and the stack of the thread that does it, in bytes.
const MAX_RELEASED: usize = 64;
const RELEASE_STACK: usize = 64 << 10;

/// Frees the memory of a pod's dying processes, in a thread of its own unless the last one has not ended: the call waits for
/// the process's `mmap_lock`, which a task in D state may hold for as long as its server does not answer. The kernel refuses
/// it for every process that is not dying, so that a PID that was given to another process does no harm; any refusal changes
/// nothing, the process frees its memory itself.
fn release_memory(killer: &CgroupKiller) {
    static IS_UNDER_WAY: AtomicBool = AtomicBool::new(false);
    let mut pids = Vec::new();
    // A cgroup that vanishes here is empty, which the next look sees.
    let _ = killer.for_each(&mut |pid| {
        if pids.len() < MAX_RELEASED {
            pids.push(pid);
        }
    });
    if pids.is_empty() || IS_UNDER_WAY.swap(true, Ordering::Relaxed) {
        return;
    }
    let release = move || {
        for pid in pids {
            if let Ok(Some(process)) = Pidfd::open(pid) {
                let _ = process.release_memory();
            }
        }
        IS_UNDER_WAY.store(false, Ordering::Relaxed);
    };
    let thread = Builder::new().name("release-memory".into());
    if thread.stack_size(RELEASE_STACK).spawn(release).is_err() {
        IS_UNDER_WAY.store(false, Ordering::Relaxed);
    }
}
