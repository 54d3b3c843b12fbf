//! One thread of a process that does not go on, while the others do.

use std::{fs, io};

use nix::{
    sys::{
        ptrace,
        wait::{WaitPidFlag, waitpid},
    },
    unistd::Pid,
};

/// The stopped thread; it goes on when this is dropped, which must be on the thread that has made it.
pub struct Stalled(Pid);

impl Stalled {
    /// Stops the thread of this name; a process's first thread has the name of its program.
    /// Fails where ptrace is refused.
    pub fn new(process: u32, name: &str) -> io::Result<Self> {
        let is_it = |thread: &i32| {
            let comm = fs::read_to_string(format!("/proc/{process}/task/{thread}/comm"));
            comm.is_ok_and(|comm| comm.trim_end() == name)
        };
        let tasks = fs::read_dir(format!("/proc/{process}/task"))?;
        let threads = tasks.filter_map(|t| t.ok()?.file_name().to_str()?.parse().ok());
        let thread = threads.into_iter().find(is_it);
        let thread = thread.ok_or_else(|| io::Error::other(format!("no thread {name}")))?;
        let thread = Pid::from_raw(thread);
        ptrace::seize(thread, ptrace::Options::empty())?;
        let stalled = Self(thread);
        ptrace::interrupt(thread)?;
        waitpid(thread, Some(WaitPidFlag::__WALL))?;
        Ok(stalled)
    }
}

impl Drop for Stalled {
    fn drop(&mut self) {
        // A process that has ended meanwhile is fine.
        let _ = ptrace::detach(self.0, None);
    }
}
