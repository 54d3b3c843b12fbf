//! What the host and the guest's init say to each other: jobs go in with the initramfs, reports come out on the
//! second serial port, mixed with the jobs' own output.

use serde::{Deserialize, Serialize};

/// Path of the jobs inside the initramfs.
pub const JOBS_PATH: &str = "/evictd-vm/jobs.json";

/// Begins every report line; init puts a newline of its own before it, which the host takes away again.
pub const MARK: &str = "@evictd-vm ";

/// One program to run inside the guest, to its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Command to run; the first entry is the program's path or its name in the guest's PATH.
    pub argv: Vec<String>,
    /// Seconds until init kills it; 0 means never.
    pub timeout_secs: u64,
    /// Whether the serial port is the job's controlling terminal. Such a job is not reported on.
    pub terminal: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Report {
    /// The guest is up. `unmet` says why its jobs cannot be run as asked.
    Ready {
        release: String,
        /// Description of what the kernel lacks; `None` if it lacks nothing.
        unmet: Option<String>,
    },
    Started {
        /// Index of the job among the jobs.
        job: usize,
    },
    /// A job has ended and everything that it left running has been killed.
    Ended {
        /// Index of the job among the jobs.
        job: usize,
        status: Status,
        millis: u64,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Status {
    Exited(i32),
    Killed(i32),
    /// Kill by init, when the job's time was up.
    TimedOut,
    /// Failure to start, for this reason.
    NotStarted(String),
}
