//! One cgroup and the processes in it.
//!
//! v1 hands the same list of processes to every read of an open `cgroup.procs` for up to a second
//! (`cgroup_pidlist_start`): only the first read after an open is fresh. v2 makes the list for every read.

use std::{
    fs::File,
    io,
    ops::ControlFlow,
    os::{
        fd::{AsFd as _, BorrowedFd, FromRawFd as _, IntoRawFd as _, RawFd},
        unix::fs::OpenOptionsExt as _,
    },
    path::Path,
    sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering},
};

use evictd_sys::fs::{PathError, is_gone, lacks_descriptor};
use rustix::fs::{Mode, OFlags, openat};

use super::{
    members::{KillResult, List, MAX_AT_ONCE, signal_from, signal_members},
    tree::FollowedCgroup,
    walk::{WalkLimits, Walked, walk},
};
use crate::{
    cgroup::memory::Version,
    kernfile::{for_each_line, number},
    proc::pidfd::Signal,
};

/// One cgroup of a pod, held open.
#[derive(Debug)]
pub(super) struct OpenCgroup {
    /// The kernel's id of it.
    pub id: u64,
    dir: File,
    procs: Procs,
    /// Position in the list of processes to go on with.
    next: AtomicU32,
}

/// An open `cgroup.procs`.
#[derive(Debug)]
enum Procs {
    /// v2: fresh whenever it is read from its start.
    Again(File),
    /// v1: fresh for the first reader. Later it is a descriptor in reserve: closed when there is no other one to open
    /// the file anew with.
    Once { held: Slot, is_read: AtomicBool },
}

impl OpenCgroup {
    pub(super) fn open(cgroup: &FollowedCgroup, version: Version) -> Result<Self, PathError> {
        let dir = &cgroup.path;
        let procs = dir.join("cgroup.procs");
        let file = File::open(&procs).map_err(PathError::at(&procs))?;
        Ok(Self {
            id: cgroup.id,
            dir: open_directory(dir)?,
            procs: match version {
                Version::V1 => Procs::Once {
                    held: Slot::new(file),
                    is_read: AtomicBool::new(false),
                },
                Version::V2 => Procs::Again(file),
            },
            next: AtomicU32::new(0),
        })
    }

    /// Calls `each` for every process that is in the cgroup now. Does not allocate.
    pub(super) fn for_each(&self, each: &mut dyn FnMut(i32)) -> io::Result<()> {
        match &self.procs {
            Procs::Again(file) => for_each_pid(file, each),
            Procs::Once { held, is_read } => {
                let first = !is_read.swap(true, Ordering::Relaxed);
                // Taken out for as long as it is read: no other thread may close it.
                let file = match held.take() {
                    Some(file) if first => file,
                    reserve => self.open_anew(reserve, held)?,
                };
                let read = for_each_pid(&file, each);
                held.put(file);
                read
            }
        }
    }

    /// Opens the file once more, with the descriptor in reserve if there is no other one.
    fn open_anew(&self, reserve: Option<File>, held: &Slot) -> io::Result<File> {
        let opened = open_procs(self.dir.as_fd());
        match opened {
            Err(e) if reserve.is_some() && lacks_descriptor(&e) => {
                drop(reserve);
                open_procs(self.dir.as_fd())
            }
            opened => {
                if let Some(file) = reserve {
                    held.put(file);
                }
                opened
            }
        }
    }

    /// Sends a signal once to the processes in the cgroup, to the next [`MAX_AT_ONCE`] of them. Does not allocate.
    pub(super) fn signal(&self, signal: Signal) -> KillResult {
        let from = self.next.load(Ordering::Relaxed);
        let (result, next) = signal_from(signal, from, MAX_AT_ONCE, &|each| self.for_each(each));
        self.next.store(next, Ordering::Relaxed);
        result
    }

    /// Signals the processes of the cgroup and of those that are below it now, whether they were there when it was
    /// opened or not.
    pub(super) fn signal_tree(&self, signal: Signal, limits: WalkLimits) -> KillResult {
        self.signal_those(signal, limits, &mut |_| true)
    }

    /// Signals the processes of those cgroups of the tree for which `is_one` is true. It is called with what lists the
    /// processes of one.
    pub(super) fn signal_those(
        &self,
        signal: Signal,
        limits: WalkLimits,
        is_one: &mut dyn FnMut(&List<'_>) -> bool,
    ) -> KillResult {
        let mut result = KillResult::EMPTY;
        let walked = walk(self.dir.as_fd(), limits, &mut |cgroup| {
            let list: &List<'_> = &|each| list(cgroup, each);
            if is_one(list) {
                result.add(signal_members(signal, limits.processes, list));
            }
            ControlFlow::Continue(())
        });
        match walked {
            // What was not looked at is not known to be empty.
            Ok(walked) => result.empty &= walked == Walked::All,
            Err(e) => result.note(&e),
        }
        result
    }

    /// Calls `each` with what lists the processes of the cgroup, and of each that is below it now, until that is true.
    /// For threads that may take their time.
    pub(super) fn any_list(&self, each: &mut dyn FnMut(&List<'_>) -> bool) -> bool {
        let walked = walk(
            self.dir.as_fd(),
            WalkLimits::ALL,
            &mut |cgroup| match each(&|pid| list(cgroup, pid)) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            },
        );
        // What was not looked at may be one.
        matches!(walked, Ok(Walked::Stopped | Walked::Truncated))
    }

    /// Calls `each` for every process that is in the cgroup now, and in those that are below it now. For threads that
    /// may take their time.
    ///
    /// # Errors
    /// The first refusal, after all else was read; EAGAIN where the tree has changed meanwhile, so that not all was. A
    /// cgroup that is gone is an empty one.
    pub(super) fn for_each_in_tree(&self, each: &mut dyn FnMut(i32)) -> io::Result<()> {
        let mut refused = None;
        let walked = walk(self.dir.as_fd(), WalkLimits::ALL, &mut |cgroup| {
            if let Err(e) = list(cgroup, each)
                && !is_gone(&e)
            {
                refused.get_or_insert(e);
            }
            ControlFlow::Continue(())
        });
        match (refused, walked?) {
            (Some(e), _) => Err(e),
            (None, Walked::Truncated) => Err(io::Error::from_raw_os_error(libc::EAGAIN)),
            (None, _) => Ok(()),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        let mut empty = true;
        match self.for_each(&mut |_| empty = false) {
            Ok(()) => empty,
            Err(e) => is_gone(&e),
        }
    }

    /// Whether no process is found in the cgroup and in those that are below it now. What cannot be looked at counts as
    /// empty; what is beyond the limits of a walk does not. Does not allocate.
    pub(super) fn is_tree_empty(&self) -> bool {
        let walked = walk(self.dir.as_fd(), WalkLimits::DECIDING, &mut |cgroup| {
            let mut empty = true;
            // The caller has read the cgroups that it knows.
            let _ = list(cgroup, &mut |_| empty = false);
            match empty {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        });
        !matches!(walked, Ok(Walked::Truncated | Walked::Stopped))
    }
}

/// Opens a directory for what is below it alone.
pub(super) fn open_directory(dir: &Path) -> Result<File, PathError> {
    File::options()
        .read(true)
        .custom_flags(libc::O_PATH | libc::O_DIRECTORY)
        .open(dir)
        .map_err(PathError::at(dir))
}

fn open_procs(cgroup: BorrowedFd<'_>) -> io::Result<File> {
    let procs = openat(cgroup, c"cgroup.procs", OFlags::CLOEXEC, Mode::empty())?;
    Ok(procs.into())
}

/// Calls `each` for every process that is in a cgroup now.
fn list(cgroup: BorrowedFd<'_>, each: &mut dyn FnMut(i32)) -> io::Result<()> {
    for_each_pid(&open_procs(cgroup)?, each)
}

/// Room for an open file that one thread at a time may take out.
#[derive(Debug)]
struct Slot(AtomicI32);

/// No descriptor has this number.
const EMPTY: RawFd = -1;

impl Slot {
    fn new(file: File) -> Self {
        Self(AtomicI32::new(file.into_raw_fd()))
    }

    fn take(&self) -> Option<File> {
        Self::owned(self.0.swap(EMPTY, Ordering::AcqRel))
    }

    /// Puts a file in; the one that was there is closed.
    fn put(&self, file: File) {
        drop(Self::owned(
            self.0.swap(file.into_raw_fd(), Ordering::AcqRel),
        ));
    }

    fn owned(fd: RawFd) -> Option<File> {
        // SAFETY: the slot has owned it, and the exchange has handed it to this caller alone.
        (fd != EMPTY).then(|| unsafe { File::from_raw_fd(fd) })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        drop(self.take());
    }
}

/// Calls `each` for every process id in a `cgroup.procs`, whatever its length, without allocating.
fn for_each_pid(procs: &File, each: &mut dyn FnMut(i32)) -> io::Result<()> {
    let read = for_each_line(procs, &mut |line| {
        let pid = number(line).and_then(|pid| i32::try_from(pid).ok());
        // 0 is a process of another PID namespace, which cannot be signalled from here.
        if let Some(pid) = pid.filter(|pid| *pid > 0) {
            each(pid);
        }
    });
    match read {
        // A threaded cgroup: its processes are listed in its domain.
        Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(()),
        read => read,
    }
}
