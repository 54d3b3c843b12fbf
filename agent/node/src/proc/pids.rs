//! Process ids: how many the node and a pod use, read as the kubelet reads them.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use evictd_sys::fs::PathError;

use crate::{
    cgroup::memory::{descendants, is_gone},
    kernfile::{hold, malformed, number, pread},
};

/// One reading of the node. The unit is a task: every thread counts, and so does a zombie until it is reaped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PidReading {
    /// The smaller one of `kernel.pid_max` and `kernel.threads-max`: the signal's capacity.
    pub capacity: u64,
    /// The kernel's `nr_threads`.
    pub used: u64,
}

impl PidReading {
    /// What the signal `pid.available` reads; below zero when `pid_max` was lowered under what runs.
    pub fn available(&self) -> i64 {
        signed(self.capacity) - signed(self.used)
    }
}

/// Task counts fit an i64: the kernel keeps them in an int.
fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// The node's files, held open (kubelet `pkg/kubelet/stats/pidlimit/pidlimit_linux.go`, `Stats`).
#[derive(Debug)]
pub struct Pids {
    limits: Vec<File>,
    loadavg: File,
}

impl Pids {
    /// Opens the files below `proc`, the root of a procfs. Of the two limits one may be missing, as for the kubelet.
    ///
    /// # Errors
    /// Neither limit is there, or no `loadavg`.
    pub fn open(proc: &Path) -> Result<Self, PathError> {
        const LIMITS: [&str; 2] = ["sys/kernel/pid_max", "sys/kernel/threads-max"];
        let mut limits = Vec::with_capacity(LIMITS.len());
        let mut missing = None;
        for name in LIMITS {
            let path = proc.join(name);
            match File::open(&path) {
                Ok(file) => limits.push(file),
                Err(e) => missing = Some(PathError::at(&path)(e)),
            }
        }
        if let (true, Some(error)) = (limits.is_empty(), missing) {
            return Err(error);
        }
        let loadavg = hold(&proc.join("loadavg"))?;
        Ok(Self { limits, loadavg })
    }

    /// Capacity and use. Does not allocate.
    ///
    /// # Errors
    /// A file does not hold what the kernel writes there.
    pub fn read(&self) -> io::Result<PidReading> {
        let mut capacity = u64::MAX;
        for file in &self.limits {
            let mut buffer = [0; 32];
            let limit = number(pread(file, &mut buffer)?);
            capacity = capacity.min(limit.ok_or_else(|| malformed("not a number of tasks"))?);
        }
        let mut buffer = [0; 128];
        let used = running_and_all(pread(&self.loadavg, &mut buffer)?);
        Ok(PidReading {
            capacity,
            used: used.ok_or_else(|| malformed("no field `running/all` in loadavg"))?,
        })
    }
}

/// The fourth field of loadavg is `running/all` (`Documentation/filesystems/proc.rst`); all is what counts.
fn running_and_all(loadavg: &[u8]) -> Option<u64> {
    let field = loadavg.split(|b| *b == b' ').nth(3)?;
    number(field.split(|b| *b == b'/').nth(1)?)
}

/// What a pod uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodPids {
    /// Processes in the pod's cgroup and below it. The kubelet's `process_stats.process_count` adds up the
    /// containers alone; the sandbox's one process is in here too, the same for every pod.
    pub processes: u64,
    /// Tasks charged by the pids controller, where the directory has it: what `pids.max` limits.
    pub tasks: Option<u64>,
}

/// Counts a pod from its cgroup directory, in whatever hierarchy: v2, v1 pids, or v1 memory (without `tasks`).
///
/// # Errors
/// The directory is not there. Children that vanish meanwhile are counted as empty.
pub fn of_pod(cgroup: &Path) -> Result<PodPids, PathError> {
    let mut processes = 0;
    for dir in descendants(cgroup)? {
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
    Ok(PodPids {
        processes,
        tasks: tasks(cgroup)?,
    })
}

fn tasks(cgroup: &Path) -> Result<Option<u64>, PathError> {
    let file: PathBuf = cgroup.join("pids.current");
    match fs::read(&file) {
        Ok(bytes) => Ok(number(&bytes)),
        Err(e) if is_gone(&e) => Ok(None),
        Err(e) => Err(PathError::at(&file)(e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn procfs(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    // R1
    #[test]
    fn the_smaller_limit_is_the_capacity() {
        let proc = procfs(&[
            ("sys/kernel/pid_max", "32768\n"),
            ("sys/kernel/threads-max", "192730\n"),
            ("loadavg", "0.13 0.27 0.31 1/197 8144\n"),
        ]);
        let reading = Pids::open(proc.path()).unwrap().read().unwrap();
        assert_eq!((reading.capacity, reading.used), (32768, 197));
        assert_eq!(reading.available(), 32571);
    }

    #[test]
    fn one_limit_is_enough_but_none_is_an_error_that_names_the_file() {
        let proc = procfs(&[
            ("sys/kernel/threads-max", "100\n"),
            ("loadavg", "0 0 0 1/150 7\n"),
        ]);
        let reading = Pids::open(proc.path()).unwrap().read().unwrap();
        assert_eq!(reading.available(), -50);
        let empty = procfs(&[("loadavg", "0 0 0 1/1 1\n")]);
        let error = Pids::open(empty.path()).unwrap_err().to_string();
        assert!(error.contains("threads-max"), "{error}");
    }

    #[test]
    fn damaged_files_are_errors() {
        let proc = procfs(&[
            ("sys/kernel/pid_max", "many\n"),
            ("loadavg", "0 0 0 1/1 1\n"),
        ]);
        assert!(Pids::open(proc.path()).unwrap().read().is_err());
        let proc = procfs(&[("sys/kernel/pid_max", "9\n"), ("loadavg", "0 0 0 1\n")]);
        assert!(Pids::open(proc.path()).unwrap().read().is_err());
    }
}
