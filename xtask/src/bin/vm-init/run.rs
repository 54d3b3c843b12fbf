//! Runs one job, and leaves nothing of it behind.

use std::{
    fs::File,
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use nix::{
    errno::Errno,
    sys::{
        signal::{Signal, kill},
        wait::{WaitStatus, wait, waitpid},
    },
    unistd::Pid,
};

use crate::protocol::{Job, Status};

/// Runs a job with the serial port as its output, and then kills whatever it has left running.
pub fn to_its_end(job: &Job, port: &File) -> (Status, Duration) {
    let begin = Instant::now();
    let status = start_and_wait(job, port)
        .unwrap_or_else(|reason| Status::NotStarted(format!("{reason:#}")));
    let time = begin.elapsed();
    // From the first process -1 means every other process; kernel threads do not mind.
    // ESRCH says that there was none, which is what is wanted.
    let _ = kill(Pid::from_raw(-1), Signal::SIGKILL);
    while !matches!(wait(), Err(Errno::ECHILD)) {}
    (status, time)
}

fn start_and_wait(job: &Job, port: &File) -> Result<Status> {
    let child = command(job)?
        .stdin(Stdio::null())
        .stdout(port.try_clone()?)
        .stderr(port.try_clone()?)
        .spawn()
        .with_context(|| format!("cannot start {:?}", job.argv))?;
    let pid = Pid::from_raw(i32::try_from(child.id())?);
    let (ended, time_up) = mpsc::channel::<()>();
    let timeout = job.timeout_secs;
    let watch = thread::spawn(move || {
        let wait = if timeout == 0 {
            Duration::MAX
        } else {
            Duration::from_secs(timeout)
        };
        let late = matches!(
            time_up.recv_timeout(wait),
            Err(mpsc::RecvTimeoutError::Timeout)
        );
        if late {
            // All of them: a test that hangs may hang in a child.
            let _ = kill(Pid::from_raw(-1), Signal::SIGKILL);
        }
        late
    });
    let status = loop {
        // Init is the parent of every orphan; only the job's own end counts.
        match wait() {
            Ok(WaitStatus::Exited(child, code)) if child == pid => break Status::Exited(code),
            Ok(WaitStatus::Signaled(child, signal, _)) if child == pid => {
                break Status::Killed(signal as i32);
            }
            Ok(_) | Err(Errno::EINTR) => {}
            Err(reason) => return Err(reason).context("wait"),
        }
    };
    drop(ended);
    Ok(if watch.join().unwrap_or(false) {
        Status::TimedOut
    } else {
        status
    })
}

/// Runs a job with the serial port as its terminal, job control included.
pub fn terminal(job: &Job) -> Result<()> {
    let mut command = Command::new("/bin/busybox");
    // cttyhack would take the console; setsid -c makes stdin the controlling terminal.
    command.args(["setsid", "-c"]).args(&job.argv);
    let port = File::options()
        .read(true)
        .write(true)
        .open("/dev/ttyS1")
        .context("/dev/ttyS1")?;
    let child = settle(&mut command)
        .stdin(port.try_clone()?)
        .stdout(port.try_clone()?)
        .stderr(port)
        .spawn()
        .with_context(|| format!("cannot start {:?}", job.argv))?;
    let pid = Pid::from_raw(i32::try_from(child.id())?);
    while waitpid(pid, None).is_err_and(|reason| reason == Errno::EINTR) {}
    Ok(())
}

fn command(job: &Job) -> Result<Command> {
    let (program, arguments) = job.argv.split_first().context("a job without a program")?;
    let mut command = Command::new(program);
    command.args(arguments);
    settle(&mut command);
    Ok(command)
}

fn settle(command: &mut Command) -> &mut Command {
    command
        .current_dir("/root")
        .env_clear()
        .env("PATH", "/tests:/bin:/sbin:/usr/bin:/usr/sbin")
        .env("HOME", "/root")
        .env("TERM", "xterm-256color")
        .env("RUST_BACKTRACE", "1")
        .env("EVICTD_BIN", "/bin/evictd")
}
