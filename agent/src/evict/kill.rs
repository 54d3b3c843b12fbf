//! Kills whole pods: every process of a cgroup and of all below it.
//!
//! v2 with `cgroup.kill` (5.14+) does that in one write, forks included. Elsewhere every process gets SIGKILL, again
//! and again until the groups are empty: a fork that was under way when its parent was signalled shows up in the
//! next round, and a task with a fatal signal pending cannot fork (`copy_process` in the kernel).
//!
//! v1 hands the same list of processes to every read of an open `cgroup.procs` for up to a second
//! (`cgroup_pidlist_start`): only the first read after an open is fresh. A held file serves for the first round, which
//! has to be fast; every later look opens the file anew, relative to a held directory. v2 makes the list for every read.
//!
//! v2's `cgroup.procs` leaves out a process that has begun to exit, and on recent kernels (seen on 7.2) such a process
//! still holds all its memory. Whether a pod is gone is therefore asked of `populated` in `cgroup.events`.

use std::{
    fs::File,
    io::{self, Write as _},
    os::{
        fd::{AsRawFd as _, FromRawFd as _},
        unix::fs::{FileExt as _, OpenOptionsExt as _},
    },
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use crate::observe::{
    cgroup::{PathError, Version, descendants, is_gone},
    text::hold,
};

/// A pod's processes, ready to be killed through files that are open already.
#[derive(Debug)]
pub struct Killer {
    path: PathBuf,
    kill: Option<File>,
    /// v2's `cgroup.events` of the topmost group, which speaks for those below as well.
    events: Option<File>,
    pub(super) groups: Vec<Group>,
}

/// One cgroup of a pod.
#[derive(Debug)]
pub(super) struct Group {
    dir: File,
    procs: File,
    /// The held file tells nothing new: on v1, once it was read.
    stale: AtomicBool,
    version: Version,
}

impl Group {
    fn open(dir: &Path, version: Version) -> Result<Self, PathError> {
        let procs = dir.join("cgroup.procs");
        Ok(Self {
            dir: File::options()
                .read(true)
                .custom_flags(libc::O_PATH | libc::O_DIRECTORY)
                .open(dir)
                .map_err(PathError::at(dir))?,
            procs: File::open(&procs).map_err(PathError::at(&procs))?,
            stale: AtomicBool::new(false),
            version,
        })
    }

    /// Calls `each` for every process that is in the group now. Does not allocate.
    pub(super) fn for_each(&self, each: impl FnMut(i32)) -> io::Result<()> {
        if self.version == Version::V2 || !self.stale.swap(true, Ordering::Relaxed) {
            return for_each_pid(&self.procs, each);
        }
        // SAFETY: a held directory and a C string.
        let fd = unsafe {
            libc::openat(
                self.dir.as_raw_fd(),
                c"cgroup.procs".as_ptr(),
                libc::O_RDONLY | libc::O_CLOEXEC,
            )
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else's.
        for_each_pid(&unsafe { File::from_raw_fd(fd) }, each)
    }

    fn is_empty(&self) -> bool {
        let mut empty = true;
        match self.for_each(|_| empty = false) {
            Ok(()) => empty,
            Err(e) => is_gone(&e),
        }
    }
}

/// What one round of signals did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// Processes that were found; with `cgroup.kill` the kernel does not say how many.
    pub processes: u32,
    /// Whether every group was empty before.
    pub empty: bool,
}

impl Killer {
    /// Opens `cgroup.kill` or the `cgroup.procs` of the pod's cgroup and of all below.
    ///
    /// # Errors
    /// The cgroup is not there, or may not be written to.
    pub fn open(path: &Path) -> Result<Self, PathError> {
        let kill = path.join("cgroup.kill");
        let kill = match File::options().write(true).open(&kill) {
            Ok(file) => Some(file),
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => return Err(PathError::at(&kill)(e)),
        };
        let events = match hold(&path.join("cgroup.events")) {
            Ok(file) => Some(file),
            // v1, or the root of v2.
            Err(e) if e.source.kind() == io::ErrorKind::NotFound => None,
            Err(e) => return Err(e),
        };
        let version = match events {
            Some(_) => Version::V2,
            None => Version::V1,
        };
        let mut groups = Vec::new();
        for dir in descendants(path)? {
            match Group::open(&dir, version) {
                Ok(group) => {
                    if kill.is_none() && version == Version::V2 {
                        // Takes the buffer for the text, as `hold` does; to the end, where the kernel lets go of the tasks. A
                        // threaded group refuses to be read: its processes are its domain's.
                        let _ = group.for_each(|_| ());
                    }
                    groups.push(group);
                }
                Err(e) if is_gone(&e.source) && dir != path => {}
                Err(e) => return Err(e),
            }
        }
        Ok(Self {
            path: path.to_owned(),
            kill,
            events,
            groups,
        })
    }

    /// The pod's cgroup directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Sends SIGKILL once to all that is there. Does not allocate.
    ///
    /// # Errors
    /// The first refusal, after everybody else was signalled. A group that is gone is an empty one.
    pub fn kill(&self) -> io::Result<Round> {
        if let Some(mut kill) = self.kill.as_ref() {
            // The write would succeed for nobody as well, and an empty group must not pass for a kill.
            if self.events.as_ref().is_some_and(is_unpopulated) {
                return Ok(Round {
                    processes: 0,
                    empty: true,
                });
            }
            return match kill.write_all(b"1") {
                Ok(()) => Ok(Round {
                    processes: 0,
                    empty: false,
                }),
                Err(e) if is_gone(&e) => Ok(Round {
                    processes: 0,
                    empty: true,
                }),
                Err(e) => Err(e),
            };
        }
        let mut round = Round {
            processes: 0,
            empty: true,
        };
        let mut refused = None;
        for group in &self.groups {
            let outcome = group.for_each(|pid| {
                round.empty = false;
                match signal(pid) {
                    Ok(()) => round.processes += 1,
                    Err(e) if is_gone(&e) => {}
                    Err(e) => refused = Some(e),
                }
            });
            match outcome {
                Err(e) if !is_gone(&e) => refused = Some(e),
                _ => {}
            }
        }
        refused.map_or(Ok(round), Err)
    }

    /// Whether no process is left, and all memory that went with processes is back. Does not allocate.
    pub fn is_empty(&self) -> bool {
        match &self.events {
            Some(events) => is_unpopulated(events),
            None => self.groups.iter().all(Group::is_empty),
        }
    }
}

/// Reads `populated` out of a `cgroup.events`.
fn is_unpopulated(events: &File) -> bool {
    // Two short lines: `populated 1` and `frozen 0`.
    let mut buffer = [0; 128];
    match events.read_at(&mut buffer, 0) {
        Ok(got) => buffer[..got]
            .split(|byte| *byte == b'\n')
            .any(|line| line == b"populated 0"),
        Err(e) => is_gone(&e),
    }
}

/// Calls `each` for every process id in a `cgroup.procs`, whatever its length, without allocating.
fn for_each_pid(procs: &File, mut each: impl FnMut(i32)) -> io::Result<()> {
    let mut buffer = [0; 4096];
    let (mut offset, mut pid) = (0, 0_i32);
    loop {
        let got = procs.read_at(&mut buffer, offset)?;
        if got == 0 {
            return Ok(());
        }
        offset += got as u64;
        // A number may be cut by the end of the buffer: what is read of it is kept for the next round.
        for byte in &buffer[..got] {
            if byte.is_ascii_digit() {
                pid = pid.wrapping_mul(10).wrapping_add(i32::from(byte - b'0'));
            } else {
                // 0 is a process of another PID namespace, which cannot be signalled from here.
                if pid > 0 {
                    each(pid);
                }
                pid = 0;
            }
        }
    }
}

fn signal(pid: i32) -> io::Result<()> {
    // SAFETY: plain integers; the pid was positive, so that no group is meant.
    if unsafe { libc::kill(pid, libc::SIGKILL) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
