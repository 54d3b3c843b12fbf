//! Jobs in a guest, each with its output and with how it ended. A job that takes the machine down costs itself and one
//! boot.

use std::collections::VecDeque;

use super::{
    MachineOptions, cache, initramfs,
    kernels::Kernel,
    protocol::{Job, Report, Status},
    qemu::{self, Machine},
};
use crate::prelude::*;

/// The part of a job's output that is kept; what comes later is dropped, and that is said.
const KEPT: usize = 4 << 20;

/// A job that had run for longer when the time was up hangs: the others take seconds.
const HANGS: Duration = Duration::from_secs(90);

/// Setup of a guest: what its machine boots, and for how long.
pub struct Guest<'a> {
    pub kernel: &'a Kernel,
    pub options: &'a MachineOptions,
    pub disk: Option<&'a Path>,
    /// Path inside, path on the host.
    pub files: &'a [(String, PathBuf)],
    /// Together with the files they are the guest's root.
    pub trees: &'a [PathBuf],
    /// Begins the path of each boot's console.
    pub consoles: &'a Path,
    /// Jobs that have not begun by then are not run.
    pub end: Option<Instant>,
}

pub enum Event<'a> {
    /// The guest is up, with so many jobs before it.
    Up { release: String, jobs: usize },
    /// Output of the current job, as it came.
    Output(&'a [u8]),
    /// The next job is over.
    Ended(Ended<'a>),
}

pub struct Ended<'a> {
    pub job: Job,
    pub output: Vec<u8>,
    pub how: How,
    pub millis: u64,
    pub console: &'a Path,
}

pub enum How {
    ByItself(Status),
    /// The machine went down in the middle of it; how, and the kernel's last words.
    Down(String),
    /// The machine did not come up for it.
    NotUp(String),
}

/// A job without a terminal.
pub fn job(argv: Vec<String>, timeout_secs: u64) -> Job {
    Job {
        argv,
        timeout_secs,
        terminal: false,
    }
}

/// Runs every job in as many boots as it takes. Returns why this guest cannot run any, if it cannot.
pub fn run(
    guest: &Guest<'_>,
    jobs: Vec<Job>,
    mut on_event: impl FnMut(Event<'_>) -> Result<()>,
) -> Result<Option<String>> {
    let dir = tempfile::tempdir_in(cache())?;
    let initramfs = dir.path().join("initramfs");
    let left = || {
        guest
            .end
            .map(|end| end.saturating_duration_since(Instant::now()))
    };
    let is_over = || left().is_some_and(|left| left.is_zero());
    // How long the guest may be silent from now on.
    let allowance = |pending: &VecDeque<Job>| {
        let seconds = pending.front().map_or(0, |job| job.timeout_secs);
        let timeout = Duration::from_secs(seconds);
        Some(left().map_or(timeout, |left| left.min(timeout)))
    };
    let mut pending = VecDeque::from(jobs);
    let mut boots = 0;
    while !pending.is_empty() && (boots == 0 || !is_over()) {
        boots += 1;
        let begin = Instant::now();
        let console = PathBuf::from(format!("{}boot{boots}.console", guest.consoles.display()));
        let (kernel, jobs) = (guest.kernel, pending.make_contiguous());
        initramfs::write(&initramfs, kernel, guest.files, guest.trees, jobs)?;
        let machine = Machine {
            kernel,
            options: guest.options,
            initramfs: &initramfs,
            console: &console,
            disk: guest.disk,
        };
        let (mut current, mut unmet, mut told) = (None::<(Instant, Vec<u8>)>, None, Ok(()));
        let mut tell = |event: Event<'_>| {
            if told.is_ok() {
                told = on_event(event);
            }
        };
        let end = machine.run(|event| match event {
            qemu::Event::Report(Report::Ready {
                release,
                unmet: why,
            }) => {
                unmet = why;
                let jobs = pending.len();
                tell(Event::Up { release, jobs });
                None
            }
            qemu::Event::Report(Report::Started { .. }) => {
                current = Some((Instant::now(), Vec::new()));
                allowance(&pending)
            }
            qemu::Event::Output(bytes) => {
                tell(Event::Output(&bytes));
                if let Some((_, output)) = &mut current {
                    keep(output, &bytes);
                }
                None
            }
            qemu::Event::Report(Report::Ended { status, millis, .. }) => {
                let (_, output) = current.take().unzip();
                if let Some(job) = pending.pop_front() {
                    tell(Event::Ended(Ended {
                        job,
                        output: output.unwrap_or_default(),
                        how: How::ByItself(status),
                        millis,
                        console: &console,
                    }));
                }
                allowance(&pending)
            }
        })?;
        told?;
        if unmet.is_some() {
            return Ok(unmet);
        }
        let hangs = current
            .as_ref()
            .is_some_and(|(begun, _)| begun.elapsed() > HANGS);
        if is_over() && !hangs {
            break;
        }
        let Some(job) = pending.pop_front() else {
            break;
        };
        let said = fs::read(&console).unwrap_or_default();
        let why = format!("{end}{}", kernel_panic(&String::from_utf8_lossy(&said)));
        let (output, how) = match current {
            Some((_, output)) => (output, How::Down(why)),
            None => (Vec::new(), How::NotUp(why)),
        };
        on_event(Event::Ended(Ended {
            job,
            output,
            how,
            millis: u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX),
            console: &console,
        }))?;
    }
    Ok(None)
}

/// What the kernel died of, if the console tells: the panic, and before it the oops that led there with its place.
fn kernel_panic(console: &str) -> String {
    const SIGNS: [&str; 4] = ["Oops: ", "BUG: ", "RIP: ", "Kernel panic - not syncing: "];
    let first = |sign: &str| {
        let (_, reason) = console.lines().find_map(|line| line.split_once(sign))?;
        Some(format!(": {sign}{}", reason.trim()))
    };
    match first(SIGNS[3]) {
        Some(panic) => {
            SIGNS[..3]
                .iter()
                .filter_map(|s| first(s))
                .collect::<String>()
                + &panic
        }
        None => String::new(),
    }
}

fn keep(output: &mut Vec<u8>, bytes: &[u8]) {
    const NOTE: &[u8] = b"\n[more output was dropped]\n";
    if output.len() + bytes.len() <= KEPT {
        output.extend_from_slice(bytes);
    } else if !output.ends_with(NOTE) {
        output.extend_from_slice(NOTE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_panic_is_quoted() {
        let console = "[ 4.01] BUG: x\n[ 4.02] Kernel panic - not syncing: sysrq triggered crash\r\n[ 4.03] y\n";
        assert_eq!(
            kernel_panic(console),
            ": BUG: x: Kernel panic - not syncing: sysrq triggered crash"
        );
        let oops = "[ 4.01] Oops: int3: 0000 [#1] SMP\n[ 4.02] RIP: 0010:f+0x1/0x2\n[ 4.03] Kernel panic - not syncing: y\n";
        assert_eq!(
            kernel_panic(oops),
            ": Oops: int3: 0000 [#1] SMP: RIP: 0010:f+0x1/0x2: Kernel panic - not syncing: y"
        );
        assert_eq!(kernel_panic("[ 4.01] reboot: Restarting system\n"), "");
    }

    #[test]
    fn output_is_bounded_and_says_so_once() {
        let mut output = Vec::new();
        for _ in 0..3 {
            keep(&mut output, &vec![b'x'; KEPT / 2 + 1]);
        }
        assert!(output.len() < KEPT);
        assert!(output.ends_with(b"x\n[more output was dropped]\n"));
    }
}
