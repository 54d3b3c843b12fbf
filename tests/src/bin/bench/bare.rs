//! The bare wake-up: an eventfd write on one CPU wakes a sleeping SCHED_FIFO thread on another, which sends SIGKILL to
//! a process that waits for it. Nothing that is woken and then kills can be faster on this machine.

use std::sync::mpsc;

use evictd_node::cgroup::realtime::acquire_fastpath_fifo;
use evictd_sys::rt::lock_memory;
use evictd_tests::{cpus, prelude::*};
use nix::{
    sys::{
        eventfd::{EfdFlags, EventFd},
        signal::{Signal, kill},
    },
    unistd::Pid,
};

/// Long enough that the thread sleeps and its CPU idles, as before a crossing.
const QUIET: Duration = Duration::from_millis(20);

/// Microseconds from the write until the kill has returned, once per run.
pub fn measure(runs: usize) -> Result<Vec<f64>> {
    let count = std::thread::available_parallelism()?.get();
    let (wake_thread, sleeper) = (0, 1 % count);
    let event = Arc::new(EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC)?);
    let read_end = Arc::clone(&event);
    let (victims, next) = mpsc::channel::<i32>();
    let (killed, times) = mpsc::channel();
    let killer = std::thread::spawn(move || -> Result<()> {
        cpus::tie(0, &[sleeper])?;
        // Refused, a page fault may come into a measurement.
        let _ = lock_memory();
        acquire_fastpath_fifo()?;
        for pid in next {
            read_end.read()?;
            // A child of ours that was not waited for.
            kill(Pid::from_raw(pid), Signal::SIGKILL)?;
            if killed.send(monotonic_ns()).is_err() {
                break;
            }
        }
        Ok(())
    });
    let woken = std::thread::spawn(move || -> Result<Vec<f64>> {
        cpus::tie(0, &[wake_thread])?;
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
            event.write(1)?;
            if let Ok(end) = times.recv() {
                found.push(end.saturating_sub(start) as f64 / 1000.0);
            }
            // Already dead, unless the other thread has given up.
            let _ = child.kill();
            child.wait()?;
        }
        Ok(found)
    });
    let panicked = "a thread has panicked";
    let found = woken.join().ok().context(panicked)??;
    killer.join().ok().context(panicked)??;
    Ok(found)
}
