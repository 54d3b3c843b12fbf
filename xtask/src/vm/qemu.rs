//! Boots one virtual machine and follows it to its end.

use std::{
    fmt,
    io::{BufRead as _, BufReader},
    os::unix::process::CommandExt as _,
    process::{Child, ChildStdout, ExitStatus},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
};

use nix::sys::{prctl::set_pdeathsig, signal::Signal};

use super::{
    MachineOptions,
    kernels::Kernel,
    programs::QEMU,
    protocol::{MARK, Report},
};
use crate::prelude::*;

/// A boot under emulation takes 3 to 10 s; a loaded machine may take long.
const BOOT: Duration = Duration::from_secs(180);
/// Init ends a job by itself when its time is up; past this the kernel must be stuck.
const GRACE: Duration = Duration::from_secs(30);

/// The cgroup version that init mounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Cgroup {
    /// Separate hierarchies under /sys/fs/cgroup/CONTROLLER
    V1,
    /// The unified hierarchy at /sys/fs/cgroup, version 1 switched off
    V2,
}

impl fmt::Display for Cgroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::V1 => "v1",
            Self::V2 => "v2",
        })
    }
}

pub struct Machine<'a> {
    pub kernel: &'a Kernel,
    pub options: &'a MachineOptions,
    pub initramfs: &'a Path,
    pub console: &'a Path,
    /// Filesystem image that is `/dev/vda` inside, if there is one.
    pub disk: Option<&'a Path>,
}

/// Report or output that comes from a running machine.
pub enum Event {
    Report(Report),
    /// Output of the current job, as it came.
    Output(Vec<u8>),
}

#[derive(Debug)]
pub enum End {
    PoweredOff(ExitStatus),
    /// End of QEMU by force, because nothing came for this long.
    Silent(Duration),
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PoweredOff(status) if status.success() => write!(f, "the machine went down"),
            Self::PoweredOff(status) => write!(f, "QEMU ended with {status}"),
            Self::Silent(time) => write!(f, "the machine was silent for {} s", time.as_secs()),
        }
    }
}

impl Machine<'_> {
    fn command(&self) -> Command {
        let (cgroup, accel) = (self.options.cgroup(), self.options.accel.as_str());
        // cx16 is left out: under emulation 6.12's slab allocator hangs on its cmpxchg16b.
        let cpu = if accel == "tcg" { "max,-cx16" } else { "max" };
        let version = match cgroup {
            Cgroup::V1 => "",
            Cgroup::V2 => " cgroup_no_v1=all",
        };
        // One host thread for all CPUs of the guest. With a thread each, QEMU before 8.1 translates code that
        // another CPU is patching and keeps the breakpoint of the moment: the guest dies of "Oops: int3" where
        // a tracepoint was switched.
        let accel = if accel == "tcg" {
            "tcg,thread=single"
        } else {
            accel
        };
        let mut qemu = match self.options.gives_way {
            true => {
                let mut nice = Command::new("nice");
                nice.args(["-n", "5", QEMU]);
                nice
            }
            false => Command::new(QEMU),
        };
        // A guest whose test run was killed would keep a CPU busy for ever.
        // SAFETY: between fork and exec only a system call is made.
        unsafe { qemu.pre_exec(|| Ok(set_pdeathsig(Signal::SIGKILL)?)) };
        qemu.args([
            "-accel",
            accel,
            "-cpu",
            cpu,
            "-smp",
            "2",
            "-m",
            &self.options.memory.to_string(),
        ])
        .args([
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-no-reboot",
        ])
        .arg("-serial")
        .arg(format!("file:{}", self.console.display()))
        .arg("-kernel")
        .arg(self.kernel.image())
        .arg("-initrd")
        .arg(self.initramfs)
        .arg("-append")
        .arg(format!(
            "console=ttyS0 loglevel=6 panic=-1 evictd.cgroup={cgroup}{version}"
        ));
        if let Some(disk) = self.disk {
            let drive = format!("file={},if=virtio,format=raw,cache=unsafe", disk.display());
            qemu.args(["-drive", &drive]);
        }
        qemu
    }

    /// Runs the machine with this terminal on its second serial port; Ctrl-A x ends QEMU.
    pub fn interactive(&self) -> Result<ExitStatus> {
        let mut qemu = self.command();
        qemu.args([
            "-chardev",
            "stdio,id=guest,mux=on,signal=off",
            "-serial",
            "chardev:guest",
        ])
        .args(["-mon", "chardev=guest,mode=readline"]);
        qemu.status()
            .with_context(|| format!("cannot start {qemu:?}"))
    }

    /// Runs the machine until it ends. `on_event` sees what comes out, and returns how long the next event may
    /// take.
    pub fn run(&self, mut on_event: impl FnMut(Event) -> Option<Duration>) -> Result<End> {
        let mut qemu = self.command();
        qemu.args([
            "-chardev",
            "stdio,id=guest,signal=off",
            "-serial",
            "chardev:guest",
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
        let mut child = qemu
            .spawn()
            .with_context(|| format!("cannot start {qemu:?}"))?;
        let stdout = child.stdout.take().context("the stdout of QEMU is piped")?;
        let lines = read_lines(stdout);
        let mut parser = Parser::default();
        let (mut allowance, mut deadline) = (BOOT, Instant::now() + BOOT);
        loop {
            match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    if let Some(time) = on_event(parser.line(line)) {
                        allowance = time + GRACE;
                        deadline = Instant::now() + allowance;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    end(&mut child)?;
                    return Ok(End::Silent(allowance));
                }
                Err(RecvTimeoutError::Disconnected) => return Ok(End::PoweredOff(child.wait()?)),
            }
        }
    }
}

fn end(child: &mut Child) -> Result<()> {
    child.kill().context("cannot end QEMU")?;
    child.wait().context("cannot wait for QEMU")?;
    Ok(())
}

/// Lines without their newline; a bounded number wait, so that a guest that floods is held up.
fn read_lines(stdout: ChildStdout) -> Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::sync_channel(1024);
    thread::spawn(move || {
        let mut reader = BufReader::new(stdout);
        loop {
            let mut line = Vec::new();
            match reader.read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => break,
                Ok(_) => {
                    line.pop_if(|byte| *byte == b'\n');
                    if sender.send(line).is_err() {
                        break;
                    }
                }
            }
        }
    });
    receiver
}

/// Tells reports from output. Init sends a newline before each report: that one is not the job's.
#[derive(Default)]
struct Parser {
    newline_due: bool,
}

impl Parser {
    fn line(&mut self, mut line: Vec<u8>) -> Event {
        if let Some(report) = report(&line) {
            self.newline_due = false;
            return Event::Report(report);
        }
        if self.newline_due {
            line.insert(0, b'\n');
        }
        self.newline_due = true;
        Event::Output(line)
    }
}

fn report(line: &[u8]) -> Option<Report> {
    serde_json::from_slice(line.strip_prefix(MARK.as_bytes())?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output_of(serial: &str) -> (String, Vec<Report>) {
        let (mut parser, mut text, mut reports) = (Parser::default(), String::new(), Vec::new());
        for line in serial.split('\n') {
            match parser.line(line.as_bytes().to_vec()) {
                Event::Output(bytes) => text.push_str(&String::from_utf8_lossy(&bytes)),
                Event::Report(report) => reports.push(report),
            }
        }
        (text, reports)
    }

    #[test]
    fn output_is_given_back_as_the_job_wrote_it() {
        for written in ["", "a", "a\n", "\n", "\n\n", "a\n\nb", "a\nb\n"] {
            let serial = format!("{written}\n{MARK}{{\"Started\":{{\"job\":3}}}}");
            let (text, reports) = output_of(&serial);
            assert_eq!(
                (text.as_str(), reports),
                (written, vec![Report::Started { job: 3 }])
            );
        }
    }

    #[test]
    fn a_line_that_only_looks_like_a_report_is_output() {
        let (text, reports) = output_of(&format!("{MARK}nonsense\nx"));
        assert_eq!((text, reports), (format!("{MARK}nonsense\nx"), vec![]));
    }
}
