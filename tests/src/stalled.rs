//! One thread of a process that does not go on, while the others do.

use std::{
    sync::mpsc::{self, RecvTimeoutError},
    thread,
};

use nix::{
    sys::{
        ptrace,
        wait::{WaitPidFlag, waitpid},
    },
    unistd::Pid,
};

use crate::prelude::*;

/// The stopped thread; it goes on when this is dropped, which must be on the thread that has made it.
pub struct Stalled(Pid);

impl Stalled {
    /// Stops the thread of this name; a process's first thread has the name of its program.
    /// Fails where ptrace is refused.
    pub fn new(process: u32, name: &str) -> Result<Self> {
        let thread = thread_named(process, name)?;
        let thread = thread.with_context(|| format!("no thread {name}"))?;
        let thread = Pid::from_raw(thread);
        ptrace::seize(thread, ptrace::Options::empty())?;
        let stalled = Self(thread);
        ptrace::interrupt(thread)?;
        waitpid(thread, Some(WaitPidFlag::__WALL))?;
        Ok(stalled)
    }
}

/// Lets a thread run for a few milliseconds only, again after each pause of `each`, and does something meanwhile.
pub fn hold_up<T>(process: u32, name: &str, each: Duration, meanwhile: impl FnOnce() -> T) -> T {
    let (goes_on, is_over) = mpsc::channel::<()>();
    let stall = move || {
        while is_over.recv_timeout(Duration::from_millis(20)) == Err(RecvTimeoutError::Timeout) {
            let _stalled = Stalled::new(process, name).expect("a thread to stall");
            thread::sleep(each);
        }
    };
    thread::scope(|threads| {
        threads.spawn(stall);
        let _goes_on = goes_on;
        meanwhile()
    })
}

/// The id of a process's thread of this name.
pub fn thread_named(process: u32, name: &str) -> Result<Option<i32>> {
    let is_it = |thread: &i32| {
        let comm = fs::read_to_string(format!("/proc/{process}/task/{thread}/comm"));
        comm.is_ok_and(|comm| comm.trim_end() == name)
    };
    let tasks = fs::read_dir(format!("/proc/{process}/task"))?;
    let mut threads = tasks.filter_map(|t| t.ok()?.file_name().to_str()?.parse().ok());
    Ok(threads.find(is_it))
}

impl Drop for Stalled {
    fn drop(&mut self) {
        // A process that has ended meanwhile is fine.
        let _ = ptrace::detach(self.0, None);
    }
}
