//! The tasks of a pod.

use std::{
    fs,
    path::{Path, PathBuf},
};

use evictd_sys::fs::{PathError, is_gone};

use crate::{
    cgroup::{hierarchy::v1_sibling, tree::FollowedCgroups},
    kernfile::number,
};

/// Processes and tasks of a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodPids {
    /// Processes in the pod's cgroup and below it. The kubelet's `process_stats.process_count` flushes the
    /// containers alone; the sandbox's one process is in here too, the same for every pod. Of a pod with more cgroups
    /// than are followed these are its tasks, where they are known.
    pub processes: u64,
    /// Tasks charged by the pids controller, where the pod has a cgroup of it: what `pids.max` limits. What waits to be
    /// reaped is charged still.
    pub tasks: Option<u64>,
}

/// Counts a pod from its cgroup directory, in whatever hierarchy: v2, v1 pids, or v1 memory (with the `tasks` of its
/// cgroup of the pids hierarchy, if there is one).
///
/// # Errors
/// The directory is not there. Children that vanish meanwhile are counted as empty.
pub fn of_pod(cgroup: &Path) -> Result<PodPids, PathError> {
    let mut processes = 0;
    let found = FollowedCgroups::find(cgroup)?;
    for dir in found.paths() {
        let file = dir.join("cgroup.procs");
        processes += match fs::read(&file) {
            Ok(bytes) => bytes
                .split(|b| *b == b'\n')
                .filter(|l| !l.is_empty())
                .count() as u64,
            // A threaded cgroup of v2 refuses: its processes are listed in its domain, above.
            Err(e) if is_gone(&e) || e.raw_os_error() == Some(libc::EOPNOTSUPP) => 0,
            Err(e) => return Err(PathError::at(&file)(e)),
        };
    }
    let tasks = tasks(cgroup)?;
    if let Some(tasks) = tasks.filter(|_| found.is_cut) {
        processes = processes.max(tasks);
    }
    Ok(PodPids { processes, tasks })
}

fn tasks(cgroup: &Path) -> Result<Option<u64>, PathError> {
    let charged = |dir: &Path| {
        let file: PathBuf = dir.join("pids.current");
        match fs::read(&file) {
            Ok(bytes) => Ok(number(&bytes)),
            Err(e) if is_gone(&e) => Ok(None),
            Err(e) => Err(PathError::at(&file)(e)),
        }
    };
    match (charged(cgroup)?, v1_sibling(cgroup, "pids")) {
        (None, Some(beside)) => charged(&beside),
        (own, _) => Ok(own),
    }
}
