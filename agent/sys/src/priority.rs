//! What keeps a thread from slowing others down: low priority for the CPU and for a disk.

use std::io;

use rustix::process::setpriority_process;

/// Priority of the calling thread, for the CPU and for its requests to a disk, against that of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackgroundPriority {
    /// Behind all others. On a busy machine the thread hardly runs, and while others use the disk, mq-deadline holds a
    /// request of this class back for up to 10 s (`prio_aging_expire`).
    Idle,
    /// That of common threads for the CPU; last of the best-effort class for a disk.
    Low,
}

impl BackgroundPriority {
    /// The nice value (setpriority(2)).
    fn nice(self) -> i32 {
        match self {
            Self::Idle => 19,
            Self::Low => 0,
        }
    }

    /// The class and the level within it (ioprio_set(2)).
    fn io(self) -> libc::c_int {
        const CLASS_SHIFT: libc::c_int = 13;
        let (class, level) = match self {
            Self::Low => (2, 7),
            Self::Idle => (3, 0),
        };
        class << CLASS_SHIFT | level
    }

    /// Sets it for the calling thread.
    ///
    /// # Errors
    /// The kernel refuses a part of it, which changes nothing but the speed of this thread and of others.
    pub fn set(self) -> io::Result<()> {
        const IOPRIO_WHO_PROCESS: libc::c_int = 1;
        // On Linux this is the calling thread too (setpriority(2), C library/kernel differences).
        let nice = setpriority_process(None, self.nice());
        // SAFETY: plain integers; 0 is the calling thread (ioprio_set(2)).
        match unsafe { libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, self.io()) } {
            0 => Ok(nice?),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::getpriority_process;

    use super::*;

    #[test]
    fn the_calling_thread_stands_behind_others() {
        std::thread::spawn(|| {
            let idle = [BackgroundPriority::Idle];
            // The way back takes CAP_SYS_NICE.
            let both = [BackgroundPriority::Low, BackgroundPriority::Idle];
            let is_root = rustix::process::geteuid().is_root();
            let more = both.into_iter().filter(|_| is_root);
            for priority in idle.into_iter().chain(more) {
                priority.set().unwrap();
                // SAFETY: plain integers.
                let io = unsafe { libc::syscall(libc::SYS_ioprio_get, 1, 0) };
                assert_eq!(io, i64::from(priority.io()), "{priority:?}");
                let nice = getpriority_process(None).unwrap();
                assert_eq!(nice, priority.nice(), "{priority:?}");
            }
        })
        .join()
        .unwrap();
    }
}
