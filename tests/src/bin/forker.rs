//! Makes tasks or files inside a cgroup, one at a time or as fast as the machine can.
//!
//! It enters its cgroup by itself and says `ready` on standard output; then each line on standard input is an order:
//! `hold N` starts N processes that wait, `drop` ends and reaps them, `threads N` starts N threads that wait, `storm N`
//! starts and reaps N processes one after the other, `fault N` touches N fresh pages of memory, `make DIR N` and
//! `remove DIR N` make and remove N empty files. Others of what is done to files in a directory: `replace DIR N` renames
//! new ones over them, `move DIR N` gives them other names, `chown DIR N` another owner, `link DIR N` a second name
//! (`unlink DIR N` removes that again), `name DIR N` makes files without a name (O_TMPFILE) and names them,
//! `nameless DIR N` closes them as they are. When an order is carried out it answers with the nanoseconds of CPU time
//! that it took, its children's included: others' work does not count.

use std::{
    io::BufRead as _,
    os::{
        fd::AsRawFd as _,
        unix::fs::{OpenOptionsExt as _, chown},
    },
};

use evictd_tests::{mapped::touch, prelude::*};
use memmap2::{Advice, MmapMut};
use nix::{
    fcntl::{AT_FDCWD, AtFlags},
    sys::{
        resource::{UsageWho, getrusage},
        signal::{Signal, kill},
        time::TimeValLike as _,
        wait::waitpid,
    },
    unistd::{Pid, linkat},
};

const PAGE: usize = 4096;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, flag, procs] = arguments.as_slice() else {
        bail!("usage: forker --cgroup PROCS");
    };
    ensure!(flag == "--cgroup", "{flag}: unknown");
    // Without a cgroup it stays where it was started.
    if !procs.is_empty() {
        fs::write(procs, "0").with_context(|| procs.clone())?;
    }
    println!("ready");
    let mut held = Vec::new();
    for line in io::stdin().lock().lines() {
        let line = line?;
        let start = cpu_time()?;
        match line.split_whitespace().collect::<Vec<_>>().as_slice() {
            ["hold", n] => {
                for _ in 0..number(n)? {
                    held.push(fork(true)?);
                }
            }
            ["drop"] => held.drain(..).for_each(end),
            ["threads", n] => {
                for _ in 0..number(n)? {
                    let small = std::thread::Builder::new().stack_size(PAGE);
                    small.spawn(std::thread::park)?;
                }
            }
            ["storm", n] => {
                for _ in 0..number(n)? {
                    reap(fork(false)?);
                }
            }
            ["fault", n] => fault(number(n)?)?,
            [order, dir, n] => {
                for i in 0..number(n)? {
                    change(order, Path::new(dir), i)?;
                }
            }
            _ => bail!("no such order: {line}"),
        }
        println!("{}", (cpu_time()? - start).as_nanos());
    }
    held.drain(..).for_each(end);
    Ok(())
}

/// Does something to a file of a directory.
fn change(order: &str, dir: &Path, i: u64) -> io::Result<()> {
    let file = dir.join(format!("f{i}"));
    let other = || dir.join(format!("o{i}"));
    match order {
        "make" => File::create(file).map(drop),
        "remove" => fs::remove_file(file),
        "replace" => {
            File::create(other())?;
            fs::rename(other(), file)
        }
        "move" => fs::rename(file, other()),
        "chown" => chown(file, Some(1), None),
        "link" => fs::hard_link(file, other()),
        "unlink" => fs::remove_file(other()),
        "name" => name(&nameless(dir)?, &file),
        "nameless" => nameless(dir).map(drop),
        _ => Err(io::Error::other(format!("no such order: {order}"))),
    }
}

/// A file without a name.
fn nameless(dir: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).custom_flags(libc::O_TMPFILE).open(dir)
}

/// As open(2) has it: by its entry in /proc, which takes no capability.
fn name(file: &File, path: &Path) -> io::Result<()> {
    let from = format!("/proc/self/fd/{}", file.as_raw_fd());
    let follow = AtFlags::AT_SYMLINK_FOLLOW;
    Ok(linkat(AT_FDCWD, from.as_str(), AT_FDCWD, path, follow)?)
}

/// CPU time of this process and of its reaped children (getrusage(2)).
fn cpu_time() -> io::Result<Duration> {
    let mut sum = Duration::ZERO;
    for processes in [UsageWho::RUSAGE_SELF, UsageWho::RUSAGE_CHILDREN] {
        let usage = getrusage(processes)?;
        for time in [usage.user_time(), usage.system_time()] {
            sum += Duration::from_micros(time.num_microseconds().unsigned_abs());
        }
    }
    Ok(sum)
}

fn number(text: &str) -> Result<u64> {
    text.parse().with_context(|| format!("{text} is no number"))
}

/// A child that waits for a signal, or ends at once.
fn fork(waits: bool) -> io::Result<libc::pid_t> {
    let own = std::process::id();
    // SAFETY: the child calls only what is async-signal-safe.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            if waits {
                // Does not outlive this process, however that ends.
                // SAFETY: plain integers.
                unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
                // It may have ended before that.
                if std::os::unix::process::parent_id() == own {
                    // SAFETY: no arguments.
                    unsafe { libc::pause() };
                }
            }
            // SAFETY: ends the child without running the parent's destructors.
            unsafe { libc::_exit(0) }
        }
        pid => Ok(pid),
    }
}

/// Maps so many pages without huge ones, touches each, and gives them back.
fn fault(pages: u64) -> Result<()> {
    let bytes = usize::try_from(pages)? * PAGE;
    let mut mapped = MmapMut::map_anon(bytes)?;
    // A refusal changes nothing: the kernel has no huge pages.
    let _ = mapped.advise(Advice::NoHugePage);
    touch(&mut mapped);
    Ok(())
}

fn end(pid: libc::pid_t) {
    // A child of this process that was not reaped yet.
    let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    reap(pid);
}

fn reap(pid: libc::pid_t) {
    // Its status is not wanted.
    let _ = waitpid(Pid::from_raw(pid), None);
}
