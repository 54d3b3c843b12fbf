//! Kills whole pods: every process of a cgroup and of all below it.
//!
//! Every process gets SIGKILL by a pidfd ([`super::members`]), again and again until the cgroups are empty: a fork that
//! was under way when its parent was signalled shows up in the next list, and a task with a fatal signal pending cannot
//! fork (`copy_process` in the kernel).
//!
//! v2's `cgroup.kill` (5.14+) does that in one write, forks included, but waits for the kernel's `cgroup_mutex`
//! (`cgroup_kill_write`). A container runtime holds that while it makes a cgroup or moves a process, which may take tens
//! of milliseconds on a node that is short of memory. So threads that may take their time write it, and a deciding
//! thread only where no process can be listed.
//!
//! v1's list of a cgroup is fresh only when the file was just opened (`open_cgroup.rs`): a held file serves for the
//! first list, every later one opens the file anew, relative to a held directory.
//!
//! v2's `cgroup.procs` leaves out a process that has begun to exit, and on recent kernels (seen on 7.2) such a process
//! still holds all its memory. Whether a pod is gone is therefore asked of `populated` in `cgroup.events`.

use std::{
    fs::File,
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use evictd_engine::units::signed;
use evictd_sys::fs::{PathError, is_gone};

use super::{members::List, open_cgroup::OpenCgroup, walk::WalkLimits};
use crate::{
    cgroup::{
        memory::Version,
        tree::{FollowedCgroups, is_lacking},
    },
    kernfile::{open_primed, pread, value_of},
    proc::{pidfd::Signal, process},
};

pub use super::members::KillResult;

/// A pod's processes, ready to be killed through files that are open already.
#[derive(Debug)]
pub struct CgroupKiller {
    path: PathBuf,
    kill: Option<File>,
    /// v2's `cgroup.events` of the topmost cgroup, which speaks for those below as well.
    events: Option<File>,
    /// The pod's own cgroup, and those below it that are followed.
    cgroups: Vec<Arc<OpenCgroup>>,
}

impl CgroupKiller {
    /// Opens `cgroup.kill`, if there is one, and the `cgroup.procs` of the pod's cgroup and of those below that are
    /// followed.
    ///
    /// # Errors
    /// The cgroup is not there, or may not be written to.
    pub fn open(path: &Path) -> Result<Self, PathError> {
        Self::reopen(path, &FollowedCgroups::find(path)?, None)
    }

    /// Opens the cgroups that were found, the topmost first. What `before` has open of the same ones is shared.
    pub(crate) fn reopen(
        path: &Path,
        found: &FollowedCgroups,
        before: Option<&Self>,
    ) -> Result<Self, PathError> {
        let kill = path.join("cgroup.kill");
        let kill = match File::options().write(true).open(&kill) {
            Ok(file) => Some(file),
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => return Err(PathError::at(&kill)(e)),
        };
        let events = match open_primed(&path.join("cgroup.events")) {
            Ok(file) => Some(file),
            // v1, or the root of v2.
            Err(e) if e.source.kind() == io::ErrorKind::NotFound => None,
            Err(e) => return Err(e),
        };
        let version = match events {
            Some(_) => Version::V2,
            None => Version::V1,
        };
        let before = before.map_or(&[][..], |before| &before.cgroups);
        let mut cgroups = Vec::new();
        for (at, followed) in found.list.iter().enumerate() {
            if let Some(same) = before.iter().find(|open| open.id == followed.id) {
                cgroups.push(Arc::clone(same));
                continue;
            }
            match OpenCgroup::open(followed, version) {
                Ok(cgroup) => {
                    if version == Version::V2 {
                        // Takes the buffer for the text, as `open_primed` does; to the end, where the kernel lets go of
                        // the tasks.
                        let _ = cgroup.for_each(&mut |_| ());
                    }
                    cgroups.push(Arc::new(cgroup));
                }
                // What cannot be opened below the pod is the pod's doing, unless the agent lacks something.
                Err(e) if at > 0 && !is_lacking(&e.source) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(Self {
            path: path.to_owned(),
            kill,
            events,
            cgroups,
        })
    }

    /// The pod's cgroup directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Sends SIGKILL once to all that is there; of a pod of very many processes to the first ones. Does not allocate.
    ///
    /// # Errors
    /// The first refusal, where no process was signalled. A cgroup that is gone is an empty one.
    pub fn kill(&self) -> io::Result<KillResult> {
        if self.events.as_ref().is_some_and(is_unpopulated) {
            return Ok(KillResult::EMPTY);
        }
        let mut result = self.signal(Signal::KILL);
        if result.processes > 0 {
            return Ok(result);
        }
        // A container may have been started again since: its cgroup is another one.
        if let Some(kill) = &self.kill {
            return write_kill(kill);
        }
        if result == KillResult::EMPTY
            && let Some(pod) = self.cgroups.first()
        {
            let below = pod.signal_tree(Signal::KILL, WalkLimits::DECIDING);
            // Where nothing can be looked at (no descriptor is left), the cgroups that are held open have the say.
            if !below.empty {
                result = below;
            }
        }
        // What has begun to exit is in no list.
        result.empty &= self.events.as_ref().is_none_or(is_unpopulated);
        result.or_refusal()
    }

    /// As [`Self::kill`], for a pod that was killed: forks that were under way then, and containers that were started
    /// again. Writes no `cgroup.kill`, since what has begun to exit is in no list. Refusals were told before.
    pub fn kill_again(&self) {
        if self.kill.is_none() {
            let _ = self.kill();
        } else if self.signal(Signal::KILL).processes == 0
            && let Some(pod) = self.cgroups.first()
        {
            pod.signal_tree(Signal::KILL, WalkLimits::DECIDING);
        }
    }

    /// As [`Self::kill_again`], for a pod with processes that stay: those of containers that were started again are in
    /// other cgroups. Does not allocate.
    pub fn kill_stuck(&self) {
        let _ = self.signal(Signal::KILL);
        if let Some(pod) = self.cgroups.first() {
            pod.signal_tree(Signal::KILL, WalkLimits::DECIDING);
        }
    }

    /// Kills like [`Self::kill`], in all cgroups below the pod, by `cgroup.kill` where there is one. For threads that
    /// may take their time.
    pub(super) fn kill_all(&self) -> io::Result<()> {
        if let Some(kill) = &self.kill {
            return write_kill(kill).map(drop);
        }
        if self.signal_all(Signal::KILL).processes > 0 {
            return Ok(());
        }
        // Where nothing was reached: by what is open.
        self.kill().map(drop)
    }

    /// Sends a signal once to every process that is there, in all cgroups below the pod, one by one, whatever is
    /// refused meanwhile. For threads that may take their time.
    pub(super) fn signal_all(&self, signal: Signal) -> KillResult {
        let tree = |pod: &Arc<OpenCgroup>| pod.signal_tree(signal, WalkLimits::ALL);
        self.cgroups.first().map_or(KillResult::EMPTY, tree)
    }

    /// Calls `each` for every process that is there, in all cgroups below the pod. For threads that may take their
    /// time.
    pub(super) fn for_each(&self, each: &mut dyn FnMut(i32)) -> io::Result<()> {
        self.cgroups
            .first()
            .map_or(Ok(()), |pod| pod.for_each_in_tree(each))
    }

    /// Sends a signal once to the processes in the cgroups that are open, so many in each as [`OpenCgroup::signal`] does at
    /// once. Does not allocate.
    fn signal(&self, signal: Signal) -> KillResult {
        let mut result = KillResult::EMPTY;
        for cgroup in &self.cgroups {
            result.add(cgroup.signal(signal));
        }
        result
    }

    /// Whether no process is left, and all memory that went with processes is back. Does not allocate.
    pub fn is_empty(&self) -> bool {
        match &self.events {
            Some(events) => is_unpopulated(events),
            // As for `kill`: first the cgroups that are held open, then those that were made since.
            None => {
                self.cgroups.iter().all(|cgroup| cgroup.is_empty())
                    && self.cgroups.first().is_none_or(|pod| pod.is_tree_empty())
            }
        }
    }

    /// Whether something is left of what ran at a moment, in nanoseconds of CLOCK_MONOTONIC: a process that was started
    /// before, or one of which that cannot be known. For threads that may take their time.
    pub fn holds_older_than(&self, moment: u64) -> bool {
        if self.is_empty() {
            return false;
        }
        match Age::of(moment, |each| self.for_each(each)) {
            (_, Err(_)) | (Age::Older, _) => true,
            (Age::Younger, _) => false,
            // One that has begun to exit is in no list. Without `populated` the list is all there is.
            (Age::Empty, _) => self.events.is_some(),
        }
    }

    /// Whether processes run, and all were started after a moment, in nanoseconds of CLOCK_MONOTONIC. For threads that
    /// may take their time.
    pub fn is_younger_than(&self, moment: u64) -> bool {
        let (age, listed) = Age::of(moment, |each| self.for_each(each));
        age == Age::Younger && listed.is_ok()
    }

    /// As [`Self::kill_all`], but spares cgroups in which all processes were started after a moment. For threads that may
    /// take their time.
    pub(super) fn kill_older_than(&self, moment: u64) -> io::Result<()> {
        let Some(pod) = self.cgroups.first() else {
            return Ok(());
        };
        // A cgroup that vanishes here is empty.
        let is_younger = |list: &List<'_>| Age::of(moment, list).0 == Age::Younger;
        if !pod.any_list(&mut |list| is_younger(list)) {
            return self.kill_all();
        }
        let older = &mut |list: &List<'_>| !is_younger(list);
        let result = pod.signal_those(Signal::KILL, WalkLimits::ALL, older);
        result.or_refusal().map(drop)
    }
}

/// Has the kernel kill all processes of a cgroup and of all below it.
fn write_kill(mut kill: &File) -> io::Result<KillResult> {
    match kill.write_all(b"1") {
        Ok(()) => Ok(KillResult {
            empty: false,
            ..KillResult::EMPTY
        }),
        Err(e) if is_gone(&e) => Ok(KillResult::EMPTY),
        Err(e) => Err(e),
    }
}

/// Age of the processes of a cgroup, compared with a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Age {
    Empty,
    /// One of them was there, or it cannot be told.
    Older,
    Younger,
}

impl Age {
    /// Determines the age of the processes that `list` brings, and returns how the listing has ended.
    fn of(
        moment: u64,
        list: impl FnOnce(&mut dyn FnMut(i32)) -> io::Result<()>,
    ) -> (Self, io::Result<()>) {
        let moment = signed(moment);
        let mut age = Self::Empty;
        let listed = list(&mut |pid| {
            let is_older = process::started(pid).is_none_or(|start| start <= moment);
            if is_older {
                age = Self::Older;
            } else if age == Self::Empty {
                age = Self::Younger;
            }
        });
        (age, listed)
    }
}

/// Reads `populated` out of a `cgroup.events`.
fn is_unpopulated(events: &File) -> bool {
    // Two short lines: `populated 1` and `frozen 0`.
    match pread(events, &mut [0; 128]) {
        Ok(text) => value_of(text, "populated") == Some(0),
        Err(e) => is_gone(&e),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, process::Command};

    use super::*;

    /// Directories with files in the place of v1's cgroups.
    #[test]
    fn a_list_that_cannot_be_read_spares_no_process() {
        let dir = tempfile::tempdir().unwrap();
        let pod = dir.path();
        fs::write(pod.join("cgroup.procs"), "").unwrap();
        let killer = CgroupKiller::open(pod).unwrap();
        assert_eq!(killer.kill().unwrap(), KillResult::EMPTY);
        let mut member = Command::new("sleep").arg("600").spawn().unwrap();
        // Of two cgroups that came later, on both sides of the one with the process, the list is a directory.
        for cgroup in ["a", "c"] {
            fs::create_dir_all(pod.join(cgroup).join("cgroup.procs")).unwrap();
        }
        fs::create_dir(pod.join("b")).unwrap();
        fs::write(pod.join("b/cgroup.procs"), format!("{}\n", member.id())).unwrap();
        let was_empty = killer.is_empty();
        let result = killer.kill();
        // Whatever has become of it, nothing is left behind.
        member.kill().unwrap();
        member.wait().unwrap();
        assert!(!was_empty);
        let killed = KillResult {
            processes: 1,
            empty: false,
            refused: Some(libc::EISDIR),
        };
        assert_eq!(result.unwrap(), killed);
    }
}
