//! The first process of a guest of `cargo xtask vm`: mounts what a node has, runs the jobs that came with the
//! initramfs one after another, reports on each over the second serial port, and ends the machine.

mod mounts;
#[path = "../../vm/protocol.rs"]
mod protocol;
mod run;

use std::{
    fs::{self, File, OpenOptions},
    io::Write as _,
    os::fd::AsFd as _,
    process::Command,
};

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::{
    reboot::{RebootMode, reboot},
    termios::{self, SetArg},
};
use protocol::{JOBS_PATH, Job, MARK, Report};

fn main() {
    if std::process::id() != 1 {
        eprintln!("vm-init: runs only as the first process of a virtual machine");
        std::process::exit(2);
    }
    if let Err(reason) = guest() {
        eprintln!("vm-init: {reason:#}");
    }
    // QEMU runs with -no-reboot: it ends where a machine would start anew.
    let Err(reason) = reboot(RebootMode::RB_AUTOBOOT);
    eprintln!("vm-init: cannot reboot: {reason}");
}

fn guest() -> Result<()> {
    mounts::base()?;
    mounts::kubelet_tunables()?;
    let port = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/ttyS1")
        .context("/dev/ttyS1")?;
    let jobs: Vec<Job> = serde_json::from_slice(&fs::read(JOBS_PATH).context(JOBS_PATH)?)?;
    let unmet = match mounts::cgroups(&fs::read_to_string("/proc/cmdline")?) {
        Ok(()) => None,
        Err(reason) => Some(format!("{reason:#}")),
    };
    environment()?;
    let interactive = jobs.iter().any(|job| job.terminal);
    if !interactive {
        raw(&port)?;
        let release = fs::read_to_string("/proc/sys/kernel/osrelease")?
            .trim()
            .to_owned();
        report(
            &port,
            &Report::Ready {
                release,
                unmet: unmet.clone(),
            },
        )?;
    }
    if let Some(reason) = unmet {
        bail!("{reason}");
    }
    for (index, job) in jobs.iter().enumerate() {
        if job.terminal {
            run::terminal(job)?;
            continue;
        }
        report(&port, &Report::Started { job: index })?;
        let (status, time) = run::to_its_end(job, &port);
        let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        report(
            &port,
            &Report::Ended {
                job: index,
                status,
                millis,
            },
        )?;
        mounts::empty_tmp()?;
    }
    // What is still in the port's buffer would be lost with the machine.
    termios::tcdrain(&port).context("/dev/ttyS1")
}

/// Output must arrive byte for byte.
fn raw(port: &File) -> Result<()> {
    let mut settings = termios::tcgetattr(port)?;
    termios::cfmakeraw(&mut settings);
    termios::tcsetattr(port.as_fd(), SetArg::TCSANOW, &settings).context("/dev/ttyS1")
}

fn report(mut port: &File, report: &Report) -> Result<()> {
    let line = format!("\n{MARK}{}\n", serde_json::to_string(report)?);
    port.write_all(line.as_bytes()).context("/dev/ttyS1")
}

/// Gives the guest its commands, a name and a loopback.
fn environment() -> Result<()> {
    for dir in ["/bin", "/sbin", "/usr/bin", "/usr/sbin", "/root"] {
        fs::create_dir_all(dir)?;
    }
    for arguments in [&["--install", "-s"][..], &["ip", "link", "set", "lo", "up"]] {
        let status = Command::new("/bin/busybox")
            .args(arguments)
            .status()
            .context("/bin/busybox")?;
        ensure!(
            status.success(),
            "busybox {} ended with {status}",
            arguments.join(" ")
        );
    }
    nix::unistd::sethostname("evictd-vm").context("sethostname")
}
