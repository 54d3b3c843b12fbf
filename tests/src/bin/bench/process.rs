//! What the kernel says of a process.

use std::sync::atomic::{AtomicU64, Ordering};

use evictd_tests::{prelude::*, text::number};
use nix::{
    sys::wait::{Id, WaitPidFlag, waitid},
    unistd::Pid,
};
use serde::Serialize;

/// CPU time of all threads that a process has now, in ns.
pub fn cpu_time(pid: u32) -> Result<u64> {
    let mut total = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        // "time on the CPU, time waiting, timeslices"; a thread that ends meanwhile is left out.
        let text = fs::read_to_string(task?.path().join("schedstat")).unwrap_or_default();
        let first = text.split(' ').next().and_then(|n| n.parse().ok());
        total += first.unwrap_or(0_u64);
    }
    Ok(total)
}

/// CPU time of a process while `work` goes on.
pub struct CpuShare<T> {
    pub outcome: T,
    pub seconds: f64,
    pub percent: f64,
}

impl<T> CpuShare<T> {
    pub fn of(pid: u32, work: impl FnOnce() -> Result<T>) -> Result<Self> {
        let (start, before) = (Instant::now(), cpu_time(pid)?);
        let outcome = work()?;
        let (seconds, after) = (start.elapsed().as_secs_f64(), cpu_time(pid)?);
        let used = Duration::from_nanos(after.saturating_sub(before)).as_secs_f64();
        Ok(Self {
            outcome,
            seconds,
            percent: used / seconds * 100.0,
        })
    }
}

/// Memory of a process, in KiB.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Footprint {
    pub rss: u64,
    /// Mapped by VMAs that are locked.
    pub locked: u64,
    /// Resident, shared pages divided by the processes that share them.
    pub pss: u64,
    /// Resident and anonymous: heap and stacks.
    pub anonymous: u64,
}

impl Footprint {
    pub fn of(pid: u32) -> Result<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
        let kib = |text, field| number(text, field).unwrap_or(0);
        Ok(Self {
            rss: kib(&status, "VmRSS:"),
            locked: kib(&status, "VmLck:"),
            pss: kib(&rollup, "Pss:"),
            anonymous: kib(&status, "RssAnon:"),
        })
    }
}

/// Waits in a thread for the end of a child and notes when that was; the child is still to be reaped.
pub struct Exit {
    time: Arc<AtomicU64>,
}

impl Exit {
    pub fn of(pid: u32) -> Self {
        let time = Arc::new(AtomicU64::new(0));
        let noted = Arc::clone(&time);
        std::thread::spawn(move || {
            let child = Id::Pid(Pid::from_raw(pid.cast_signed()));
            // It is left to be waited for.
            if waitid(child, WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT).is_ok() {
                noted.store(monotonic_ns(), Ordering::Release);
            }
        });
        Self { time }
    }

    /// When it ended, ns of CLOCK_MONOTONIC.
    pub fn time(&self) -> Option<u64> {
        Some(self.time.load(Ordering::Acquire)).filter(|t| *t > 0)
    }
}
