//! Jobs in a guest whose content the caller chooses, each with its output and with how it ended. A job that takes the
//! machine down costs itself and one boot.

use std::{
    collections::VecDeque,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use serde::Serialize;

use super::{
    boots::{keep, kernel_panic},
    cache, initramfs,
    kernels::{self, Fetched},
    matrix_entry, programs,
    protocol::{Job, Report, Status},
    qemu::{Cgroup, Event, Machine},
    unpacked,
};
use crate::shell::output;

/// What the guest's disk can hold; the file has holes.
const DISK_BYTES: u64 = 4 << 30;

pub struct Guest<'a> {
    pub kernel: &'a str,
    pub memory_mib: u32,
    pub accel: &'a str,
    /// Path inside, path on the host; `/init` and `/bin/busybox` are added.
    pub files: Vec<(String, PathBuf)>,
    /// The guest's first process: `vm-init`.
    pub init: PathBuf,
    /// Packages of the kernel's suite that lie unpacked in the guest's root.
    pub packages: &'a [&'a str],
    /// Name of the packages' directory in the cache, and of the console's file.
    pub name: &'a str,
    pub timeout: u64,
}

#[derive(Debug, Serialize)]
pub struct Outcome {
    pub argv: Vec<String>,
    pub output: String,
    /// Why it did not end by itself with exit code 0; with the kernel's last words if the machine went down.
    pub failure: Option<String>,
}

#[derive(Debug, Serialize)]
pub struct Outcomes {
    pub kernel: String,
    pub memory_mib: u32,
    pub emulator: String,
    /// Name and version of what was unpacked.
    pub packages: Vec<String>,
    pub jobs: Vec<Outcome>,
}

/// Runs every job, in as many boots as it takes, on cgroup v2. `on_end` is told after each, with all that came so far.
pub fn run(
    guest: &Guest<'_>,
    jobs: Vec<Vec<String>>,
    mut on_end: impl FnMut(&Outcomes) -> Result<()>,
) -> Result<Outcomes> {
    programs::ensure()?;
    let (name, suite) = matrix_entry(guest.kernel)?;
    let kernel = match kernels::fetch(&cache(), name, suite)? {
        Fetched::Ready(kernel) => kernel,
        Fetched::Unavailable(reason) => bail!("kernel {name} cannot be had: {reason}"),
    };
    let unpacked = unpacked::fetch(&cache(), guest.name, suite, guest.packages)?;
    let dir = tempfile::tempdir_in(cache())?;
    let disk = make_disk(dir.path())?;
    let console = super::logs().join(format!("{}.console", guest.name));
    fs::create_dir_all(super::logs())?;
    let mut files = guest.files.clone();
    files.push(("/init".to_owned(), guest.init.clone()));
    let busybox = programs::find("busybox").context("busybox is not installed")?;
    files.push(("/bin/busybox".to_owned(), busybox));
    let version = output(Command::new(programs::QEMU).arg("--version"))?;
    let mut outcomes = Outcomes {
        kernel: kernel.release.clone(),
        memory_mib: guest.memory_mib,
        emulator: format!(
            "{}, {}",
            version.lines().next().unwrap_or("QEMU"),
            guest.accel
        ),
        packages: unpacked.packages,
        jobs: Vec::new(),
    };
    let mut pending: VecDeque<Job> = jobs
        .into_iter()
        .map(|argv| Job {
            argv,
            timeout_secs: guest.timeout,
            terminal: false,
        })
        .collect();
    while !pending.is_empty() {
        let initramfs = dir.path().join("initramfs");
        let batch: Vec<Job> = pending.iter().cloned().collect();
        let trees = [unpacked.tree.clone()];
        initramfs::write_files(&initramfs, &kernel, &files, &trees, &batch)?;
        let (mut current, mut unmet) = (None, None);
        let allowance = Duration::from_secs(guest.timeout);
        let machine = Machine {
            kernel: &kernel,
            cgroup: Cgroup::V2,
            initramfs: &initramfs,
            console: &console,
            memory_mib: guest.memory_mib,
            accel: guest.accel,
            disk: Some(&disk),
        };
        let mut told = Ok(());
        let end = machine.run(|event| match event {
            Event::Report(Report::Ready { unmet: reason, .. }) => {
                unmet = reason;
                None
            }
            Event::Report(Report::Started { .. }) => {
                current = Some(Vec::new());
                Some(allowance)
            }
            Event::Output(bytes) => {
                if let Some(output) = &mut current {
                    keep(output, &bytes);
                }
                None
            }
            Event::Report(Report::Ended { status, .. }) => {
                let output = current.take().unwrap_or_default();
                if let Some(job) = pending.pop_front() {
                    let failure = failure(&status, guest.timeout);
                    outcomes.jobs.push(outcome(job, &output, failure));
                    told = std::mem::replace(&mut told, Ok(())).and_then(|()| on_end(&outcomes));
                }
                Some(allowance)
            }
        })?;
        told?;
        if let Some(reason) = unmet {
            bail!("{reason}");
        }
        if pending.is_empty() {
            break;
        }
        let said = fs::read(&console).unwrap_or_default();
        let panic = kernel_panic(&String::from_utf8_lossy(&said));
        let Some(output) = current else {
            bail!(
                "the machine did not come up: {end}{panic}; {}",
                console.display()
            );
        };
        if let Some(job) = pending.pop_front() {
            let failure = Some(format!("{end}{panic}"));
            outcomes.jobs.push(outcome(job, &output, failure));
            on_end(&outcomes)?;
        }
    }
    Ok(outcomes)
}

fn outcome(job: Job, output: &[u8], failure: Option<String>) -> Outcome {
    Outcome {
        argv: job.argv,
        output: String::from_utf8_lossy(output).into_owned(),
        failure,
    }
}

fn failure(status: &Status, timeout: u64) -> Option<String> {
    match status {
        Status::Exited(0) => None,
        Status::Exited(code) => Some(format!("exit code {code}")),
        Status::Killed(signal) => Some(format!("killed by signal {signal}")),
        Status::TimedOut => Some(format!("did not end in {timeout} s")),
        Status::NotStarted(reason) => Some(reason.clone()),
    }
}

/// An ext4 image: files that are written inside need a disk, or they would not be page cache.
fn make_disk(dir: &Path) -> Result<PathBuf> {
    let path = dir.join("disk");
    fs::File::create(&path)?.set_len(DISK_BYTES)?;
    let mkfs = programs::find("mkfs.ext4").context("mkfs.ext4 is not installed")?;
    output(Command::new(mkfs).args(["-q", "-F"]).arg(&path))?;
    Ok(path)
}
