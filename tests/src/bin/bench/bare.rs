//! The bare wake-up: an eventfd write on one CPU wakes a sleeping SCHED_FIFO thread on another, which sends SIGKILL to
//! a process that waits for it. Nothing that is woken and then kills can be faster on this machine.

use std::{
    io,
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
    process::{Command, Stdio},
    sync::mpsc,
    time::Duration,
};

use evictd_node::cgroup::realtime::become_fifo;
use evictd_sys::{clock::monotonic_ns, rt::lock_memory};

/// Long enough that the thread sleeps and its CPU idles, as before a crossing.
const QUIET: Duration = Duration::from_millis(20);

/// Microseconds from the write until the kill has returned, once per run.
pub fn measure(runs: usize) -> io::Result<Vec<f64>> {
    let cpus = std::thread::available_parallelism()?.get();
    let (wake_thread, sleeper) = (0, 1 % cpus);
    // SAFETY: plain integers; the result is checked.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and has no other owner.
    let event = unsafe { OwnedFd::from_raw_fd(fd) };
    let read_end = event.try_clone()?;
    let (victims, next) = mpsc::channel::<i32>();
    let (killed, times) = mpsc::channel();
    let killer = std::thread::spawn(move || -> io::Result<()> {
        pin(sleeper)?;
        // Refused, a page fault may come into a measurement.
        let _ = lock_memory();
        become_fifo()?;
        for pid in next {
            let mut count = 0_u64;
            // SAFETY: eight bytes into a local.
            unsafe { libc::read(read_end.as_raw_fd(), (&raw mut count).cast(), 8) };
            // SAFETY: plain integers; the process is a child of ours that was not waited for.
            unsafe { libc::kill(pid, libc::SIGKILL) };
            if killed.send(monotonic_ns()).is_err() {
                break;
            }
        }
        Ok(())
    });
    let woken = std::thread::spawn(move || -> io::Result<Vec<f64>> {
        pin(wake_thread)?;
        let mut found = Vec::with_capacity(runs);
        for _ in 0..runs {
            let mut child = Command::new("sleep")
                .arg("60")
                .stdin(Stdio::null())
                .spawn()?;
            if victims.send(child.id().cast_signed()).is_err() {
                break;
            }
            std::thread::sleep(QUIET);
            let start = monotonic_ns();
            let one = 1_u64;
            // SAFETY: eight bytes from a local.
            unsafe { libc::write(event.as_raw_fd(), (&raw const one).cast(), 8) };
            if let Ok(end) = times.recv() {
                found.push(end.saturating_sub(start) as f64 / 1000.0);
            }
            // Already dead, unless the other thread has given up.
            let _ = child.kill();
            child.wait()?;
        }
        Ok(found)
    });
    let panicked = |_| io::Error::other("a thread has panicked");
    let found = woken.join().map_err(panicked)??;
    killer.join().map_err(panicked)??;
    Ok(found)
}

/// Binds the calling thread to one CPU.
pub fn pin(cpu: usize) -> io::Result<()> {
    // SAFETY: an all-zero set is an empty one; it is a local that outlives the call.
    let outcome = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set)
    };
    if outcome == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
