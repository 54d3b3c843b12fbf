//! One thread of a process that does not go on, while the others do.

use std::{fs, io};

/// The stopped thread; it goes on when this is dropped, which must be on the thread that has made it.
pub struct Stalled {
    thread: i32,
}

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
        ptrace(libc::PTRACE_SEIZE, thread)?;
        let stalled = Self { thread };
        ptrace(libc::PTRACE_INTERRUPT, thread)?;
        let mut status = 0;
        // SAFETY: the status is a local.
        if unsafe { libc::waitpid(thread, &raw mut status, libc::__WALL) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(stalled)
    }
}

impl Drop for Stalled {
    fn drop(&mut self) {
        // A process that has ended meanwhile is fine.
        let _ = ptrace(libc::PTRACE_DETACH, self.thread);
    }
}

fn ptrace(request: libc::c_uint, thread: i32) -> io::Result<()> {
    let nothing = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: none of the requests made here reads or writes memory of this process.
    match unsafe { libc::ptrace(request, thread, nothing, nothing) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
