//! Process ids: how many the node and a pod use, read as the kubelet reads them.

use std::{fs::File, io, path::Path};

use evictd_engine::units::signed;
use evictd_sys::fs::PathError;

use crate::kernfile::{bad_message, number, open_primed, pread};

/// One reading of the node. The unit is a task: every thread counts, and so does a zombie until it is reaped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PidReading {
    /// The smaller one of `kernel.pid_max` and `kernel.threads-max`: the signal's capacity.
    pub capacity: u64,
    /// The kernel's `nr_threads`.
    pub used: u64,
}

impl PidReading {
    /// Number of process ids that are available, as the signal `pid.available` reads it; below zero when `pid_max` was
    /// lowered under what runs.
    pub fn available(&self) -> i64 {
        signed(self.capacity) - signed(self.used)
    }
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
        let loadavg = open_primed(&proc.join("loadavg"))?;
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
            capacity = capacity.min(limit.ok_or_else(bad_message)?);
        }
        let mut buffer = [0; 128];
        let used = running_and_all(pread(&self.loadavg, &mut buffer)?);
        Ok(PidReading {
            capacity,
            used: used.ok_or_else(bad_message)?,
        })
    }
}

/// The fourth field of loadavg is `running/all` (`Documentation/filesystems/proc.rst`); all is what counts.
fn running_and_all(loadavg: &[u8]) -> Option<u64> {
    let field = loadavg.split(|b| *b == b' ').nth(3)?;
    number(field.split(|b| *b == b'/').nth(1)?)
}

#[cfg(test)]
mod tests {
    use std::fs;

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
